from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.collect import error_ledger as xids
from gpuscope.agent.collect.error_ledger import SAME_EVENT_SECONDS, ErrorLedger, normal_pci_bus_id
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.fakes import xid_event, xid_total

UUID = Uuid("GPU-11111111-2222-3333-4444-555555555555")
OTHER_UUID = Uuid("GPU-66666666-2222-3333-4444-555555555555")
ADDRESS = "00000000:8D:00.0"
GPU = make_device(uuid=UUID, index=0, pci_bus_id=ADDRESS)
BOOT = "boot-1"


def kernel(at: float, xid: int = 79, sequence: Maybe[int] = ABSENT, address: str = ADDRESS) -> ErrorEvent:
    """A record of the kernel log; its time since boot is its time."""
    return xid_event(
        xid,
        at=at,
        reporter="kernel_log",
        pci_bus_id=address,
        log_sequence=sequence,
        log_microseconds=round(at * 1e6),
    )


def nvml(at: float, xid: int = 79, uuid: Uuid = UUID) -> ErrorEvent:
    return xid_event(xid, at=at, reporter="nvml", gpu_uuid=uuid)


def counts(ledger: ErrorLedger, devices: Sequence[Device] = (GPU,)) -> dict[tuple[str, int], int]:
    return {(total.gpu_uuid, int(total.code)): total.count for total in ledger.totals(devices)}


def open_ledger(state: Path | None = None, boot_id: str = BOOT) -> ErrorLedger:
    return ErrorLedger(state, boot_id)


@pytest.mark.parametrize("text", ["0000:8d:00", "0000:8D:00.0", "00000000:8D:00.0", "00000000:8d:00"])
def test_every_spelling_of_a_pci_address_is_one(text: str) -> None:
    assert normal_pci_bus_id(text) == ADDRESS


def test_nothing_happened_is_no_total() -> None:
    assert open_ledger().totals([GPU]) == ()


def test_one_occurrence_through_both_channels_is_one() -> None:
    ledger = open_ledger()
    ledger.totals([GPU])
    ledger.add([kernel(100.0), nvml(101.5)])
    assert ledger.totals([GPU]) == (xid_total(79, gpu_uuid=UUID, count=1, last_at=101.5),)


def test_two_through_the_same_channel_are_two_and_pair_one_to_one() -> None:
    ledger = open_ledger()
    ledger.add([nvml(100.0), nvml(100.0), kernel(101.0)])
    assert counts(ledger) == {(UUID, 79): 2}
    ledger.add([kernel(102.0), kernel(103.0)])
    assert counts(ledger) == {(UUID, 79): 3}


def test_far_apart_or_another_code_or_another_gpu_is_another_occurrence() -> None:
    ledger = open_ledger()
    ledger.add([kernel(100.0), nvml(100.0 + SAME_EVENT_SECONDS + 0.1)])
    ledger.add([nvml(100.0, xid=48), nvml(100.0, uuid=OTHER_UUID)])
    assert counts(ledger) == {(UUID, 48): 1, (UUID, 79): 2, (OTHER_UUID, 79): 1}


def test_events_of_a_gpu_not_yet_known_wait_for_it() -> None:
    ledger = open_ledger()
    ledger.add([kernel(100.0, sequence=1), kernel(200.0, sequence=2), nvml(200.5)])
    assert counts(ledger, ()) == {(UUID, 79): 1}
    assert ledger.totals([GPU]) == (xid_total(79, gpu_uuid=UUID, count=2, last_at=200.5),)


def test_an_event_that_has_both_names_teaches_the_address() -> None:
    ledger = open_ledger()
    both = xid_event(13, at=1.0, reporter="kernel_log", gpu_uuid=UUID, pci_bus_id="0000:8d:00")
    ledger.add([both, kernel(2.0)])
    assert counts(ledger, ()) == {(UUID, 13): 1, (UUID, 79): 1}


def test_a_gpu_that_fell_off_the_bus_keeps_its_count() -> None:
    ledger = open_ledger()
    ledger.totals([GPU])
    ledger.add([kernel(100.0)])
    assert counts(ledger, ()) == {(UUID, 79): 1}


def test_an_event_without_a_gpu_is_refused_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ledger = open_ledger()
    ledger.add([xid_event(1, at=1.0, reporter="nvml")] * 5)
    assert ledger.totals([GPU]) == ()
    assert len(caplog.records) == 1


