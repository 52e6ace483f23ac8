"""An XID that the driver reports and the kernel logs is one error."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.families import load_family
from gpuscope.agent.sources.kernel_log import KernelLog
from gpuscope.agent.sources.kernel_log.log_readers import KmsgReader
from gpuscope.base.clock import SystemClock
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.source import SourceSpec
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import to_series

__all__ = ["driver"]


class FakeKmsg:
    """A kernel log: each read returns one record; a new reader starts with the oldest."""

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
    """The fake driver and a kernel log, read by the real sources."""

    def __init__(self, driver: FakeDriver, folder: Path) -> None:
        driver.attach()
        self.driver = driver
        self._kmsg = FakeKmsg()
        self._folder = folder
        self._workers: list[SourceWorker] = []
        self._collector: Collector | None = None

    def start_agent(self) -> None:
        specs = (
            SourceSpec(name="nvml", summary="", open=lambda settings: NvmlSource(self._folder / "none")),
            SourceSpec(name="kernel-log", summary="", open=lambda settings: KernelLog(self._kmsg.open())),
        )
        self._workers = [SourceWorker(spec, Settings(), SystemClock()) for spec in specs]
        self._collector = Collector(
            [PlannedSource(worker) for worker in self._workers],
            node="n",
            interval=1.0,
            clock=SystemClock(),
            ledger=ErrorLedger(self._folder / "xids.json"),
        )
        self._bus_ids = [device.pci_bus_id for device in self._cycle().devices]

    def stop_agent(self) -> None:
        for worker in self._workers:
            worker.stop()
            worker.run()

    def _cycle(self) -> Snapshot:
        assert self._collector is not None
        for worker in self._workers:
            worker.read_once()
        return self._collector.compose()

    def kernel_logs(self, gpu: int, xid: int) -> None:
        bus_id = self._bus_ids[gpu]
        assert bus_id is not ABSENT
        # The kernel writes the PCI domain with four digits and no function.
        self._kmsg.write(f"NVRM: Xid (PCI:{bus_id[4:-2]}): {xid}, pid=4242, name=train.py, Ch 00000008")

    def totals(self) -> dict[tuple[int, int], float]:
        """Return the errors by GPU and code in the exposition."""
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


def test_driver_and_kernel_may_report_in_any_order(machine: Machine) -> None:
    machine.kernel_logs(1, 94)
    assert machine.totals() == {(1, 94): 1}
    machine.driver.xid(1, 94)
    assert machine.totals() == {(1, 94): 1}


def test_errors_are_counted_by_code_and_gpu(machine: Machine) -> None:
    for _ in range(2):
        machine.driver.xid(0, 13)
        machine.kernel_logs(0, 13)
    machine.driver.xid(1, 13)
    machine.kernel_logs(0, 79)
    assert machine.totals() == {(0, 13): 2, (1, 13): 1, (0, 79): 1}


def test_a_restarted_agent_counts_each_error_once(machine: Machine) -> None:
    machine.driver.xid(0, 31)
    machine.kernel_logs(0, 31)
    assert machine.totals() == {(0, 31): 1}
    machine.stop_agent()
    machine.kernel_logs(1, 48)  # while the agent was down
    machine.start_agent()
    assert machine.totals() == {(0, 31): 1, (1, 48): 1}
