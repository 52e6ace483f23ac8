"""An XID that the driver reports and the kernel logs is one error."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.clock import SystemClock
from gpuscope.collect.collector import Collector, Planned
from gpuscope.collect.runner import Runner
from gpuscope.collect.xid_ledger import XidLedger
from gpuscope.exposition.text import encode_text
from gpuscope.metrics.families import load_family
from gpuscope.readings import ABSENT, Snapshot
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec
from gpuscope.sources.kernel_log import KernelLog
from gpuscope.sources.kernel_log.kmsg import KmsgReader
from gpuscope.sources.nvml.nvml_source import NvmlSource
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import to_series

__all__ = ["driver"]


class FakeKmsg:
    """A kernel log: each read is one record, and whoever opens it begins with the oldest."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def write(self, text: str) -> None:
        microseconds = int(time.monotonic() * 1e6)
        self.records.append(f"3,{len(self.records)},{microseconds},-;{text}\n".encode())

    def open(self) -> KmsgReader:
        place = iter(range(len(self.records) + 1_000_000))
        waiting: list[int] = []

        def read(descriptor: int, most: int) -> bytes:
            number = waiting.pop() if waiting else next(place)
            if number >= len(self.records):
                waiting.append(number)
                raise BlockingIOError
            return self.records[number]

        return KmsgReader(os.open(os.devnull, os.O_RDONLY), read)


class Machine:
    """The fake driver and a kernel log, read by the real sources into the real ledger."""

    def __init__(self, driver: FakeDriver, folder: Path) -> None:
        driver.attach()
        self.driver = driver
        self._kmsg = FakeKmsg()
        self._folder = folder
        self._runners: list[Runner] = []
        self._collector: Collector | None = None

    def start_agent(self) -> None:
        specs = (
            SourceSpec(name="nvml", summary="", open=lambda settings: NvmlSource(self._folder / "none")),
            SourceSpec(name="kernel-log", summary="", open=lambda settings: KernelLog(self._kmsg.open())),
        )
        self._runners = [Runner(spec, Settings(), SystemClock()) for spec in specs]
        self._collector = Collector(
            [Planned(runner) for runner in self._runners],
            node="n",
            interval=1.0,
            clock=SystemClock(),
            ledger=XidLedger(self._folder / "xids.json"),
        )
        self._bus_ids = [device.pci_bus_id for device in self._cycle().devices]

    def stop_agent(self) -> None:
        for runner in self._runners:
            runner.stop()
            runner.run()

    def _cycle(self) -> Snapshot:
        assert self._collector is not None
        for runner in self._runners:
            runner.cycle()
        return self._collector.compose()

    def kernel_logs(self, gpu: int, xid: int) -> None:
        bus_id = self._bus_ids[gpu]
        assert bus_id is not ABSENT
        # The kernel writes a domain of four digits and no function.
        self._kmsg.write(f"NVRM: Xid (PCI:{bus_id[4:-2]}): {xid}, pid=4242, name=train.py, Ch 00000008")

    def totals(self) -> dict[tuple[int, int], float]:
        """Errors by GPU and code, as they stand in the text."""
        families = load_family("native").build(Settings()).to_families(self._cycle())
        found = {}
        for name, value in to_series(encode_text(families).decode()).items():
            if match := re.match(r'gpuscope_gpu_xid_errors_total\{gpu="(\d+)".*xid="(\d+)"', name):
                found[int(match[1]), int(match[2])] = value
        return found


@pytest.fixture
def machine(driver: FakeDriver, tmp_path: Path) -> Iterator[Machine]:
    driver.gpus(2)
    machine = Machine(driver, tmp_path)
    machine.start_agent()
    yield machine
    machine.stop_agent()


def test_reported_by_the_driver_and_by_the_kernel_is_one_error(machine: Machine) -> None:
    assert machine.totals() == {}
    machine.driver.xid(0, 31)
    machine.kernel_logs(0, 31)
    assert machine.totals() == {(0, 31): 1}
    assert machine.totals() == {(0, 31): 1}, "nor is it counted again in the next cycle"


def test_whichever_comes_first(machine: Machine) -> None:
    machine.kernel_logs(1, 94)
    assert machine.totals() == {(1, 94): 1}
    machine.driver.xid(1, 94)
    assert machine.totals() == {(1, 94): 1}


def test_two_errors_are_two_and_codes_and_gpus_are_told_apart(machine: Machine) -> None:
    for _ in range(2):
        machine.driver.xid(0, 13)
        machine.kernel_logs(0, 13)
    machine.driver.xid(1, 13)
    machine.kernel_logs(0, 79)
    assert machine.totals() == {(0, 13): 2, (1, 13): 1, (0, 79): 1}


def test_a_restarted_agent_neither_forgets_nor_counts_again(machine: Machine) -> None:
    machine.driver.xid(0, 31)
    machine.kernel_logs(0, 31)
    assert machine.totals() == {(0, 31): 1}
    machine.stop_agent()
    machine.kernel_logs(1, 48)  # while it was down
    machine.start_agent()
    assert machine.totals() == {(0, 31): 1, (1, 48): 1}
