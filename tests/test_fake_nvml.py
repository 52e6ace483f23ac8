"""The fake driver library as other people's programs see it: the binding finds every symbol, and
gpustat, nvitop and nvitop-exporter report the numbers that were set."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.fake_nvml.build import header, library, stub_names
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.ports import free_port
from tests.waiting import wait_for

__all__ = ["driver"]


def script(name: str) -> str:
    """A client's console script, from the environment the tests run in."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    return str(path)


def run(driver: FakeDriver, name: str, *arguments: str) -> str:
    command = [script(name), *arguments]
    environment = {**os.environ, **driver.env, "COLUMNS": "160", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def make_busy(driver: FakeDriver) -> None:
    driver.set(3, ago=60, util=87, util_memory=33, power_mw=512_000)
    driver.set(3, temperature=61, memory_used=20 << 30, clock_sm=1755)
    driver.processes(3, [Process(os.getpid(), memory=19 << 30, name="train")])


def test_every_function_the_binding_looks_up_exists(driver: FakeDriver) -> None:
    pynvml = pytest.importorskip("pynvml")
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    loaded = ctypes.CDLL(str(library()))
    assert len(names) > 300
    assert sorted(name for name in names if not hasattr(loaded, name)) == []


def test_stubs_are_what_the_header_has_and_the_sources_have_not() -> None:
    declared = "nvmlReturn_t DECLDIR nvmlA(void);\nnvmlReturn_t DECLDIR nvmlB (int x);\nDECLDIR nvmlC(int);"
    defined = "nvmlReturn_t nvmlA(void)\n{\nGETTER(nvmlC, unsigned int, K_x)"
    assert stub_names(declared, defined) == ["nvmlB"]


def test_a_stub_answers_not_supported(driver: FakeDriver) -> None:
    loaded = driver.attach()
    assert "nvmlDeviceSetEccMode" in stub_names(header().read_text(), "")
    assert loaded.nvmlInit_v2() == 0
    assert loaded.nvmlDeviceSetEccMode(None, 0) == 3
    assert loaded.nvmlShutdown() == 0
    assert loaded.nvmlDeviceSetEccMode(None, 0) == 1


def test_gpustat_reports_what_was_set(driver: FakeDriver) -> None:
    make_busy(driver)
    gpus = json.loads(run(driver, "gpustat", "--json"))["gpus"]
    assert len(gpus) == 8
    busy = gpus[3]
    assert busy["uuid"] == driver.cards[3].uuid
    assert (busy["utilization.gpu"], busy["power.draw"], busy["temperature.gpu"]) == (87, 512, 61)
    assert (busy["memory.used"], busy["memory.total"]) == (20480, 81559)
    assert [(row["pid"], row["gpu_memory_usage"]) for row in busy["processes"]] == [(os.getpid(), 19456)]
    assert {gpu["utilization.gpu"] for gpu in gpus[:3]} == {0}


def test_gpustat_leaves_out_what_a_geforce_lacks(driver: FakeDriver) -> None:
    driver.gpus(1, model="RTX 4090")
    driver.set(0, fan_percent=47)
    (gpu,) = json.loads(run(driver, "gpustat", "--json"))["gpus"]
    assert (gpu["name"], gpu["fan.speed"]) == ("NVIDIA GeForce RTX 4090", 47)


def test_nvitop_reports_what_was_set(driver: FakeDriver) -> None:
    make_busy(driver)
    text = run(driver, "nvitop", "-1", "--ascii")
    assert "580.95.05" in text
    assert re.search(r"61C +P0 +512W / 700W \| +20\.00GiB / 79\.65GiB \| +87%", text)
    assert re.search(rf"\| +3 +{os.getpid()} C +\S+ +(?:19456MiB|19\.00GiB) +87 +33 ", text)
    assert len(re.findall(r"71W / 700W", text)) == 7


def test_nvitop_shows_mig_instances(driver: FakeDriver) -> None:
    driver.mig(0, [Mig(gi=1, profile="3g.40gb", memory_used=7 << 30), Mig(gi=7, profile="1g.10gb")])
    text = run(driver, "nvitop", "-1", "--ascii")
    assert re.search(r"0:0 +3g\.40gb @ GI/CI: 1/0 \| +7168MiB /", text)
    assert re.search(r"0:1 +1g\.10gb @ GI/CI: 7/0 \| +0B /", text)


def test_nvitop_exporter_reports_what_was_set(driver: FakeDriver) -> None:
    make_busy(driver)
    port = free_port()  # the exporter cannot tell which port it got when asked for any
    command = [script("nvitop-exporter"), "--bind-address", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, **driver.env}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as exporter:
        try:
            text = scrape(exporter, f"http://127.0.0.1:{port}/metrics")
        finally:
            exporter.terminate()
    assert value_of(text, "gpu_utilization_Percentage", 'index="3"') == 87
    assert value_of(text, "gpu_utilization_Percentage", 'index="2"') == 0
    assert value_of(text, "gpu_power_usage_W", 'index="3"') == 512
    assert value_of(text, "gpu_temperature_C", 'index="3"') == 61
    assert value_of(text, "gpu_clock_sm_MHz", 'index="3"') == 1755
    assert value_of(text, "gpu_memory_used_MiB", 'index="3"') == 20480
    mine = f'pid="{os.getpid()}"'
    assert value_of(text, "process_gpu_memory_MiB", mine) == 19 * 1024
    assert value_of(text, "process_gpu_sm_utilization_Percentage", mine) == 87


def scrape(exporter: subprocess.Popen[bytes], url: str) -> str:
    """The first exposition that has the last family of a whole collection in it."""

    def look() -> str:
        assert exporter.poll() is None, f"nvitop-exporter ended with {exporter.returncode}"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:
            text: str = response.read().decode()
            return text if "process_gpu_sm_utilization_Percentage{" in text else ""
        return ""

    return wait_for(look, "a whole collection of nvitop-exporter")


def value_of(text: str, name: str, label: str) -> float:
    (value,) = re.findall(rf"^{name}\{{[^}}]*{label}[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return float(value)
