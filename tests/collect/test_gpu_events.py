"""A GPU's loss, its return and its XIDs: one line in the log and one event each."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.gpu_events import MAX_EVENTS, MAX_LINES, SECONDS_PER_LINE, GpuEvents
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, Reading, Snapshot, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from gpuscope.vendors.nvidia.xids import XIDS
from tests.fakes import FakeClock, FakeSource, spec_of, xid_event

START = 1_700_000_000.0
UUID = Uuid("GPU-11111111-2222-3333-4444-555555555555")
ADDRESS = "00000000:8D:00.0"
GPU = make_device(uuid=UUID, index=3, pci_bus_id=ADDRESS, model="NVIDIA H100", serial="1", vbios_version="96")
LOST = make_device(uuid=UUID, index=3, pci_bus_id=ADDRESS, lost=True)
WHO = f"GPU 3 ({UUID}, PCI address {ADDRESS})"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == "gpuscope.gpu"
    ]


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuscope.gpu")


class Machine:
    """A collector on one source; `see` is a cycle in which the source answers this."""

    def __init__(self, state: Path | None = None) -> None:
        self.clock = FakeClock(START)
        self._answer = Reading()
        worker = SourceWorker(spec_of(FakeSource(lambda: self._answer), "nvml"), Settings(), self.clock)
        ledger = ErrorLedger(state, boot_id="boot")
        self._worker = worker
        self._collector = Collector(
            [PlannedSource(worker)],
            node="n",
            interval=1.0,
            clock=self.clock,
            ledger=ledger,
        )

    def see(self, *devices: Device, xids: tuple[ErrorEvent, ...] = (), seconds: float = 1.0) -> Snapshot:
        self.clock.pass_seconds(seconds)
        self._answer = Reading(devices=devices, errors=xids)
        self._worker.read_once()
        return self._collector.compose()


def test_loss_and_return_are_one_line_and_one_event_each(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for devices in ((GPU,), (LOST,), (LOST,), (LOST,), (GPU,), (GPU,)):
        snapshot = machine.see(*devices)
    assert lines(caplog) == [
        ("WARNING", f"{WHO} is lost: it does not answer any more"),
        ("INFO", f"{WHO} is back, 3 s after it was lost"),
    ]
    lost, returned = snapshot.events
    assert (lost.kind, lost.at, lost.gpu_uuid, lost.index, lost.pci_bus_id, lost.code) == (
        "lost", START + 2, UUID, 3, ADDRESS, ABSENT,
    )  # fmt: skip
    assert (returned.kind, returned.at) == ("returned", START + 5)
    assert [event.text for event in snapshot.events] == [text for _, text in lines(caplog)]


def test_an_xid_is_one_line_whichever_way_it_came(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    at = START + 2
    reported = (
        xid_event(79, at=at, reporter="nvml", gpu_uuid=UUID),
        xid_event(79, at=at, reporter="kernel_log", pci_bus_id="0000:8d:00", log_microseconds=1),
    )
    machine.see(GPU)
    snapshot = machine.see(LOST, xids=reported)
    assert lines(caplog) == [
        ("WARNING", f"XID 79 on {WHO}: The GPU does not answer on PCIe any more."),
        ("WARNING", f"{WHO} is lost: it does not answer any more"),
    ]
    assert [(event.kind, event.code) for event in snapshot.events] == [("xid", "79"), ("lost", ABSENT)]
    assert machine.see(LOST).events == snapshot.events


def test_an_xid_of_a_gpu_that_was_never_seen_names_its_address(caplog: pytest.LogCaptureFixture) -> None:
    event = xid_event(48, at=START, reporter="kernel_log", pci_bus_id="0000:5d:00", log_microseconds=1)
    snapshot = Machine().see(xids=(event,))
    assert lines(caplog) == [
        ("WARNING", f"XID 48 on the GPU at PCI address 00000000:5D:00.0: {XIDS['48'].meaning}")
    ]
    (told,) = snapshot.events
    assert (told.gpu_uuid, told.index, told.pci_bus_id) == (ABSENT, ABSENT, "00000000:5D:00.0")


def test_xids_of_before_the_start_are_counted_but_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    old = xid_event(31, at=START - 60, reporter="kernel_log", pci_bus_id=ADDRESS, log_microseconds=1)
    snapshot = Machine().see(GPU, xids=(old,))
    assert [(int(total.code), total.count) for total in snapshot.errors] == [(31, 1)]
    assert snapshot.events == ()
    assert lines(caplog) == []


def test_a_gpu_lost_from_the_start_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.see(LOST)
    machine.see(LOST)
    assert len(lines(caplog)) == 1


def test_a_storm_of_xids_writes_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    events = GpuEvents(START)
    storm = [xid_event(13, at=START, reporter="nvml", gpu_uuid=UUID)] * 1000
    latest = events.advance([GPU], storm, START)
    assert len(lines(caplog)) == MAX_LINES
    assert len(latest) == MAX_EVENTS
    events.advance([GPU], storm[:1], START + SECONDS_PER_LINE)
    assert lines(caplog)[-1][1].endswith(f"({1000 - MAX_LINES} lines about it were left out)")


def test_every_gpu_has_its_own_allowance(caplog: pytest.LogCaptureFixture) -> None:
    events = GpuEvents(START)
    other = make_device(uuid=Uuid("GPU-2"), index=4)
    events.advance([GPU, other], [xid_event(13, at=START, reporter="nvml", gpu_uuid=UUID)] * 100, START)
    events.advance([GPU, other], [xid_event(79, at=START, reporter="nvml", gpu_uuid=other.uuid)], START)
    assert lines(caplog)[-1][1] == "XID 79 on GPU 4 (GPU-2): The GPU does not answer on PCIe any more."


def test_a_lost_gpu_that_its_source_forgot_keeps_its_info_series() -> None:
    machine = Machine()
    before = info(machine.see(GPU))
    assert 'model="NVIDIA H100"' in before
    forgotten = make_device(uuid=UUID, index=3, lost=True, dcgm_fields={0: 0})
    for _ in range(2):
        snapshot = machine.see(forgotten)
        assert info(snapshot) == before
    (device,) = snapshot.devices
    assert (device.serial, device.vbios_version, device.pci_bus_id) == ("1", "96", ADDRESS)
    assert device.power_watts is ABSENT


def test_a_gpu_that_answers_is_never_given_what_it_was() -> None:
    machine = Machine()
    machine.see(GPU)
    unsure = make_device(uuid=UUID, index=3, pci_bus_id=ADDRESS, power_watts=1.0)
    assert machine.see(unsure).devices == (unsure,)


def info(snapshot: Snapshot) -> str:
    text = encode_text(NativeBuilder().to_families(snapshot)).decode()
    return next(line for line in text.splitlines() if line.startswith("gpuscope_gpu_info{"))