def test_a_log_read_again_in_the_same_process_is_not_counted_again() -> None:
    ledger = open_ledger()
    records = [kernel(float(at), sequence=at) for at in range(5)]
    ledger.add(records)
    ledger.add(records)
    assert counts(ledger) == {(UUID, 79): 5}


def test_records_that_share_a_time_stamp_are_told_apart_by_what_they_say() -> None:
    ledger = open_ledger()
    records = [kernel(1.0, xid=79), kernel(1.0, xid=48), kernel(1.0, address="00000000:8E:00.0")]
    ledger.add(records[:2])
    ledger.add(records)
    other = make_device(uuid=OTHER_UUID, index=1, pci_bus_id="00000000:8E:00.0")
    assert counts(ledger, (GPU, other)) == {(UUID, 48): 1, (UUID, 79): 1, (OTHER_UUID, 79): 1}


def test_the_way_to_the_log_may_change_between_kmsg_and_journal() -> None:
    ledger = open_ledger()
    ledger.add([kernel(1.0, sequence=10), kernel(2.0, sequence=11)])
    ledger.add([kernel(1.0), kernel(2.0), kernel(3.0)])
    ledger.add([kernel(float(at), sequence=9 + at) for at in (1, 2, 3, 4)])
    assert counts(ledger) == {(UUID, 79): 4}


def test_a_restart_forgets_nothing_and_counts_nothing_again(tmp_path: Path) -> None:
    state = tmp_path / "sub" / "xids.json"
    ledger = open_ledger(state)
    ledger.totals([GPU])
    ledger.add([kernel(1.0, sequence=1), nvml(1.2), nvml(50.0)])
    again = open_ledger(state)
    again.add([kernel(1.0, sequence=1), kernel(49.0, sequence=2), kernel(90.0, sequence=3)])
    assert counts(again) == {(UUID, 79): 3}
    assert list(state.parent.iterdir()) == [state]


def test_a_lost_gpu_is_still_known_after_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "xids.json"
    ledger = open_ledger(state)
    ledger.totals([GPU])
    ledger.add([kernel(1.0, sequence=1)])
    again = open_ledger(state)
    again.add([kernel(2.0, sequence=2)])
    assert counts(again, ()) == {(UUID, 79): 2}


def test_after_a_reboot_counts_go_on_and_the_log_begins_anew(tmp_path: Path) -> None:
    state = tmp_path / "xids.json"
    ledger = open_ledger(state)
    ledger.add([kernel(1000.0, sequence=900), nvml(1000.0, uuid=OTHER_UUID)])
    ledger.totals([GPU])
    after = open_ledger(state, "boot-2")
    after.add([kernel(2.0, sequence=5)])
    assert counts(after) == {(UUID, 79): 2}, "a card that is no longer there is not shown"
    assert counts(open_ledger(state, "boot-2")) == {(UUID, 79): 2}


def test_an_address_of_the_last_boot_is_not_given_to_another_card(tmp_path: Path) -> None:
    state = tmp_path / "xids.json"
    open_ledger(state).add([kernel(1.0, sequence=1)])
    assert counts(open_ledger(state, "boot-2")) == {}


