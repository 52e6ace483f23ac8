from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.error_state import LogPosition
from gpuscope.agent.sources import kernel_log
from gpuscope.agent.sources.kernel_log import KernelLog, log_readers, open_reader
from gpuscope.agent.sources.kernel_log.log_readers import (
    DmesgReader,
    JournalReader,
    KernelLogRecord,
    KmsgReader,
    LogReader,
    parse_dmesg_line,
    parse_journal_line,
    parse_kmsg_record,
)
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, ErrorEvent, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.fakes import xid_event

XID = "NVRM: Xid (PCI:0000:8d:00): 79, pid=1, name=x, GPU has fallen off the bus."
UUID = "GPU-44ec53bd-277c-984f-fa9f-cded30fbfd5d"
GPU_LINE = f"NVRM: GPU at PCI:0000:8d:00: {UUID}"


class FakeKmsg:
    """A fake /dev/kmsg: one record per read, EAGAIN at the end, errors in between."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers: list[bytes | int] = list(answers)

    def __call__(self, descriptor: int, size: int) -> bytes:
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "")
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def record(sequence: int, text: str = XID, microseconds: int | None = None) -> bytes:
    at = sequence * 1_000_000 if microseconds is None else microseconds
    return f"3,{sequence},{at},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:8d:00.0\n".encode()


class FakeClock:
    """The machine booted at epoch second 1000."""

    def __init__(self, since_boot: float = 100.0) -> None:
        self.boot = 1000.0
        self.at = since_boot

    def now(self) -> float:
        return self.boot + self.at

    def since_boot(self) -> float:
        return self.at


def source_of(device: FakeKmsg, clock: FakeClock) -> KernelLog:
    return KernelLog(KmsgReader(-1, device), clock.now, clock.since_boot)


POSITIONS: WeakKeyDictionary[KernelLog, LogPosition] = WeakKeyDictionary()


def read(source: KernelLog) -> tuple[ErrorEvent, ...]:
    """The new events: readings repeat events, which are recognised by their position in the log."""
    position = POSITIONS.setdefault(source, LogPosition())
    new = []
    for event in source.read(frozenset(Tier)).errors:
        if not position.has_passed(event):
            position.advance(event)
            new.append(event)
    return tuple(new)


def test_an_xid_with_its_place_and_time() -> None:
    source = source_of(FakeKmsg(b"6,1,5,-;Linux version\n", record(40), b"6,41,9,-;eth0: up\n"), FakeClock())
    assert read(source) == (
        xid_event(
            79,
            at=1040.0,
            monotonic=40.0,
            reporter="kernel_log",
            pci_bus_id="00000000:8D:00.0",
            message=XID.removeprefix("NVRM: "),
            log_sequence=40,
            log_microseconds=40_000_000,
        ),
    )
    assert read(source) == ()


def test_an_event_is_repeated_in_case_a_reading_was_overtaken_and_counted_once() -> None:
    gpu = make_device(uuid=Uuid(UUID), index=0, pci_bus_id="00000000:8D:00.0")
    device, ledger = FakeKmsg(record(1), record(2)), ErrorLedger(boot_id="boot-1")
    source = source_of(device, FakeClock())
    source.read(frozenset(Tier))  # nobody made a snapshot of this one
    device.answers.append(record(3))
    for _ in range(4):
        ledger.add(source.read(frozenset(Tier)).errors)
    assert [total.count for total in ledger.totals([gpu])] == [3]
    assert source.read(frozenset(Tier)).errors == (), "not for ever"


def test_the_gpu_is_known_by_the_line_before() -> None:
    (event,) = read(source_of(FakeKmsg(record(1, GPU_LINE), record(2)), FakeClock()))
    assert event.gpu_uuid == Uuid(UUID)


def test_overwritten_records_are_a_failure_and_reading_continues() -> None:
    source = source_of(FakeKmsg(errno.EPIPE, record(7), errno.EINVAL, record(9)), FakeClock())
    reading = source.read(frozenset(Tier))
    assert [event.log_sequence for event in reading.errors] == [7, 9]
    assert reading.failures == {"/dev/kmsg overrun": 2}


def test_a_device_that_breaks_is_a_source_error() -> None:
    with pytest.raises(SourceError, match="Input/output error"):
        read(source_of(FakeKmsg(errno.EIO), FakeClock()))


def test_a_new_record_is_not_older_than_the_last_read() -> None:
    """The kernel's clock stops in suspend and drifts: two hours behind the wall clock in this test."""
    device, clock = FakeKmsg(), FakeClock()
    source = source_of(device, clock)
    read(source)
    clock.at += 7200.0
    read(source)
    clock.at += 1.0
    device.answers.append(record(101))
    (event,) = read(source)
    assert 8300.0 <= event.at <= 8301.0
    assert event.monotonic is not ABSENT
    assert 7300.0 <= event.monotonic <= 7301.0


