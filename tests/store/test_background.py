"""Sealing, merging, retention and deletion, also with concurrent readers."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.store import Store, StoreOptions, Tick, UnknownSeriesError
from gpuscope.history.store.options import DAY_MS, HOUR_MS, MINUTE_MS
from gpuscope.history.store.seal import Merge, next_boundary, shift_ms
from gpuscope.model.series import Matcher, MatchOp
from tests.store.support import EVER, NOW, HandClock, contents_of, equal, fill, labels, named, tick


def test_boundaries_are_spread_over_the_window() -> None:
    shifts = sorted(shift_ms(target, 2 * HOUR_MS) for target in range(1, 101))
    assert np.diff(shifts).max() < 3 * MINUTE_MS
    for target in (1, 2, 77):
        boundary = next_boundary(NOW, target, HOUR_MS)
        assert NOW < boundary <= NOW + HOUR_MS
        assert next_boundary(boundary, target, HOUR_MS) == boundary + HOUR_MS


def test_a_day_is_sealed_by_windows_and_merged_when_it_is_over(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        for _ in range(60):
            fill(store, clock, 1)
            store.maintain()
        before = contents_of(store)
        stats = store.stats()
        assert stats.merges >= 1
        assert stats.merged_blocks >= 1
        assert stats.blocks < 30
        assert stats.head_samples < 3 * 60 * 3
        assert all(len(times) == 60 * 60 for times in before.values())
        assert store.check().problems == []
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before


def test_a_target_with_very_many_series_is_merged_in_parts_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscope.history.store.background.SERIES_PER_BLOCK", 7)
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 11, width=40)
        store.maintain()
        before = contents_of(store)
        merged = store.stats().merged_blocks
        assert merged == 6
        for _ in range(3):
            store.maintain()
        assert store.stats().merges == 1
        assert contents_of(store) == before
        assert store.check().problems == []


def test_history_appended_at_once_becomes_ordinary_blocks(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        start = clock.at
        fill(store, clock, 6, step=5000)
        store.maintain()
        blocks = store.contents.blocks()
        assert len(blocks) >= 2
        assert all(block.last - block.first < 2 * HOUR_MS for block in blocks)
        assert len(store.select(named("m0"), start, clock.at)[0].values) == 6 * 720
        assert store.stats().head_samples < 3 * 720 * 3


def test_many_series_shorten_the_window(tmp_path: Path) -> None:
    clock = HandClock()
    options = StoreOptions(large_from_series=5, large_window_ms=10 * MINUTE_MS)
    with Store(tmp_path, options, clock) as store:
        fill(store, clock, 1, width=6)
        store.maintain()
        assert store.stats().seals >= 4


def test_a_silent_target_is_sealed(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 0.5)
        before = contents_of(store)
        clock.at += 3 * HOUR_MS
        store.maintain()
        assert store.stats().head_samples == 0
        assert store.write_side().db.execute("SELECT count(*) FROM tick").fetchone() == (0,)
        assert store.write_side().db.execute("SELECT count(*) FROM layout").fetchone() == (0,)
        assert contents_of(store) == before


def test_series_with_equal_times_share_one_array_over_blocks_and_head(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        for _ in range(5):
            fill(store, clock, 2, width=30)
            store.maintain()
        store.select([equal("__name__", "m3")], NOW, clock.at)  # some chunks are cached, others not
        found = store.select([], NOW + 30, clock.at - 90_000)
        assert len(found) == 30
        assert len({id(one.timestamps) for one in found}) == 1


def test_retention_removes_old_blocks_and_their_series(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, StoreOptions(retention_ms=2 * DAY_MS), clock) as store:
        gone = store.target("gone")
        ids = store.resolve(gone, [labels("old", pod="x")])
        store.append(tick(gone, clock.at, ids, [1.0]))
        for _ in range(12):
            fill(store, clock, 6)
            store.maintain()
        assert store.stats().dropped_blocks >= 1
        oldest_ms = store.stats().oldest_ms
        assert oldest_ms is not None
        assert oldest_ms >= clock.at - 2 * DAY_MS - 26 * HOUR_MS
        clock.at += HOUR_MS
        store.maintain()
        clock.at += HOUR_MS
        store.maintain()
        assert store.label_names() == ["__name__", "node"]
        assert store.stats().targets == 1
        with pytest.raises(UnknownSeriesError):
            store.append(tick(gone, clock.at, ids, [1.0]))
        again = store.target("gone")
        fresh = store.resolve(again, [labels("old", pod="x")])
        assert store.append(tick(again, clock.at, fresh, [2.0])).accepted == 1
        before = contents_of(store)
    with Store(tmp_path, StoreOptions(retention_ms=2 * DAY_MS), clock) as store:
        assert contents_of(store) == before
        assert store.check().problems == []


def test_a_block_goes_when_its_last_sample_is_older_than_the_retention(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, StoreOptions(retention_ms=2 * DAY_MS), clock) as store:
        target = store.target("t")
        (series,) = store.resolve(target, [labels("m")])
        last = clock.at
        store.append(tick(target, last, [series], [1.0]))
        clock.at += DAY_MS  # sealed into a block
        store.maintain()
        clock.at = last + 2 * DAY_MS
        store.maintain()
        assert store.stats().blocks == 1
        assert [found.timestamps.tolist() for found in store.select([], 0, clock.at)] == [[last]]
        clock.at += 1
        store.maintain()
        assert store.stats().blocks == 0


def test_rollups_are_kept_longer_in_blocks_of_a_month(tmp_path: Path) -> None:
    """A target of another name: its samples of months stay while other samples older than two days go."""
    clock = HandClock()
    options = StoreOptions(retention_ms=2 * DAY_MS, rollup_retention_ms=60 * DAY_MS)
    with Store(tmp_path, options, clock) as store:
        raw, rollup = store.target("t"), store.target("rollup t")
        raw_id = store.resolve(raw, [labels("raw")])
        rollup_id = store.resolve(rollup, [labels("gpuscope:x:growth1h")])
        for _ in range(100 * 4):
            clock.at += 6 * HOUR_MS
            store.append(tick(raw, clock.at, raw_id, [1.0]))
            store.append(tick(rollup, clock.at, rollup_id, [1.0]))
            store.maintain()
        (kept,) = store.select([equal("__name__", "gpuscope:x:growth1h")], 0, clock.at)
        (recent,) = store.select([equal("__name__", "raw")], 0, clock.at)
        assert 60 * 4 <= len(kept.timestamps) <= (60 + 34) * 4
        assert 2 * 4 <= len(recent.timestamps) <= 4 * 4
        assert store.check().problems == []
        blocks = store.stats().blocks
        assert blocks < 40, "a day's block each would be a hundred"


def test_retention_bytes_drops_the_oldest_blocks(tmp_path: Path) -> None:
    clock = HandClock()
    allowed = 150_000
    rng = np.random.default_rng(1)
    with Store(tmp_path, StoreOptions(retention_bytes=allowed), clock) as store:
        target = store.target("node")
        ids = store.resolve(target, [labels("m", i=str(i)) for i in range(20)])
        for _ in range(12):
            for _ in range(120):
                clock.at += MINUTE_MS
                store.append(Tick(target, clock.at, ids, rng.random(20)))
            store.maintain()
        stats = store.stats()
        assert stats.dropped_blocks > 0
        assert stats.disk_bytes <= allowed
        assert stats.disk_bytes == 512 * sum(path.lstat().st_blocks for path in (tmp_path, *tmp_path.iterdir()))
        kept = store.select([], *EVER)[0].timestamps
        assert kept[-1] == clock.at
        assert kept[0] > NOW + HOUR_MS


def test_free_pages_are_returned_to_the_file_system(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 40, width=100)
        store.seal()
        store.compact()
        stats = store.stats()
        assert stats.free_bytes == 0
        assert stats.bytes_per_sample is not None
        assert stats.bytes_per_sample < 1.3
        assert stats.journal_bytes == 0


@pytest.mark.parametrize("sealed", [True, False])
def test_deleted_series_are_gone_now_and_after_a_restart(tmp_path: Path, sealed: bool) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        ids = fill(store, clock, 5)
        if sealed:
            store.maintain()
        contents_of(store)  # fills the cache
        expected = {one: times for one, times in contents_of(store).items() if ("__name__", "m1") not in one}
        epoch = store.epoch
        assert store.delete_series(named("m1")) == 1
        assert contents_of(store) == expected
        assert store.epoch > epoch
        assert store.label_values("__name__") == ["m0", "m2"]
        with pytest.raises(UnknownSeriesError):
            store.append(tick(store.target("node"), clock.at, ids, [1.0, 2.0, 3.0]))
        again = store.resolve(store.target("node"), [labels("m1", node="a")])
        store.append(tick(store.target("node"), clock.at, again, [7.0]))
        assert len(store.select(named("m1"), *EVER)[0].values) == 1
        assert store.check().problems == []
    with Store(tmp_path, clock=clock) as store:
        assert len(contents_of(store)) == 3


def test_a_time_range_can_be_deleted(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 5)
        store.maintain()
        before = contents_of(store)
        low, high = NOW + HOUR_MS, NOW + 2 * HOUR_MS
        store.delete_series([Matcher("__name__", MatchOp.REGEX, "m[01]")], low, high)
        expected = {
            one: {t: v for t, v in times.items() if ("__name__", "m2") in one or not low <= t <= high}
            for one, times in before.items()
        }
        assert contents_of(store) == expected
        assert store.check().problems == []


def test_readers_see_each_sample_once_while_blocks_are_sealed_and_merged(tmp_path: Path) -> None:
    clock = HandClock()
    options = StoreOptions(window_ms=10 * MINUTE_MS, cache_bytes=100_000)
    failures: list[str] = []
    done = threading.Event()
    progress = [NOW - 1000]
    with Store(tmp_path, options, clock) as store:
        target = store.target("node")
        ids = store.resolve(target, [labels("m", i=str(i)) for i in range(10)])
        store.append(Tick(target, NOW, ids, np.zeros(10)))

        def read() -> None:
            while not done.is_set():
                known = progress[0]
                for one in store.select([], NOW, NOW + 10**9):
                    count = len(one.timestamps)
                    expected = (one.timestamps - NOW) // 1000
                    if (expected != np.arange(count)).any() or one.timestamps[-1] < known:
                        failures.append(f"{count} samples, {one.timestamps[-5:]}, known {known}")
                        done.set()

        readers = [threading.Thread(target=read) for _ in range(2)]
        store.start()
        for reader in readers:
            reader.start()
        for number in range(1, 6000):
            clock.at = NOW + number * 1000
            sent = store.submit(Tick(target, clock.at, ids, np.full(10, float(number))))
            if number % 300 == 0:
                sent.result()
                progress[0] = clock.at
                store.maintain()
                blocks = store.contents.blocks()
                if len(blocks) > 4:
                    store.write_side().background.merge(Merge(blocks[:3], 1))
            if done.is_set():
                break
        done.set()
        for reader in readers:
            reader.join()
        assert failures == []
        assert store.stats().merges > 1
        assert store.stats().seals > 5


class SteppedClock(HandClock):
    """A wall clock that can be set, beside one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0

    def now_ms(self) -> int:
        return self.at + self.ahead

    def monotonic_ms(self) -> int:
        return self.at