def test_the_counts_of_an_earlier_version_go_on(tmp_path: Path) -> None:
    """It counted XIDs only, and its entries had their number."""
    state = tmp_path / "xids.json"
    entry = {"gpu": UUID, "xid": 79, "count": 3, "last_at": 5.0, "unmatched": {"nvml": [5.0]}}
    document = {
        "format": "gpuscope-xids-1", "boot_id": "boot-1", "log_sequence": 7, "log_microseconds": 5_000_000,
        "log_latest": [], "gpus": {"00000000:8D:00.0": UUID}, "shown": [UUID], "counts": [entry],
    }  # fmt: skip
    state.write_text(json.dumps(document))
    ledger = open_ledger(state, "boot-1")
    assert counts(ledger) == {(UUID, 79): 3}
    ledger.add([kernel(9.0, sequence=7), kernel(90.0, sequence=8)])
    assert counts(open_ledger(state, "boot-1")) == {(UUID, 79): 4}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00garbage",
        b"[]",
        b"{}",
        b'{"format":"gpuscope-xids-9"}',
        b'{"format":"gpuscope-xids-1","boot_id":7}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_state_is_set_aside_with_one_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "xids.json"
    state.write_bytes(content)
    ledger = open_ledger(state)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert (tmp_path / "xids.json.damaged").read_bytes() == content
    ledger.add([kernel(1.0, sequence=1)])
    assert counts(open_ledger(state)) == {(UUID, 79): 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


STATE_KEYS = ["boot_id", "log_sequence", "log_microseconds", "log_latest", "gpus", "shown", "counts"]


@settings(deadline=None)  # the state is written through to the disk
@given(key=st.sampled_from(STATE_KEYS), value=JSON)
def test_any_value_in_any_place_of_the_state_is_survived(key: str, value: object) -> None:
    logging.disable(logging.WARNING)
    try:
        with TemporaryDirectory() as folder:
            state = Path(folder, "xids.json")
            open_ledger(state).add([kernel(1.0, sequence=1), nvml(2.0)])
            state.write_text(json.dumps({**json.loads(state.read_text()), key: value}))
            ledger = open_ledger(state)
            ledger.add([kernel(1.0, sequence=1), kernel(5.0, sequence=2)])
            ledger.totals([GPU])
            open_ledger(state).totals([GPU])
    finally:
        logging.disable(logging.NOTSET)


def test_a_state_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    ledger = open_ledger(tmp_path / "file" / "xids.json")
    for at in range(3):
        ledger.add([nvml(float(at))])
    assert counts(ledger) == {(UUID, 79): 3}
    assert sum("not kept over a restart" in record.message for record in caplog.records) == 1


def test_a_kill_between_two_writes_leaves_the_old_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "xids.json"
    ledger = open_ledger(state)
    ledger.add([kernel(1.0, sequence=1)])

    def killed(self: Path, target: Path) -> Path:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        ledger.add([kernel(2.0, sequence=2)])
    again = open_ledger(state)
    again.add([kernel(1.0, sequence=1), kernel(2.0, sequence=2)])
    assert counts(again) == {(UUID, 79): 2}


def test_a_storm_and_hostile_codes_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xids, "MAX_UNMATCHED", 500)
    monkeypatch.setattr(xids, "MAX_UNMATCHED_SAVED", 50)
    state = tmp_path / "xids.json"
    ledger = open_ledger(state)
    ledger.add(kernel(at * 1e-3, sequence=at) for at in range(20_000))
    ledger.add(kernel(20.0 + n, xid=n, sequence=20_000 + n) for n in range(2_000))
    ledger.add(kernel(9e3 + n, sequence=30_000 + n, address=f"{n:08X}:00:00.0") for n in range(2_000))
    assert counts(ledger)[UUID, 79] == 20_001
    assert len(counts(ledger)) == xids.MAX_CODES_PER_GPU
    gpus, waiting = ledger.kept()
    assert waiting <= 1_000
    assert gpus <= xids.MAX_GPUS
    assert state.stat().st_size < 100_000
    assert counts(open_ledger(state))[UUID, 79] == 20_001


@pytest.mark.slow
def test_a_million_events_through_both_channels() -> None:
    ledger = open_ledger()
    for second in range(1_000):
        times = [second + n * 1e-3 for n in range(1_000)]
        ledger.add(kernel(at, sequence=round(at * 1e3)) for at in times)
        ledger.totals([GPU])
        ledger.add(nvml(at + 2.0) for at in times)
    assert counts(ledger) == {(UUID, 79): 1_000_000}


def most_pairs(some: Sequence[float], others: Sequence[float]) -> int:
    """The largest one-to-one pairing within the window, by brute force: augmenting paths."""
    partner: dict[int, int] = {}

    def place(one: int, tried: set[int]) -> bool:
        for other, at in enumerate(others):
            if other not in tried and abs(some[one] - at) <= SAME_EVENT_SECONDS:
                tried.add(other)
                if other not in partner or place(partner[other], tried):
                    partner[other] = one
                    return True
        return False

    return sum(place(one, set()) for one in range(len(some)))


def interleave(
    some: Iterable[ErrorEvent], others: Iterable[ErrorEvent], turns: Sequence[bool]
) -> list[ErrorEvent]:
    """Each side in its own order; whose turn it is is drawn."""
    rest, result = {True: list(some), False: list(others)}, []
    for turn in (*turns, *([True] * 30), *([False] * 30)):
        if rest[turn]:
            result.append(rest[turn].pop(0))
    return result


TIMES = st.lists(st.integers(0, 80).map(float), max_size=12).map(sorted)
TURNS = st.lists(st.booleans(), max_size=30)