def test_a_time_in_the_future_is_now() -> None:
    (event,) = read(source_of(FakeKmsg(record(500)), FakeClock(since_boot=100.0)))
    assert event.at == 1100.0


def test_a_long_log_is_read_in_parts_with_the_right_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "MAX_RECORDS_A_READ", 10)
    source = source_of(FakeKmsg(*(record(n) for n in range(25))), FakeClock())
    events = [event for _ in range(4) for event in read(source)]
    assert [event.at for event in events] == [1000.0 + n for n in range(25)]


def test_an_escaped_record_is_undone() -> None:
    raw = b"3,5,77,-,caller=T12;NVRM: a\\x22b\\x5cx41\\xff\\xe2\\x82\\xac\n KEY=1\n"
    assert parse_kmsg_record(raw) == KernelLogRecord(77, 'NVRM: a"b\\x41\ufffd€', 5)


@given(st.binary() | st.binary().map(lambda raw: b"3,5,77,-;NVRM: " + raw))
def test_any_record_is_survived(raw: bytes) -> None:
    parsed = parse_kmsg_record(raw)
    assert parsed is None or (parsed.microseconds >= 0 and parsed.sequence is not ABSENT)


@given(st.binary() | st.text().map(str.encode))
def test_any_line_of_a_command_is_survived(line: bytes) -> None:
    parse_journal_line(line)
    parse_journal_line(b'{"MESSAGE":"NVRM","_SOURCE_MONOTONIC_TIMESTAMP":' + line + b"}")
    parse_dmesg_line(line.decode("utf-8", "replace"))


def test_lines_of_the_commands() -> None:
    entry = {
        "MESSAGE": "NVRM: x",
        "_SOURCE_MONOTONIC_TIMESTAMP": "1234567",
        "__MONOTONIC_TIMESTAMP": "1234999",
        "__REALTIME_TIMESTAMP": "1767225600000000",
    }
    assert parse_journal_line(json.dumps(entry).encode()) == KernelLogRecord(
        1234567, "NVRM: x", at=1767225600.0
    )
    entry_of_bytes = {**entry, "MESSAGE": [78, 86, 255, "x", 999]}
    assert parse_journal_line(json.dumps(entry_of_bytes).encode()) == KernelLogRecord(
        1234567, "NV\ufffd", at=1767225600.0
    )
    assert parse_dmesg_line(f"[   12.345678] {XID}\n") == KernelLogRecord(12345678, XID)
    assert parse_dmesg_line(f"[   12.345678][ T1234] {XID}\n") == KernelLogRecord(12345678, XID)
    assert parse_dmesg_line(XID) is None


def write_program(path: Path, script: str) -> str:
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Beat:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def journal_lines(numbers: Sequence[int]) -> str:
    return "".join(
        json.dumps(
            {
                "__CURSOR": f"s=1;i={n}",
                "MESSAGE": XID if n % 2 else "eth0: up",
                "_SOURCE_MONOTONIC_TIMESTAMP": str(n * 1_000_000),
                "__REALTIME_TIMESTAMP": str((1000 + n) * 1_000_000),
            }
        )
        + "\n"
        for n in numbers
    )


def test_journalctl_continues_after_its_cursor(tmp_path: Path) -> None:
    (tmp_path / "all").write_text(journal_lines(range(4)))
    (tmp_path / "rest").write_text(journal_lines(range(4, 6)))
    program = write_program(
        tmp_path / "journalctl",
        f"""case "$*" in
  *--after-cursor=s=1\\;i=3*) cat {tmp_path}/rest ;;
  *--after-cursor*) exit 1 ;;
  *) cat {tmp_path}/all ;;
esac
""",
    )
    beat = Beat()
    reader = JournalReader(program, beat)
    reader.check()
    source = KernelLog(reader, FakeClock(2000.0).now)
    assert [event.at for event in read(source)] == [1001.0, 1003.0]
    assert read(source) == (), "not asked again so soon"
    beat.at += log_readers.POLL_SECONDS
    (event,) = read(source)
    assert (event.log_sequence, event.log_microseconds) == (ABSENT, 5_000_000)
    beat.at += log_readers.POLL_SECONDS
    with pytest.raises(SourceError, match="failed with status 1"):
        read(source)


def test_journalctl_that_shows_nothing_is_no_way(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot see kernel messages"):
        JournalReader(write_program(tmp_path / "journalctl", "echo '-- No entries --'")).check()


def test_dmesg_returns_the_lines_after_the_last_seen_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"[    1.000000] boot\n[    2.000000] {XID}\n[    3.000000] eth0: up\n")
    beat = Beat()
    reader = DmesgReader(write_program(tmp_path / "dmesg", f"cat {log}"), beat)
    reader.check()
    source = KernelLog(reader, FakeClock().now, FakeClock().since_boot)
    assert [event.at for event in read(source)] == [1002.0]
    assert read(source) == ()
    beat.at += log_readers.POLL_SECONDS
    assert read(source) == ()
    beat.at += log_readers.POLL_SECONDS
    log.write_text(f"[    3.000000] eth0: up\n[   90.000000] {XID}\n")
    assert [event.log_microseconds for event in read(source)] == [90_000_000]
    beat.at += log_readers.POLL_SECONDS
    log.write_text(f"[   90.000000] {XID}\n[   91.000000] {XID}\n")
    assert [event.log_microseconds for event in read(source)] == [91_000_000]


