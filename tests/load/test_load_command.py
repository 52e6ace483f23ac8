"""`gpuscope load` on the fake CUDA and NVML libraries, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_cuda.build import library as cuda_library
from tests.fake_cuda.driver import FakeCuda
from tests.fake_nvml.build import Unavailable
from tests.fake_nvml.build import library as nvml_library
from tests.fake_nvml.driver import FakeDriver, Mig, Process

OUT_OF_MEMORY, LAUNCH_FAILED, INSUFFICIENT_DRIVER = 2, 719, 35


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    try:
        nvml_library()
        cuda_library()
    except Unavailable as missing:
        pytest.skip(str(missing))
    fake = FakeDriver(tmp_path / "state")
    fake.gpus(2, model="H100")
    return fake


@pytest.fixture
def cuda(driver: FakeDriver, tmp_path: Path) -> FakeCuda:
    return FakeCuda(tmp_path / "cuda", driver)


def load(cuda: FakeCuda, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", "load", *arguments]
    return subprocess.run(command, env={**os.environ, **cuda.env}, capture_output=True, text=True, check=False)


def report(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_the_monitor_shows_what_the_load_did(cuda: FakeCuda) -> None:
    done = load(cuda, "--duration", "8", "--target-util", "60", "--kind", "fp32", "--json")
    answer = report(done)
    assert done.returncode == 0, answer
    assert answer["agrees"] is True
    assert [gpu["gpu"] for gpu in answer["gpus"]] == ["0", "1"]
    for gpu in answer["gpus"]:
        # A load that waits for a core of this machine does less than 60 %, never more, and the monitor shows
        # what it did. test_duty_cycle has exact shares.
        assert 0 < gpu["busy_ratio"] < 0.65
        seen = {row["metric"]: row["seen"] for row in gpu["metrics"] if "seen" in row}
        assert seen["utilization_ratio"] == pytest.approx(gpu["busy_ratio"], abs=0.15)
        assert seen["fp32_active_ratio"] == pytest.approx(0.9 * gpu["busy_ratio"], abs=0.15)
        assert seen["tensor_active_ratio"] == 0
        assert gpu["rate"] > 1e12
    assert cuda.misuse() == []
    assert cuda.leaks() == []


def test_a_monitor_that_shows_something_else_is_caught(cuda: FakeCuda, driver: FakeDriver) -> None:
    driver.set(0, tensor=50.0)  # as if somebody else used the tensor cores
    done = load(cuda, "--duration", "7", "--kind", "memory", "--gpus", "0", "--json")
    assert done.returncode == 1
    verdicts = {row["metric"]: row["verdict"] for row in report(done)["gpus"][0]["metrics"]}
    assert verdicts["tensor_active_ratio"] == "disagrees"
    assert verdicts["dram_active_ratio"] == "agrees"


@pytest.mark.parametrize(
    ("kind", "gpus", "metrics"),
    [
        # The driver measures PCIe over 20 ms: with two loads on two cores, one that waits for a core has a gap.
        ("pcie", "0", ["pcie_bytes_per_second.tx", "profiled_pcie_bytes_per_second.rx"]),
        ("nvlink", "0,1", ["profiled_nvlink_bytes_per_second.tx"]),
    ],
)
def test_the_bytes_of_a_link_are_those_that_were_copied(
    cuda: FakeCuda, kind: str, gpus: str, metrics: list[str]
) -> None:
    # Long enough that one of these samples may be such a gap.
    answer = report(done := load(cuda, "--duration", "12", "--kind", kind, "--gpus", gpus, "--json"))
    assert done.returncode == 0, answer
    for gpu in answer["gpus"]:
        rows = {row["metric"]: row for row in gpu["metrics"]}
        assert {rows[name]["verdict"] for name in metrics} == {"agrees"}, rows
        assert rows[metrics[0]]["seen"] > 1e9
    assert cuda.misuse() == []


def test_a_link_that_carries_much_more_than_was_copied_is_caught(cuda: FakeCuda, driver: FakeDriver) -> None:
    driver.set(0, pcie_tx_kbps=30e6)  # another program copies, too
    done = load(cuda, "--duration", "7", "--kind", "pcie-tx", "--gpus", "0", "--json")
    assert done.returncode == 1
    verdicts = {row["metric"]: row["verdict"] for row in report(done)["gpus"][0]["metrics"]}
    assert verdicts["profiled_pcie_bytes_per_second.tx"] == "disagrees"


def test_the_table(cuda: FakeCuda) -> None:
    done = load(cuda, "-t 1004", "-d 2", "--no-dcgm-validation", "-i", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "half-precision matrix products on the tensor cores, 2 s on GPU 1"
    assert lines[1].split() == ["s", "GPU", "achieved", "util", "SM", "tensor", "DRAM", "W", "MHz", "°C"]
    assert "TFLOP/s" in lines[3]
    assert "  too short to compare; use --duration 10 or more" in lines


def test_a_gpu_in_use_is_refused_with_its_user(cuda: FakeCuda, driver: FakeDriver) -> None:
    driver.processes(1, [Process(os.getpid(), memory=1 << 30)])
    done = load(cuda, "--duration", "1")
    assert done.returncode == 2
    assert f"GPU 1 is in use: process {os.getpid()}" in done.stderr
    assert "--force" in done.stderr
    assert load(cuda, "--duration", "1", "--gpus", "0").returncode == 0
    assert load(cuda, "--duration", "1", "--gpus", "1", "--force").returncode == 0


def test_a_mig_instance_is_loaded_by_its_position(cuda: FakeCuda, driver: FakeDriver) -> None:
    uuids = driver.mig(1, [Mig(gi=7, profile="1g.10gb"), Mig(gi=12, profile="1g.10gb")])
    cuda.describe_devices(*uuids)
    done = load(cuda, "--duration", "1", "--gpus", "1_12_0")
    assert done.returncode == 0, done.stderr + done.stdout
    assert any(line.endswith(f"visible {uuids[1]}") for line in cuda.log())
    assert load(cuda, "--duration", "1", "--gpus", "1").returncode == 2, "a split GPU is not loaded as a whole"


@pytest.mark.parametrize(
    ("function", "code", "after", "sentence"),
    [
        ("cuMemAlloc_v2", OUT_OF_MEMORY, 0, "not enough free memory on this GPU"),
        ("cuEventSynchronize", LAUNCH_FAILED, 5, "CUDA_ERROR_LAUNCH_FAILED"),
        ("cuDevicePrimaryCtxRetain", INSUFFICIENT_DRIVER, 0, "CUDA_ERROR_INSUFFICIENT_DRIVER"),
    ],
)
def test_a_gpu_that_fails_is_named_and_the_exit_code_is_1(
    cuda: FakeCuda, function: str, code: int, after: int, sentence: str
) -> None:
    cuda.fail(function, code, after=after)
    done = load(cuda, "--duration", "2", "--gpus", "0", "--json")
    assert done.returncode == 1
    assert sentence in report(done)["gpus"][0]["error"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_leaves_nothing(cuda: FakeCuda, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "gpuscope", "load", "--duration", "600", "--gpus", "0"]
    with subprocess.Popen(
        command, env={**os.environ, **cuda.env}, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        while "FLOP/s" not in running.stdout.readline():
            pass
        running.send_signal(number)
        running.stdout.read()
        assert running.wait() == 130
    assert cuda.leaks() == []
    assert cuda.calls()["cuDevicePrimaryCtxRelease_v2"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target-util", "0"], "--target-util: '0' is not a whole number from 1 to 100"),
        (["--duration", "soon"], "--duration: 'soon'"),
        (["--gpus", "9"], "--gpus: no GPU '9'; there are 0, 1"),
        (["-t", "77"], "-t 77: no such profiling field"),
        (["-t", "1004", "--kind", "fp32"], "-t and --kind both choose the load"),
        (["--kind", "nvlink", "--gpus", "0"], "--kind nvlink needs 2 GPUs; 1 selected"),
        (["--memory", "lots"], "--memory: 'lots'"),
    ],
)
def test_wrong_values_get_one_sentence(cuda: FakeCuda, arguments: list[str], sentence: str) -> None:
    done = load(cuda, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_driver_there_is_one_sentence_and_exit_3() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "load"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
