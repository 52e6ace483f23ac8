"""A real agent on the fake driver: real processes, a real kubelet protocol, the metrics and the file."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import Series, running_agent
from tests.owners.fake_kubelet import container, devices, pod, running_kubelet

__all__ = ["driver"]

GIB = 1 << 30


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process of our own that the driver will say it runs."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def with_labels(series: Series, metric: str, **labels: str) -> dict[str, float]:
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return {
        name: value
        for name, value in series.items()
        if name.startswith(metric + "{") and all(label in name for label in wanted)
    }


def gpu_uuid(series: Series, gpu: int) -> str:
    (name,) = with_labels(series, "gpuscope_gpu_up", gpu=str(gpu))
    found = re.search(r'uuid="([^"]+)"', name)
    assert found
    return found[1]


def test_the_driver_s_processes_with_their_real_owner(driver: FakeDriver, sleeper: int, tmp_path: Path) -> None:
    driver.gpus(2)
    driver.processes(0, [Process(sleeper, name="sleep", memory=GIB), Process(2**22 + 7, name="gone")])
    socket = tmp_path / "pr/kubelet.sock"
    with running_kubelet(socket) as kubelet, running_agent(
        "--source", "nvml", "--families", "native,sessions", "--kubelet-socket", str(socket),
        "--kubelet-interval", "100ms", env=driver.env,
    ) as agent:  # fmt: skip
        series = agent.until(
            lambda series: bool(with_labels(series, "gpuscope_process_memory_bytes", pid=str(sleeper)))
        )
        uuid = gpu_uuid(series, 1)
        kubelet.answer = lambda context: pod("ml", "a", container("c", devices("nvidia.com/gpu", uuid)))
        series = agent.until(lambda series: bool(with_labels(series, "gpuscope_allocation_used", pod="a")))
    user = pwd.getpwuid(os.getuid()).pw_name
    (name,) = with_labels(series, "gpuscope_process_memory_bytes", pid=str(sleeper))
    assert f'user="{user}"' in name
    (started,) = with_labels(series, "gpuscope_process_start_time_seconds", pid=str(sleeper)).values()
    assert abs(started - time.time()) < 3600
    assert with_labels(series, "gpuscope_process_start_time_seconds", pid=str(2**22 + 7)) == {}
    assert list(with_labels(series, "gpuscope_owner_memory_bytes", kind="user", name=user).values()) == [GIB]
    assert series['gpu_session_count{gpu="0"}'] == 2
    assert series['gpu_session_count{gpu="1"}'] == 0
    (unused,) = with_labels(series, "gpuscope_allocation_used", gpu="1", namespace="ml", pod="a").values()
    assert unused == 0
    assert series['gpuscope_owner_lookup_failures_total{part="process"}'] > 0
    assert series['gpuscope_source_up{source="kubelet"}'] == 1


def test_the_session_file_within_64_mib_of_memory(driver: FakeDriver, sleeper: int, tmp_path: Path) -> None:
    driver.gpus(8)
    for gpu in range(8):
        driver.processes(gpu, [Process(sleeper, name="sleep", memory=GIB)])
    output = tmp_path / "gpu_sessions.prom"
    # The peak of this program alone: the resource module's would count the parent it was forked from.
    measured = (
        "import re, sys; from gpuscope.cli import main; code = main(sys.argv[1:]); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measured, "textfile", "--source", "nvml", "--output", str(output), "--once"],
        capture_output=True,
        text=True,
        env={**os.environ, **driver.env},
    )
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert text.count(f'pid="{sleeper}"') == 8 * 3
    assert "gpu_total_sessions 8\n" in text
    assert int(done.stdout) < 64 * 1024, f"{done.stdout} KiB resident"


def write_sessions(driver: FakeDriver, folder: Path, *flags: str) -> str:
    output = folder / "gpu_sessions.prom"
    command = [
        sys.executable,
        "-m",
        "gpuscope",
        "textfile",
        "--source",
        "nvml",
        "--output",
        str(output),
        "--once",
    ]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, env={**os.environ, **driver.env})
    assert done.returncode == 0, done.stderr
    return output.read_text()


def test_instances_go_by_the_drivers_sparse_ids(driver: FakeDriver, sleeper: int, tmp_path: Path) -> None:
    driver.gpus(2)
    driver.mig(0, [Mig(7), Mig(12)])
    driver.processes(0, [Process(sleeper, name="sleep", memory=GIB, gi=7, ci=0)])
    text = write_sessions(driver, tmp_path)
    assert (
        f'gpu_process_info{{gpu="0_7_0",pid="{sleeper}",command="sleep",pod="",namespace="",container="",'
        in text
    )
    assert 'status="unknown",gpu_memory="1024MiB"} 1\n' in text
    for line in ('{gpu="0_7_0"} 1', '{gpu="0_12_0"} 0', '{gpu="1"} 0'):
        assert f"gpu_session_count{line}\n" in text
    assert 'gpu_session_count{gpu="0"}' not in text
    assert "gpu_process_utilization{" not in text, "the driver does not tell under MIG, and that is not 0"
    (share,) = re.findall(r'gpu_process_memory_utilization\{gpu="0_7_0".*\} (\S+)', text)
    assert 9 < float(share) < 12, "of the instance's memory, not of the whole GPU's"


def test_idle_is_judged_by_the_second_it_watches(driver: FakeDriver, sleeper: int, tmp_path: Path) -> None:
    driver.gpus(2)
    driver.busy(1, 80)
    for gpu in range(2):
        driver.processes(gpu, [Process(sleeper, name="sleep")])
    text = write_sessions(driver, tmp_path)
    states = dict(re.findall(r'gpu_process_info\{gpu="(\d)".*status="(\w+)"', text))
    assert states == {"0": "idle", "1": "active"}


def test_a_prologs_files_say_whom_a_gpu_was_given_to(driver: FakeDriver, tmp_path: Path) -> None:
    driver.gpus(2)
    (tmp_path / "1").write_text("4711\n")
    flags = ("--source", "nvml", "--job-map-dir", str(tmp_path))
    with running_agent(*flags, env=driver.env) as agent:
        series = agent.until(
            lambda series: bool(with_labels(series, "gpuscope_allocation_used", slurm_job="4711"))
        )
    # Not for a moment is it some other GPU's, or nobody's, while the driver has yet to answer.
    assert list(with_labels(series, "gpuscope_allocation_used", gpu="1", slurm_job="4711").values()) == [0]
    assert series['gpuscope_owner_gpus_held{kind="job",namespace="",name="4711"}'] == 1


def test_pods_of_simulated_gpus(tmp_path: Path) -> None:
    """A kubelet whose device plugin hands out the demo's GPUs, as in a cluster made for trying things out."""
    socket = tmp_path / "pr/kubelet.sock"
    with running_kubelet(socket) as kubelet, running_agent(
        "--source", "demo", "--demo-gpus", "2", "--families", "native,sessions",
        "--kubelet-socket", str(socket), "--kubelet-interval", "100ms",
    ) as agent:  # fmt: skip
        series = agent.until(lambda series: bool(with_labels(series, "gpuscope_gpu_up", gpu="1")))
        uuid = gpu_uuid(series, 1)
        kubelet.answer = lambda context: pod("ml", "a", container("c", devices("nvidia.com/gpu", uuid)))
        series = agent.until(lambda series: bool(with_labels(series, "gpuscope_allocation_used", pod="a")))
    assert len(with_labels(series, "gpuscope_allocation_used", gpu="1", namespace="ml", pod="a")) == 1


def test_dcgm_exporters_pod_labels_on_simulated_gpus(tmp_path: Path) -> None:
    socket = tmp_path / "pr/kubelet.sock"
    with running_kubelet(socket) as kubelet, running_agent(
        "--source", "demo", "--demo-gpus", "1", "--kubelet-interval", "100ms", "--as", "dcgm-exporter", "-k",
        "--pod-resources-kubelet-socket", str(socket),
    ) as agent:  # fmt: skip
        series = agent.until(lambda series: bool(with_labels(series, "DCGM_FI_DEV_GPU_TEMP", gpu="0")))
        (name,) = with_labels(series, "DCGM_FI_DEV_GPU_TEMP", gpu="0")
        found = re.search(r'UUID="([^"]+)"', name)
        assert found
        uuid = found[1]
        kubelet.answer = lambda context: pod("ml", "a", container("c", devices("nvidia.com/gpu", uuid)))
        agent.until(lambda series: bool(with_labels(series, "DCGM_FI_DEV_GPU_TEMP", pod="a", namespace="ml")))
