from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.store import Store, StoreClosedError, StoreOptions, Tick, UnknownSeriesError
from gpuscope.history.store.head_view import ABSENT_BITS
from gpuscope.history.store.options import HOUR_MS, MINUTE_MS
from gpuscope.model.series import STALE_NAN_BITS, Matcher, MatchOp
from tests.store.support import (
    EVER,
    NOW,
    HandClock,
    bits,
    contents_of,
    fill,
    labels,
    named,
    tick,
    timed_tick,
)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[Store]:
    with Store(tmp_path, clock=clock) as opened:
        yield opened


def two(store: Store) -> tuple[int, int, int]:
    target = store.target("node")
    a, b = store.resolve(target, [labels("a"), labels("b")]).tolist()
    return target, a, b


def test_zero_absent_and_stale_samples_are_distinct(store: Store) -> None:
    target, a, b = two(store)
    stale = float(np.int64(STALE_NAN_BITS).view(np.float64))
    store.append(tick(target, NOW, [a], [0.0]))
    store.append(tick(target, NOW + 1, [a, b], [stale, 0.0]))
    expected = {labels("a"): {NOW: 0, NOW + 1: STALE_NAN_BITS}, labels("b"): {NOW + 1: 0}}
    assert contents_of(store) == expected
    store.seal()
    assert contents_of(store) == expected


def test_out_of_order_samples_in_the_head_are_sorted(store: Store) -> None:
    target, a, b = two(store)
    for at in (NOW, NOW + 20, NOW + 10):
        assert store.append(tick(target, at, [a, b], [at, 1.0])).accepted == 2
    found = store.select(named("a"), *EVER)[0]
    assert found.timestamps.tolist() == [NOW, NOW + 10, NOW + 20]
    assert found.values.tolist() == [NOW, NOW + 10, NOW + 20]


def test_an_identical_sample_is_ignored_and_another_value_refused(store: Store) -> None:
    target, a, b = two(store)
    store.append(tick(target, NOW, [a, b], [1.0, 2.0]))
    again = store.append(tick(target, NOW, [a, b], [1.0, 3.0]))
    assert (again.accepted, again.repeated, again.refused) == (0, 1, {"duplicate": 1})
    assert contents_of(store)[labels("b")] == {NOW: bits(2.0)}
    assert store.stats().refused == {"duplicate": 1}


def test_a_series_twice_in_one_tick_keeps_its_first_value(store: Store) -> None:
    target, a, b = two(store)
    result = store.append(tick(target, NOW, [a, b, a], [1.0, 2.0, 9.0]))
    assert (result.accepted, result.refused) == (2, {"duplicate": 1})
    assert contents_of(store)[labels("a")] == {NOW: bits(1.0)}


def test_too_old_samples_are_refused_and_counted_after_a_seal(store: Store, clock: HandClock) -> None:
    ids = fill(store, clock, 2)
    store.seal()
    result = store.append(tick(store.target("node"), NOW + 30, [ids[0]], [5.0]))
    assert result.refused == {"too_old": 1}
    assert store.stats().refused == {"too_old": 1}
    assert store.append(tick(store.target("node"), clock.at, [ids[0]], [5.0])).accepted == 1


def test_samples_far_in_the_future_are_refused(store: Store) -> None:
    target, a, _ = two(store)
    ahead = store.options.max_ahead_ms
    assert store.append(tick(target, NOW + ahead, [a], [1.0])).accepted == 1
    assert store.append(tick(target, NOW + ahead + 1, [a], [1.0])).refused == {"in_future": 1}
    hostile = timed_tick(target, [(a, 2**62, 1.0), (a, -(2**62), 1.0), (a, NOW, 1.0)])
    result = store.append(hostile)
    assert (result.accepted, result.refused) == (1, {"in_future": 1, "too_old": 1})


def test_scattered_timestamps_do_not_enlarge_the_head(store: Store, clock: HandClock) -> None:
    target = store.target("cadvisor")
    ids = store.resolve(target, [labels("m", container=str(i)) for i in range(500)])
    rng = np.random.default_rng(3)
    sent = {}
    for number in range(40):
        clock.at += 15_000
        times = clock.at - rng.integers(0, 15_000, len(ids))
        store.append(Tick(target, clock.at, ids, np.full(len(ids), float(number)), times))
        sent.update({(i, int(time)): number for i, time in enumerate(times)})
    stats = store.stats()
    assert stats.head_samples == len(sent) == 20_000
    assert stats.head_bytes < 20_000 * 8 * 6
    found = {
        (int(dict(one.labels)["container"]), time): value
        for one in store.select([], *EVER)
        for time, value in zip(one.timestamps.tolist(), one.values.tolist(), strict=True)
    }
    assert found == sent
    store.seal()
    assert store.stats().block_samples == 20_000
    assert sum(len(one.values) for one in store.select([], *EVER)) == 20_000


def test_parts_of_one_scrape_fill_one_row(store: Store, clock: HandClock) -> None:
    """A remote writer sends the series of one scrape in several requests."""
    target = store.target("remote")
    ids = store.resolve(target, [labels("m", gpu=str(i)) for i in range(90)])
    for number in range(30):
        clock.at += 15_000
        for part in np.array_split(ids, 9):
            times = np.full(len(part), clock.at)
            store.append(Tick(target, clock.at, part, np.full(len(part), float(number)), times))
    assert store.stats().head_bytes < 90 * 30 * 8 * 3
    found = store.select([], *EVER)
    assert len({id(one.timestamps) for one in found}) == 1
    store.seal()
    found = store.select([], *EVER)
    assert len(found) == 90
    assert len({id(one.timestamps) for one in found}) == 1