@given(log_times=TIMES, driver_times=TIMES, turns=TURNS, known_at=st.integers(0, 24))
def test_whatever_the_order_as_many_reports_as_possible_pair_up(
    log_times: list[float], driver_times: list[float], turns: list[bool], known_at: int
) -> None:
    ledger = open_ledger()
    records = [kernel(at, sequence=n) for n, at in enumerate(log_times)]
    for n, event in enumerate(interleave(records, map(nvml, driver_times), turns)):
        if n == known_at:
            ledger.totals([GPU])
        ledger.add([event])
    expected = len(log_times) + len(driver_times) - most_pairs(log_times, driver_times)
    assert sum(counts(ledger).values()) == expected


@dataclass(frozen=True)
class Occurrence:
    """One XID: in the log, in the driver's events, or in both with some delay between."""

    xid: int
    in_log: bool
    in_driver: bool
    delay: float


OCCURRENCES = st.lists(
    st.builds(
        Occurrence,
        xid=st.sampled_from([13, 79]),
        in_log=st.booleans(),
        in_driver=st.booleans(),
        delay=st.floats(-SAME_EVENT_SECONDS, SAME_EVENT_SECONDS),
    ).filter(lambda occurrence: occurrence.in_log or occurrence.in_driver),
    max_size=10,
)


@settings(deadline=None)  # the state is written through to the disk
@given(occurrences=OCCURRENCES, turns=TURNS, restarts=st.sets(st.integers(0, 20)), numbered=st.booleans())
def test_restarts_at_any_point_neither_lose_nor_repeat(
    occurrences: list[Occurrence], turns: list[bool], restarts: set[int], numbered: bool
) -> None:
    """Occurrences too far apart to be taken for one another: the total is their number."""
    log: list[ErrorEvent] = []
    driver: list[ErrorEvent] = []
    for n, occurrence in enumerate(occurrences):
        at = 1_000.0 + 100.0 * n
        if occurrence.in_log:
            log.append(kernel(at, occurrence.xid, n if numbered else ABSENT))
        if occurrence.in_driver:
            driver.append(nvml(at + occurrence.delay, occurrence.xid))
    with TemporaryDirectory() as folder:
        state = Path(folder, "xids.json")
        ledger = open_ledger(state)
        read: list[ErrorEvent] = []
        for n, event in enumerate(interleave(log, driver, turns)):
            if n in restarts:
                ledger = open_ledger(state)
                ledger.add(read)
                ledger.totals([GPU] if n % 2 else [])
            if event.reporter == "kernel_log":
                read.append(event)
            ledger.add([event])
        for _ in range(2):
            assert sum(counts(ledger).values()) == len(occurrences)
            ledger = open_ledger(state)
            ledger.add(log)


@given(log_times=TIMES, restarts=st.sets(st.integers(0, 12)))
def test_without_a_state_the_log_gives_the_same_totals_again(
    log_times: list[float], restarts: set[int]
) -> None:
    ledger = open_ledger()
    records = [kernel(at, sequence=n) for n, at in enumerate(log_times)]
    for n in range(len(records)):
        if n in restarts:
            ledger = open_ledger()
        ledger.add(records[: n + 1])
    assert sum(counts(ledger).values()) == len(records)


def test_the_age_of_an_xid_is_known_after_a_restart_but_not_after_a_reboot(tmp_path: Path) -> None:
    """Its monotonic time: the wall clock may have been set in between, and begins anew with a boot."""
    state = tmp_path / "xids.json"
    ledger = open_ledger(state)
    ledger.totals([GPU])
    ledger.add([replace(nvml(100.0), monotonic=40.0), replace(nvml(50.0), monotonic=70.0)])
    assert [total.last_monotonic for total in ledger.totals([GPU])] == [70.0]
    assert [total.last_monotonic for total in open_ledger(state).totals([GPU])] == [70.0]
    assert [total.last_monotonic for total in open_ledger(state, "boot-2").totals([GPU])] == [ABSENT]


def test_a_file_without_monotonic_times_is_read(tmp_path: Path) -> None:
    state = tmp_path / "xids.json"
    open_ledger(state).add([nvml(100.0)])
    document = json.loads(state.read_bytes())
    for entry in document["counts"]:
        del entry["last_monotonic"]
    state.write_text(json.dumps(document))
    totals = open_ledger(state).totals([GPU])
    assert [(total.count, total.last_monotonic) for total in totals] == [(1, ABSENT)]
