"""The benchmark tools: they find the benchmarks and measure correctly."""

from __future__ import annotations

import os
import time
from dataclasses import fields, replace
from typing import Any

import pytest

from benchmarks.__main__ import find_benchmarks, main
from benchmarks.agent_bench import Cost
from benchmarks.driver_time import driver_time
from benchmarks.measure import cpu_seconds, family_of, rss_bytes, sample_count, table
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import running_agent

__all__ = ["driver"]


def test_every_module_with_a_main_is_a_benchmark() -> None:
    found = find_benchmarks()
    assert found["agent"] == "benchmarks.agent_bench"
    assert "measure" not in found


def test_an_unknown_name_is_exit_2_and_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nope"]) == 2
    assert "agent" in capsys.readouterr().err


def test_cpu_is_counted_finer_than_the_kernels_ticks() -> None:
    before = cpu_seconds(os.getpid())
    deadline = time.thread_time() + 0.003
    while time.thread_time() < deadline:
        pass
    assert 0.003 <= cpu_seconds(os.getpid()) - before < 5


def test_memory_and_children_of_a_running_agent() -> None:
    with running_agent("--source", "demo") as agent:
        assert agent.process.pid in family_of(os.getpid())
        assert 10 << 20 < rss_bytes(agent.process.pid) < 200 << 20
    assert agent.process.pid not in family_of(os.getpid())


def test_the_best_of_two_runs_has_minimum_time_and_maximum_memory() -> None:
    ones: list[Any] = [1.0] * len(fields(Cost))
    fast = replace(Cost(*ones), rss=5)
    slow = replace(Cost(*(2 * one for one in ones)), rss=7)
    best = slow.best(fast)
    assert (best.p50, best.start, best.rss) == (1.0, 1.0, 7)


def test_library_time_is_measured_with_the_calls_of_a_reading(driver: FakeDriver) -> None:
    driver.gpus(1)
    quick = driver_time(driver, rounds=3)
    assert quick.calls_per_second > 10
    assert quick.cpu_seconds_per_second > 0
    driver.gpus(2)
    assert driver_time(driver, rounds=3).calls_per_second > 1.5 * quick.calls_per_second


def test_tables_are_aligned_and_samples_are_counted() -> None:
    assert table(["a", "long head"], [["1", "2"]]).splitlines() == [
        "| a | long head |",
        "|---|-----------|",
        "| 1 | 2         |",
    ]
    assert sample_count(b'# HELP a b\n# TYPE a gauge\na 1\nb{c="d"} 2\n') == 2