def test_a_sender_cannot_store_the_bits_of_an_absent_cell(store: Store) -> None:
    target, a, b = two(store)
    forged = float(np.int64(ABSENT_BITS).view(np.float64))
    store.append(tick(target, NOW, [a, b], [forged, 1.0]))
    found = store.select(named("a"), *EVER)[0]
    assert np.isnan(found.values[0])


def test_series_new_in_the_middle_of_a_window(store: Store, clock: HandClock) -> None:
    target = store.target("node")
    everything = [labels("m", pod=str(i)) for i in range(60)]
    for number in range(60):
        clock.at += 1000
        ids = store.resolve(target, everything[: number + 1])
        store.append(Tick(target, clock.at, ids, np.full(number + 1, float(number))))
    for sealed in (False, True):
        if sealed:
            store.seal()
        found = {dict(one.labels)["pod"]: one for one in store.select([], *EVER)}
        assert {pod: len(one.values) for pod, one in found.items()} == {str(i): 60 - i for i in range(60)}
        [alone] = store.select([Matcher("pod", MatchOp.EQUAL, "50")], *EVER)
        assert alone.values.tolist() == [float(number) for number in range(50, 60)]


def test_a_tick_with_unknown_ids_is_refused_as_a_whole(store: Store) -> None:
    target, a, _ = two(store)
    with pytest.raises(UnknownSeriesError, match="resolve"):
        store.append(tick(target, NOW, [a, 999], [1.0, 2.0]))
    with pytest.raises(UnknownSeriesError, match="target"):
        store.append(tick(999, NOW, [a], [1.0]))
    assert contents_of(store) == {}


def test_two_targets_may_write_the_same_series(store: Store, tmp_path: Path, clock: HandClock) -> None:
    one, other = store.target("one"), store.target("other")
    shared = int(store.resolve(one, [labels("m")])[0])
    store.append(tick(one, NOW, [shared], [1.0]))
    store.append(tick(other, NOW + 5, [shared], [2.0]))
    store.append(tick(other, NOW, [shared], [7.0]))  # the first target's sample takes precedence
    expected = {labels("m"): {NOW: bits(1.0), NOW + 5: bits(2.0)}}
    assert contents_of(store) == expected
    store.seal()
    store.close()
    with Store(tmp_path, clock=clock) as again:
        assert contents_of(again) == expected


def test_ticks_of_many_senders_share_commits_and_all_arrive(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        ids = {n: store.resolve(store.target(f"n{n}"), [labels("m", n=str(n))]) for n in range(8)}
        store.start()

        def send(n: int) -> None:
            futures = [
                store.submit(Tick(store.target(f"n{n}"), NOW + i, ids[n], np.array([float(i)])))
                for i in range(100)
            ]
            for future in futures:
                assert future.result().accepted == 1

        senders = [threading.Thread(target=send, args=(n,)) for n in range(8)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert store.stats().ticks == 800
        assert store.stats().commits < 800
        assert all(one.values.tolist() == list(range(100)) for one in store.select([], *EVER))


def test_an_unordered_batch_is_checked_tick_by_tick(tmp_path: Path) -> None:
    with Store(tmp_path, clock=HandClock()) as store:
        target, a, _ = two(store)
        writer = store.write_side().writer
        outcomes = writer.call(
            lambda: writer.appender.write(
                [tick(target, NOW + at, [a], [value]) for at, value in ((5, 1.0), (5, 1.0), (5, 2.0), (3, 4.0))]
            )
        )
        assert [getattr(one, "accepted", None) for one in outcomes] == [1, 0, 0, 1]
        assert contents_of(store) == {labels("a"): {NOW + 3: bits(4.0), NOW + 5: bits(1.0)}}


def test_a_closed_store_raises(tmp_path: Path) -> None:
    store = Store(tmp_path, clock=HandClock())
    target, a, _ = two(store)
    store.start()
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.append(tick(target, NOW, [a], [1.0]))


def test_the_clock_may_jump_a_year_ahead_and_back(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, StoreOptions(retention_ms=10**12), clock) as store:
        fill(store, clock, 3)
        clock.at += 365 * 24 * HOUR_MS
        fill(store, clock, 3)
        store.maintain()
        store.seal()
        back = NOW + 3 * HOUR_MS + MINUTE_MS
        clock.at = back
        ids = fill(store, clock, 3)
        store.maintain()
        found = store.select(named("m0"), back, back + 3 * HOUR_MS)
        assert len(found[0].values) == 180
        assert store.append(tick(store.target("node"), clock.at, ids, [1.0, 2.0, 3.0])).accepted == 3
        assert len(store.select(named("m0"), *EVER)[0].values) == 541
        assert len(store.latest(named("m0"), clock.at - MINUTE_MS, clock.at)) == 1
        before = store.stats().blocks
        for _ in range(3):
            store.maintain()
        assert store.stats().blocks == before, "rows in the future must not cause a seal in every pass"


def test_nothing_is_logged_for_ordinary_work(
    store: Store, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        fill(store, clock, 6)
        store.maintain()
    assert caplog.records == []
