"""Samples that arrive after their window was sealed: accepted as far back as in Prometheus, read, merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.store import Store, StoreOptions
from gpuscope.history.store.contents import LATE_LEVEL
from gpuscope.history.store.options import DAY_MS, HOUR_MS, MINUTE_MS
from gpuscope.history.store.seal import FINAL_LEVEL
from tests.store.support import EVER, HandClock, as_contents, bits, contents_of, labels, named, tick, timed_tick

STEP = 15_000
SIX_HOURS = StoreOptions(out_of_order_ms=6 * HOUR_MS, retention_ms=300 * DAY_MS)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[Store]:
    with Store(tmp_path, SIX_HOURS, clock) as opened:
        yield opened


class Shards:
    """One instance whose series are sent by two shards, the second behind the first."""

    def __init__(self, store: Store, clock: HandClock) -> None:
        self.store, self.clock = store, clock
        self.target = store.target("node")
        self.expected: dict[str, dict[int, int]] = {"ahead": {}, "behind": {}}

    def send(self, which: int, time: int) -> None:
        value = float(time // STEP % 1000)
        ids = self.store.resolve(self.target, [labels(("ahead", "behind")[which])])
        result = self.store.append(tick(self.target, time, ids.tolist(), [value]))
        assert (result.accepted, result.refused) == (1, {})
        self.expected[("ahead", "behind")[which]][time] = bits(value)

    def run(self, behind_ms: int, hours: float) -> None:
        start = self.clock.at
        for time in range(start, start + int(hours * HOUR_MS), 4 * STEP):
            self.clock.at = time
            self.send(0, time)
            if time - behind_ms >= start:
                self.send(1, time - behind_ms)
            self.store.maintain()

    def check(self) -> None:
        wanted = {labels(name): times for name, times in self.expected.items() if times}
        assert contents_of(self.store) == wanted
        newest = {name: dict([max(times.items())]) for name, times in wanted.items()}
        assert as_contents(self.store.latest([], *EVER)) == newest
        assert self.store.check().problems == []


def late_blocks(store: Store) -> int:
    return sum(block.level == LATE_LEVEL for block in store.contents.blocks())


def test_two_shards_twenty_minutes_apart_lose_nothing_without_any_setting(
    tmp_path: Path, clock: HandClock
) -> None:
    with Store(tmp_path, clock=clock) as store:
        shards = Shards(store, clock)
        shards.run(20 * MINUTE_MS, 5)
        assert store.stats().seals >= 2
        shards.check()


def test_two_shards_hours_apart_lose_nothing(store: Store, clock: HandClock, tmp_path: Path) -> None:
    shards = Shards(store, clock)
    shards.run(5 * HOUR_MS, 12)
    shards.check()
    assert store.stats().merges
    store.close()
    with Store(tmp_path, SIX_HOURS, clock) as again:
        shards.store = again
        shards.check()
        clock.at += 2 * DAY_MS
        again.maintain()
        shards.check()
        assert {block.level for block in again.contents.blocks()} == {FINAL_LEVEL}


def sealed_hours(store: Store, clock: HandClock, hours: float) -> tuple[int, int, int]:
    """Seal a target with one series; return the target, that series and a new one."""
    target = store.target("node")
    a, b = store.resolve(target, [labels("a"), labels("b")]).tolist()
    start = clock.at
    for time in range(start, start + int(hours * HOUR_MS), 10 * MINUTE_MS):
        clock.at = time
        store.append(tick(target, time, [a], [1.0]))
    store.seal()
    return target, a, b


def test_samples_beyond_the_window_are_too_old(store: Store, clock: HandClock) -> None:
    start = clock.at
    target, _, b = sealed_hours(store, clock, 8)
    newest = clock.at
    at_the_edge = store.append(tick(target, newest - 6 * HOUR_MS, [b], [2.0]))
    assert at_the_edge.accepted == 1
    beyond = store.append(timed_tick(target, [(b, newest - 6 * HOUR_MS - 1, 2.0), (b, start, 2.0)]))
    assert (beyond.accepted, beyond.refused) == (0, {"too_old": 2})


def test_the_window_can_be_changed_while_the_store_runs(tmp_path: Path, clock: HandClock) -> None:
    with Store(tmp_path, clock=clock) as store:
        target, _, b = sealed_hours(store, clock, 8)
        late = tick(target, clock.at - 3 * HOUR_MS, [b], [2.0])
        assert store.append(late).refused == {"too_old": 1}
        store.set_out_of_order(4 * HOUR_MS)
        assert store.append(late).accepted == 1
        store.set_out_of_order(0)
        assert store.append(late).refused == {"too_old": 1}


def test_the_first_sample_of_a_time_is_kept(store: Store, clock: HandClock) -> None:
    target, a, b = sealed_hours(store, clock, 3)
    times = [time for time in contents_of(store)[labels("a")] if time < clock.at]
    for value in (5.0, 6.0):  # a: another value for a sealed sample; b: first 5, then 6
        late = [(series, time, value) for time in times for series in (a, b)]
        result = store.append(timed_tick(target, late))
        assert not result.refused, "Prometheus with an out_of_order_time_window does not report it"
    expected = contents_of(store)
    assert set(expected[labels("a")].values()) == {bits(1.0)}
    assert expected[labels("b")] == dict.fromkeys(times, bits(5.0))
    store.seal()
    assert late_blocks(store) >= 1
    store.append(timed_tick(target, [(b, time, 7.0) for time in times]))
    store.seal()
    assert contents_of(store) == expected
    clock.at += 3 * DAY_MS
    store.maintain()
    assert {block.level for block in store.contents.blocks()} == {FINAL_LEVEL}
    assert contents_of(store) == expected


def test_a_conflicting_value_is_reported_where_prometheus_reports_it(tmp_path: Path, clock: HandClock) -> None:
    with Store(tmp_path / "ordered", clock=clock) as store:
        target = store.target("node")
        (a,) = store.resolve(target, [labels("a")]).tolist()
        store.append(timed_tick(target, [(a, clock.at - 10, 1.0), (a, clock.at, 1.0)]))
        assert store.append(tick(target, clock.at - 10, [a], [2.0])).refused == {"duplicate": 1}
    with Store(tmp_path / "out of order", SIX_HOURS, clock) as store:
        target = store.target("node")
        (a,) = store.resolve(target, [labels("a")]).tolist()
        store.append(timed_tick(target, [(a, clock.at - 10, 1.0), (a, clock.at, 1.0)]))
        assert store.append(tick(target, clock.at - 10, [a], [2.0])).refused == {}
        assert store.append(tick(target, clock.at, [a], [2.0])).refused == {"duplicate": 1}


def test_all_queries_return_late_samples(store: Store, clock: HandClock, tmp_path: Path) -> None:
    target, a, b = sealed_hours(store, clock, 4)
    start = clock.at - 2 * HOUR_MS
    late = [(b, start + n * STEP, float(n)) for n in range(20)]
    store.append(timed_tick(target, late))

    def look(store: Store) -> None:
        assert store.series(named("b"), start, start + HOUR_MS) == [labels("b")]
        assert store.label_values("__name__", (), start, start + HOUR_MS) == ["a", "b"]
        (found,) = store.select(named("b"), start + STEP, start + 3 * STEP)
        assert found.values.tolist() == [1.0, 2.0, 3.0]
        (newest,) = store.latest(named("b"), start, start + 5 * STEP)
        assert (newest.timestamps.tolist(), newest.values.tolist()) == ([start + 5 * STEP], [5.0])
        assert "b 19.0" in "".join(store.export(named("b")))

    look(store)
    assert store.stats().head_samples == 20
    with Store(tmp_path, read_only=True, clock=clock) as reader:
        look(reader)
    assert store.delete_series(named("b"), start, start + 4 * STEP) == 1
    (rest,) = store.select(named("b"), *EVER)
    assert rest.timestamps[0] == start + 5 * STEP
    assert store.delete_series(named("b")) == 1
    assert store.select(named("b"), *EVER) == []
    store.append(tick(target, clock.at, [a], [1.0]))


def test_a_full_disk_while_late_samples_are_sealed(
    store: Store, clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _, b = sealed_hours(store, clock, 4)
    samples = [(b, clock.at - 2 * HOUR_MS + n, float(n)) for n in range(10)]
    store.append(timed_tick(target, samples))
    expected = contents_of(store)
    db = store.write_side().db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    clock.at += HOUR_MS
    store.maintain()
    assert contents_of(store) == expected
    db.execute("PRAGMA max_page_count = 1000000")
    more = [(b, clock.at - 3 * HOUR_MS + n, float(n)) for n in range(10, 20)]
    assert store.append(timed_tick(target, more)).accepted == 10
    clock.at += HOUR_MS
    store.maintain()
    found = contents_of(store)
    assert set(found[labels("b")].values()) == {bits(float(n)) for n in range(20)}
    assert not store.contents.states()[0].late
    assert db.execute("SELECT count(*) FROM late").fetchone() == (0,)


def test_late_samples_are_sealed_when_no_more_arrive(store: Store, clock: HandClock) -> None:
    target, _, b = sealed_hours(store, clock, 6)
    state = store.contents.states()[0]
    start = clock.at
    for minutes in (0, 4, 8):
        clock.at = start + minutes * MINUTE_MS
        store.append(tick(target, start - 2 * HOUR_MS + minutes, [b], [1.0]))
        store.maintain()
        assert state.late, "they still arrive"
    clock.at += 6 * MINUTE_MS
    store.maintain()
    assert not state.late


def test_late_memory_is_bounded(store: Store, clock: HandClock) -> None:
    target, _, b = sealed_hours(store, clock, 6)
    state = store.contents.states()[0]
    start = clock.at - 5 * HOUR_MS
    for part in range(3):
        times = start + np.arange(part * 4_000_000, (part + 1) * 4_000_000, 4)
        store.append(timed_tick(target, [(b, int(time), 1.0) for time in times[:20_000]]))
        for one in state.late:
            one.head.side_list.times.resize(3_000_000, refcheck=False)  # the size of millions of samples
        store.maintain()
        assert not state.late