def days_of_samples(store: Store, clock: SteppedClock, days: float) -> None:
    """Four an hour, in one commit."""
    target = store.target("node")
    (series,) = store.resolve(target, [labels("m")])
    times = clock.now_ms() + 15 * MINUTE_MS * np.arange(1, int(days * 24 * 4) + 1)
    clock.at += 15 * MINUTE_MS * len(times)
    values = np.ones(len(times))
    store.append(Tick(target, int(times[-1]), np.full(len(times), series), values, times))
    store.maintain()


@pytest.mark.parametrize("ahead_days", [1, 5, 40, 4000])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_set_forward_for_a_while_deletes_nothing(
    tmp_path: Path, ahead_days: int, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, options = SteppedClock(), StoreOptions(retention_ms=6 * DAY_MS)
    store = Store(tmp_path, options, clock)
    days_of_samples(store, clock, 5)
    before = len(store.select([], *EVER)[0].timestamps)
    clock.ahead = ahead_days * DAY_MS
    for _ in range(3):
        store.maintain()
        days_of_samples(store, clock, 1 / 24)
        if restarts:
            store.close()
            store = Store(tmp_path, options, clock)
    is_told = "blocks are kept that are too old by this clock" in caplog.text
    assert is_told is (ahead_days > 1)  # a step that deletes nothing is not worth a line
    clock.ahead = 0
    store.maintain()
    days_of_samples(store, clock, 1 / 24)
    kept = store.select([], *EVER)[0].timestamps
    assert len(kept) == before + 4 * 4
    assert store.stats().dropped_blocks == 0
    store.close()


def test_a_clock_that_was_wrong_at_the_start_deletes_nothing(tmp_path: Path) -> None:
    clock, options = SteppedClock(), StoreOptions(retention_ms=6 * DAY_MS)
    with Store(tmp_path, options, clock) as store:
        days_of_samples(store, clock, 5)
    clock.ahead = 300 * DAY_MS
    with Store(tmp_path, options, clock) as store:
        store.maintain()
        assert store.stats().dropped_blocks == 0
        clock.at += 12 * HOUR_MS
        store.maintain()
        clock.ahead = 0
        clock.at += MINUTE_MS
        store.maintain()
        assert len(store.select([], *EVER)[0].timestamps) == 5 * 24 * 4


def test_a_clock_that_goes_on_for_a_day_is_believed_and_each_block_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock, options = SteppedClock(), StoreOptions(retention_ms=6 * DAY_MS)
    with Store(tmp_path, options, clock) as store:
        days_of_samples(store, clock, 5)
        clock.ahead = 40 * DAY_MS
        store.maintain()
        days_of_samples(store, clock, 23 / 24)
        assert store.stats().dropped_blocks == 0
        days_of_samples(store, clock, 3 / 24)
        dropped = store.stats().dropped_blocks
        assert dropped >= 5
        lines = [one.getMessage() for one in caplog.records if "dropped" in one.getMessage()]
        assert len(lines) == dropped
        assert lines[0].endswith("of node: older than the retention")
        assert caplog.text.count("are kept that are too old") == 1
        assert store.select([], *EVER)[0].timestamps[0] > clock.now_ms() - 2 * DAY_MS