@pytest.mark.parametrize(
    ("priority", "is_kernel"), [(3, True), (7, True), (8, False), (11, False), (14, False)]
)
def test_what_a_program_wrote_to_kmsg_is_no_xid(priority: int, is_kernel: bool) -> None:
    """The kernel gives it another facility than its own, whatever the program asks for."""
    assert (parse_kmsg_record(f"{priority},5,77,-;{XID}\n".encode()) is not None) is is_kernel
    entry = {"MESSAGE": XID, "_SOURCE_MONOTONIC_TIMESTAMP": "77", "SYSLOG_FACILITY": str(priority // 8)}
    assert (log_readers.parse_journal_line(json.dumps(entry).encode()) is not None) is is_kernel


def test_dmesg_is_asked_for_the_kernels_records_and_a_second_line_is_none(tmp_path: Path) -> None:
    """A text with a line break, or one longer than is read at once, continues in what looks like a line."""
    log = tmp_path / "log"
    long = "x" * (log_readers.MAX_LINE_BYTES - len("[    4.000000] "))
    forged = f"[    2.000000] usb: product\n[    2.000000] {XID}\n[    4.000000] {long}[    4.000001] {XID}\n"
    log.write_text(f"[    1.000000] {XID}\n{forged}")
    script = f'[ "$*" = --kernel ] && cat {log} || echo "[    3.000000] {XID}"'
    source = KernelLog(
        DmesgReader(write_program(tmp_path / "dmesg", script), Beat()), FakeClock().now, FakeClock().since_boot
    )
    assert [event.log_microseconds for event in read(source)] == [1_000_000]


def test_lines_out_of_order_are_all_counted(tmp_path: Path) -> None:
    dmesg = write_program(tmp_path / "dmesg", f"printf '[    3.000002] {XID}\\n[    3.000001] {XID}\\n'")
    source = KernelLog(DmesgReader(dmesg, Beat()), FakeClock().now, FakeClock().since_boot)
    assert [event.log_microseconds for event in read(source)] == [3_000_001, 3_000_002]


def test_a_command_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(SourceError, match="no answer"):
        DmesgReader(write_program(tmp_path / "dmesg", "exec sleep 60")).check()


@pytest.fixture
def refusing(tmp_path: Path) -> tuple[JournalReader, DmesgReader]:
    return (
        JournalReader(str(tmp_path / "no-such-journalctl")),
        DmesgReader(write_program(tmp_path / "dmesg", "exit 1")),
    )


def test_without_a_readable_log_the_error_has_the_reasons_and_the_fix(
    tmp_path: Path, refusing: tuple[JournalReader, DmesgReader]
) -> None:
    with pytest.raises(SourceMissing) as caught:
        open_reader((str(tmp_path / "kmsg"),), refusing)
    said = str(caught.value)
    assert "kmsg: No such file or directory" in said
    assert "no-such-journalctl: No such file or directory" in said
    assert "dmesg: failed with status 1" in said
    assert "CAP_SYSLOG" in said


def test_the_first_way_that_works_is_taken(tmp_path: Path) -> None:
    dmesg = DmesgReader(write_program(tmp_path / "dmesg", "echo '[    1.000000] boot'"))
    refused = JournalReader(str(tmp_path / "no-such-journalctl"))
    assert open_reader((str(tmp_path / "kmsg"),), (refused, dmesg)) is dmesg
    (tmp_path / "kmsg").write_bytes(b"")
    reader: LogReader = open_reader((str(tmp_path / "no"), str(tmp_path / "kmsg")), (refused, dmesg))
    assert reader.name == "/dev/kmsg"
    reader.close()


def test_this_machines_log_is_read_where_it_may_be() -> None:
    try:
        source = kernel_log.SOURCE.open(Settings())
    except SourceMissing as error:
        pytest.skip(str(error))
    try:
        source.read(frozenset(Tier))
        source.read(frozenset(Tier))
    finally:
        source.close()


def test_a_log_read_again_after_a_restart_is_counted_once(tmp_path: Path) -> None:
    """From the device to the totals, with a restart of the agent."""
    gpu = make_device(uuid=Uuid(UUID), index=0, pci_bus_id="00000000:8D:00.0")
    state = tmp_path / "xids.json"
    log = [record(n) for n in range(5)]
    for life in range(3):
        source, ledger = source_of(FakeKmsg(*log), FakeClock()), ErrorLedger(state, "boot-1")
        ledger.add(read(source))
        assert [total.count for total in ledger.totals([gpu])] == [5 + life]
        log.append(record(5 + life))
