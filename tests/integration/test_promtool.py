"""`promtool check metrics`: no lints for native; for other families only lints of the imitated exporters'
names."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import pytest

from tests.engines import engine
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.integration.expositions import FAMILIES, of_demo, of_driver

__all__ = ["driver"]

CAMEL_CASE_LABELS = "label names should be written in 'snake_case' not 'camelCase'"
NO_TOTAL = 'counter metrics should have "_total" suffix'
TYPE_IN_NAME = "metric name should not include type 'counter'"
COUNT_SUFFIX = 'non-histogram and non-summary metrics should not have "_count" suffix'
TOTAL_GAUGE = 'non-counter metrics should not have "_total" suffix'

# By family: the lint, and the metrics for which it is allowed.
KNOWN: Mapping[str, Mapping[str, str]] = {
    "native": {},
    "host": {"metric names should be written in 'snake_case' not 'camelCase'": r"node_memory_\w+"},
    "dcgm": {CAMEL_CASE_LABELS: r"DCGM_\w+", NO_TOTAL: r"DCGM_\w+", TYPE_IN_NAME: r"DCGM_\w+_COUNTER"},
    "dcgm_legacy": {
        NO_TOTAL: r"dcgm_\w+(_violation|_counter|_throughput|_consumption)",
        TYPE_IN_NAME: r"dcgm_\w+_counter",
    },
    "nvidia_smi": {
        COUNT_SUFFIX: r"nvidia_smi_(count|encoder_stats_session_count)",
        TOTAL_GAUGE: r"nvidia_smi_ecc_errors_\w+_total",
    },
    "sessions": {COUNT_SUFFIX: "gpu_session_count"},
}


def unknown_lints(family: str, text: str) -> list[str]:
    command = [str(engine("promtool")), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: lints only
    lints = [line.partition(" ") for line in (done.stdout + done.stderr).splitlines() if line]
    return [
        f"{name} {lint}" for name, _, lint in lints if not re.fullmatch(KNOWN[family].get(lint, "(?!)"), name)
    ]


@pytest.mark.engine("promtool")
@pytest.mark.parametrize("family", FAMILIES)
def test_simulated_fleet(family: str) -> None:
    text = of_demo(family)
    assert text.count("# TYPE") > 3
    assert unknown_lints(family, text) == []


@pytest.mark.engine("promtool")
@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_nvml(driver: FakeDriver, family: str) -> None:
    driver.gpus(2)
    driver.mig(1, [Mig(gi=7)])
    driver.processes(0, [Process(1, name="train.py"), Process(2, name='a"b\n')])
    assert unknown_lints(family, of_driver(driver, family)) == []
