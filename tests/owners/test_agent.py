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

from tests.fake_nvml.driver import FakeDriver, Process
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
