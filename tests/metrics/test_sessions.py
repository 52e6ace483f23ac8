"""The session metrics' exact names, labels, order and numbers; a limited number of series."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import LabelSet
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Instance, Maybe, Owner, Pid, Process, Snapshot, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.goldens import check_golden
from tests.metrics.sessions_scene import GIB, first_node, second_node


def exposition(snapshot: Snapshot, family: str = "sessions") -> bytes:
    return encode_text(load_family(family).build(Settings()).to_families(snapshot))


def values(snapshot: Snapshot, name: str, family: str = "sessions") -> dict[tuple[str, ...], float]:
    found = {}
    for metric in text_string_to_metric_families(exposition(snapshot, family).decode()):
        for sample in metric.samples:
            if sample.name == name:
                found[tuple(sample.labels.values())] = sample.value
    return found


def test_the_whole_text_of_two_nodes() -> None:
    check_golden(Path("sessions/first_node.prom"), exposition(first_node()))
    check_golden(Path("sessions/second_node.prom"), exposition(second_node()))


def test_unknown_labels_are_there_and_empty_in_the_order_users_know() -> None:
    text = exposition(second_node()).decode()
    bare = (
        'gpu_process_info{gpu="0",pid="555",command="evil\\"name\\\\\\n",pod="",namespace="",container="",'
        'status="active",gpu_memory="1024MiB"} 1\n'
    )
    assert bare in text


def test_idle_gpus_and_instances_count_0_and_a_split_gpu_does_not_count() -> None:
    counts = values(first_node(), "gpu_session_count")
    assert counts == {("0_7_0",): 1, ("0_12_0",): 0, ("1",): 2, ("2",): 0}
    assert values(first_node(), "gpu_total_sessions") == {(): sum(counts.values())}


def test_a_split_gpu_without_instances_has_no_count() -> None:
    split = make_device(uuid=Uuid("GPU-0"), index=0, mig_enabled=1.0)
    snapshot = Snapshot(node="n", taken_at=0.0, devices=(split,), processes=())
    assert values(snapshot, "gpu_session_count") == {}
    assert values(snapshot, "gpu_total_sessions") == {(): 0}


def test_a_process_on_two_gpus_counts_twice() -> None:
    devices = tuple(make_device(uuid=Uuid(f"GPU-{n}"), index=n) for n in range(2))
    processes = tuple(Process(pid=Pid(9), gpu_uuid=device.uuid) for device in devices)
    snapshot = Snapshot(node="n", taken_at=0.0, devices=devices, processes=processes)
    assert values(snapshot, "gpu_total_sessions") == {(): 2}


def test_percentages_are_of_the_gpu_or_the_instance() -> None:
    occupied = values(first_node(), "gpu_process_memory_utilization")
    assert {key[:2]: value for key, value in occupied.items()} == {
        ("0_7_0", "100"): 40,
        ("1", "101"): 20,
        ("1", "102"): 2.5,
    }
    busy = values(first_node(), "gpu_process_utilization")
    assert {key[:2]: value for key, value in busy.items()} == {("1", "101"): 60, ("1", "102"): 25}


def test_unknown_processes_have_no_samples() -> None:
    snapshot = replace(first_node(), processes=ABSENT)
    assert exposition(snapshot) == b""


def crowd(count: int, instance: Instance | None = None) -> Snapshot:
    device = make_device(uuid=Uuid("GPU-0"), index=0, memory_total_bytes=80 * GIB)
    processes = tuple(
        Process(pid=Pid(n), gpu_uuid=device.uuid, memory_bytes=float(n), owner=Owner(user=f"u{n}"))
        for n in range(1, count + 1)
    )
    return Snapshot(node="n", taken_at=0.0, devices=(device,), processes=processes)


def test_the_64_largest_have_series_and_the_rest_is_put_together() -> None:
    info = values(crowd(1000), "gpu_process_info")
    assert len(info) == 65
    (rest,) = [value for key, value in info.items() if key[1] == "other"]
    assert rest == 936
    assert values(crowd(1000), "gpu_session_count") == {("0",): 1000}
    memory = values(crowd(1000), "gpuscope_process_memory_bytes", "native")
    assert len(memory) == 65
    assert sum(memory.values()) == 1000 * 1001 / 2, "nothing is lost"
    shown = {int(key[2]) for key in memory if key[2] != "other"}
    assert shown == set(range(937, 1001))


def count_labels() -> int:
    """The label sets that somebody keeps."""
    gc.collect()
    return sum(type(one) is LabelSet for one in gc.get_objects())


def test_live_series_and_kept_labels_stay_flat_while_processes_come_and_go() -> None:
    builder = load_family("native").build(Settings())
    template = crowd(1).devices
    kept = []
    for round_number in range(50):
        processes = tuple(
            Process(pid=Pid(100 * round_number + n), gpu_uuid=template[0].uuid, memory_bytes=1.0)
            for n in range(500)
        )
        snapshot = Snapshot(node="n", taken_at=0.0, devices=template, processes=processes)
        kept.append(len(encode_text(builder.to_families(snapshot)).splitlines()))
        if round_number == 1:
            labels_at_first = count_labels()
    assert max(kept) - min(kept) <= 2
    assert count_labels() <= labels_at_first + 10


def test_hostile_names_survive_the_way_to_a_parser() -> None:
    name = 'a"b\\c\nd{}=,\u202e\U0001f4a9'
    owner = Owner(user=name, pod=name, namespace=name, container=name, job=name)
    device = make_device(uuid=Uuid("GPU-0"), index=0, memory_total_bytes=GIB)
    process = Process(
        pid=Pid(1), gpu_uuid=device.uuid, command=name, owner=owner, memory_bytes=1.0, sm_ratio=0.5
    )
    snapshot = Snapshot(node="n", taken_at=0.0, devices=(device,), processes=(process,))
    for family, metric in (("sessions", "gpu_process_info"), ("native", "gpuscope_process_memory_bytes")):
        (labels,) = values(snapshot, metric, family)
        assert labels.count(name) >= 4


@pytest.mark.parametrize(("known", "expected"), [((), {("ml", "a"): 1.0}), (ABSENT, {})])
def test_a_pod_without_labels_has_a_series_if_that_is_known(
    known: Maybe[tuple[tuple[str, str], ...]], expected: dict[tuple[str, ...], float]
) -> None:
    owner = Owner(namespace="ml", pod="a", pod_labels=known)
    device = make_device(uuid=Uuid("GPU-0"), index=0)
    process = Process(pid=Pid(1), gpu_uuid=device.uuid, owner=owner)
    snapshot = Snapshot(node="n", taken_at=0.0, devices=(device,), processes=(process,))
    assert values(snapshot, "gpuscope_pod_labels", "native") == expected


def test_further_labels_of_a_process() -> None:
    owner = Owner(
        group="ml",
        container_id="f" * 64,
        image="img:1",
        pod_uid="u",
        pod_labels=(("app.io/name", "x"), ("app.io-name", "twin")),
        job_step="0",
        job_array="9_1",
        job_account="physics",
        job_partition="gpu",
    )
    device = make_device(uuid=Uuid("GPU-0"), index=0)
    process = Process(pid=Pid(1), gpu_uuid=device.uuid, owner=owner, program="u/train")
    snapshot = Snapshot(node="n", taken_at=0.0, devices=(device,), processes=(process,))
    text = exposition(snapshot, "native").decode()
    assert (
        f'gpuscope_process_info{{gpu="0",uuid="GPU-0",pid="1",group="ml",container_id="{"f" * 64}",'
        'image="img:1",pod_uid="u",job_step="0",job_array="9_1",job_account="physics",job_partition="gpu",'
        'program="u/train",label_app_io_name="x"} 1\n'
    ) in text
