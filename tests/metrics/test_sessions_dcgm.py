"""Pod labels on DCGM series: where dcgm-exporter puts them, copy by copy."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Allocation, Device, Owner, Ownership, Pid, Process, Snapshot
from gpuscope.vendors.nvidia.families.dcgm.builder import build_with
from gpuscope.vendors.nvidia.stand_ins.dcgm_exporter import parse_dcgm_exporter_args
from tests.metrics.dcgm_machines import MIB, a100_mig, h100, snapshot


def given_to(device: Device, pod: str, device_id: str = "", **more: Any) -> Allocation:
    values: dict[str, Any] = {
        "gpu_uuid": device.uuid,
        "device_id": device_id or device.uuid,
        "resource": "nvidia.com/gpu",
        "namespace": "ml",
        "pod": pod,
        "container": "main",
        "pod_uid": f"uid-{pod}",
    }
    return Allocation(**{**values, **more})


def scene(devices: list[Device], *allocations: Allocation, processes: tuple[Process, ...] = ()) -> Snapshot:
    return replace(snapshot(*devices), ownership=Ownership(allocations=allocations), processes=processes)


def series(shot: Snapshot, name: str, *argv: str, **env: str) -> list[str]:
    """Label text and value of each series, without what is the same for all."""
    options, warnings = parse_dcgm_exporter_args(argv, env)
    assert not warnings
    text = encode_text(build_with(Settings(), options).to_families(shot)).decode()
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return [re.sub(r'.*?(gpu="\d+").*?DCGM_FI_DRIVER_VERSION="[^"]*"', r"\1", line) for line in lines]


def test_without_the_flag_there_are_no_pods() -> None:
    shot = scene([h100(0)], given_to(h100(0), "a"))
    assert series(shot, "DCGM_FI_DEV_GPU_TEMP") == ['gpu="0"} 68']


def test_a_gpu_with_a_pod_and_one_without() -> None:
    shot = scene([h100(0), h100(1)], given_to(h100(0), "a"))
    assert series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k") == [
        'gpu="0",container="main",namespace="ml",pod="a"} 68',
        'gpu="1"} 68',
    ]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (Settings(), 'container="main",namespace="ml",pod="a"'),
        (Settings(pod_labels=("team",)), 'team="red",container="main",namespace="ml",pod="a"'),
    ],
)
def test_the_agent_s_own_dcgm_family_has_the_pods_it_knows(settings: Settings, labels: str) -> None:
    """Without any flag of dcgm-exporter: `gpuscope agent --families dcgm`."""
    given = given_to(h100(0), "a", pod_labels=(("team", "red"),))
    text = encode_text(
        load_family("dcgm").build(settings).to_families(scene([h100(0), h100(1)], given))
    ).decode()
    first, second = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]
    assert first.endswith(f",{labels}}} 68")
    assert "pod=" not in second


def test_old_names_uids_and_labels() -> None:
    shot = scene(
        [h100(0)],
        given_to(h100(0), "a", pod_labels=(("app.io/name", "x"), ("pod", "liar"), ("team", "red"))),
    )
    flags = ("-k", "--kubernetes-enable-pod-uid", "--kubernetes-enable-pod-labels")
    (line,) = series(shot, "DCGM_FI_DEV_GPU_TEMP", *flags)
    assert (
        line == 'gpu="0",app_io_name="x",team="red",container="main",namespace="ml",pod="a",pod_uid="uid-a"} 68'
    )
    (line,) = series(shot, "DCGM_FI_DEV_GPU_TEMP", *flags, "--kubernetes-pod-label-allowlist-regex", "^team$,(")
    assert 'team="red"' in line
    assert "app_io_name" not in line
    (old,) = series(shot, "dcgm_gpu_temp", "-k", "-o") or series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k", "-o")
    assert 'container_name="main",pod_name="a",pod_namespace="ml"} 68' in old


def test_the_last_claimant_wins_and_only_known_resources_count() -> None:
    gpu = h100(0)
    shot = scene(
        [gpu],
        given_to(gpu, "first", f"{gpu.uuid}::0"),
        given_to(gpu, "last", f"{gpu.uuid}::1"),
        given_to(gpu, "other", f"{gpu.uuid}::2", resource="nvidia.com/gpu.shared"),
    )
    assert series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k") == [
        'gpu="0",container="main",namespace="ml",pod="last"} 68'
    ]
    (line,) = series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k", NVIDIA_RESOURCE_NAMES="nvidia.com/gpu.shared")
    assert 'pod="other"' in line


def test_virtual_gpus_copy_every_series_and_split_two_of_them() -> None:
    gpu = h100(0)
    pods = [given_to(gpu, name, f"{gpu.uuid}::{n}", replica=str(n)) for n, name in enumerate("ab")]
    processes = tuple(
        Process(
            pid=Pid(n),
            gpu_uuid=gpu.uuid,
            memory_bytes=(100.7 + n) * MIB,
            sm_ratio=0.2,
            owner=Owner(pod="a", namespace="ml", pod_uid="uid-a"),
        )
        for n in range(2)
    )
    shot = scene([gpu], *pods, processes=processes)
    flags = ("-k", "--kubernetes-virtual-gpus")
    a, b = (f'container="main",namespace="ml",pod="{name}"' for name in "ab")
    assert series(shot, "DCGM_FI_DEV_GPU_TEMP", *flags) == [
        f'gpu="0",{a},vgpu="0"}} 68',
        f'gpu="0",{b},vgpu="1"}} 68',
    ]
    assert series(shot, "DCGM_FI_DEV_GPU_UTIL", *flags) == [
        'gpu="0"} 58',
        f'gpu="0",{a},pod_uid="uid-a",vgpu="0"}} 40',
        f'gpu="0",{b},pod_uid="uid-b",vgpu="1"}} 0',
    ]
    used = series(shot, "DCGM_FI_DEV_FB_USED", *flags)
    assert used[1:] == [
        f'gpu="0",{a},pod_uid="uid-a",vgpu="0"}} {100 + 101}',
        f'gpu="0",{b},pod_uid="uid-b",vgpu="1"}} 0',
    ]
    unknown = replace(shot, processes=ABSENT)
    assert series(unknown, "DCGM_FI_DEV_GPU_UTIL", *flags) == ['gpu="0"} 58'], "absent is not 0"


@pytest.mark.parametrize("form", ["uuid", "gke"])
def test_instances_by_their_gpu_instance(form: str) -> None:
    gpu = a100_mig()
    instance = gpu.instances[-1]
    device_id = instance.uuid if form == "uuid" else f"nvidia{gpu.index}/gi{instance.ids[0]}"
    allocation = given_to(gpu, "mig", device_id, instance_uuid=instance.uuid, resource="nvidia.com/mig-1g.5gb")
    lines = series(scene([gpu], allocation), "DCGM_FI_DEV_FB_USED", "-k")
    assert len(lines) == len(gpu.instances)
    assert [line for line in lines if 'pod="mig"' in line] == lines[-1:]


def test_device_names_where_the_plugin_uses_them() -> None:
    shot = scene([h100(0), h100(1)], given_to(h100(1), "a", "nvidia1/vgpu0"))
    lines = series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k", "--kubernetes-gpu-id-type", "device-name")
    assert ['pod="a"' in line for line in lines] == [False, True]


def test_jobs_and_pods_multiply(tmp_path: Path) -> None:
    shot = scene([h100(0)], given_to(h100(0), "a"))
    shot = replace(shot, ownership=replace(shot.ownership, job_lines={"0": ("17", "18")}))
    assert series(shot, "DCGM_FI_DEV_GPU_TEMP", "-k", "--hpc-job-mapping-dir", str(tmp_path)) == [
        f'gpu="0",container="main",hpc_job="{job}",namespace="ml",pod="a"}} 68' for job in (17, 18)
    ]
