"""The agent's memory stays constant while processes, instances and GPUs change."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

import pytest

from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from tests.fake_nvml.driver import FakeDriver, Mig
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import of_gpu, running_agent
from tests.integration.soak import CYCLES_PER_CHANGE, soaking

__all__ = ["driver"]

HEAP_BYTES = 64 << 20  # address space that glibc reserves for a thread's heap
ROUND = 12 * CYCLES_PER_CHANGE  # the state repeats after this many cycles


def test_memory_is_constant_over_2000_cycles(
    driver: FakeDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "gpuscope")  # pytest keeps every line, and XIDs and losses write some
    with soaking(driver, tmp_path) as soak:
        settled = soak.run(4 * ROUND)
        blocks = sys.getallocatedblocks()
        # The heap grows in steps of up to 0.8 MiB, depending on what ran in this process before.
        assert soak.run(8 * ROUND) - settled < 2 << 20
        # Python's objects show small leaks better than resident memory: one per cycle would be 1,920.
        assert sys.getallocatedblocks() - blocks < 4 * ROUND


def test_readings_and_sessions_leave_nothing_to_the_garbage_collector(
    driver: FakeDriver, tmp_path: Path
) -> None:
    driver.gpus(2)
    driver.mig(1, [Mig(gi=1)])
    driver.attach()
    gc.disable()  # garbage uses memory until the collector runs
    try:
        for _ in range(2):
            source = NvmlSource(tmp_path)
            source.read(frozenset(Tier))
            gc.collect()
            for _ in range(20):
                source.read(frozenset(Tier))
            assert gc.collect() == 0
            source.close()
            assert gc.collect() < 100  # the functions of a session are twice as many objects
    finally:
        gc.enable()


@pytest.mark.slow
def test_memory_is_constant_over_100_000_cycles(driver: FakeDriver, tmp_path: Path) -> None:
    with soaking(driver, tmp_path) as soak:
        settled = soak.run(20_000)
        assert soak.run(80_000) - settled < 2 << 20


def test_the_threads_of_an_agent_share_one_heap(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_power_watts") is not None)
        maps = Path(f"/proc/{agent.process.pid}/maps").read_text()
    assert "[heap]" in maps
    assert _thread_heaps(maps) == []


def _thread_heaps(maps: str) -> list[str]:
    """The unused rest of each heap: it ends where the next heap could start."""
    found = []
    for line in maps.splitlines():
        span, rights, *_ = line.split()
        start, end = (int(address, 16) for address in span.split("-"))
        if rights == "---p" and end % HEAP_BYTES == 0 and HEAP_BYTES // 2 < end - start < HEAP_BYTES:
            found.append(line)
    return found
