"""Helpers for the store's tests: a manual clock, small stores, samples as dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.history.store import Appended, Store, Tick
from gpuscope.model.series import Labels, Matcher, MatchOp, Series

NOW = 1_700_000_000_000
EVER = (-(2**62), 2**62)
SamplesByLabels = dict[Labels, dict[int, int]]
"""Labels → time → the bits of the value."""


class HandClock:
    def __init__(self, at: int = NOW) -> None:
        self.at = at

    def now_ms(self) -> int:
        return self.at

    def monotonic_ms(self) -> int:
        return self.now_ms()


def labels(name: str, **more: str) -> Labels:
    return tuple(sorted({"__name__": name, **more}.items()))


def equal(name: str, value: str) -> Matcher:
    return Matcher(name, MatchOp.EQUAL, value)


def named(name: str) -> list[Matcher]:
    return [equal("__name__", name)]


def tick(target: int, at: int, series: Iterable[int], values: Iterable[float]) -> Tick:
    return Tick(target, at, np.array(list(series), np.int64), np.array(list(values), np.float64))


def timed_tick(target: int, samples: Sequence[tuple[int, int, float]]) -> Tick:
    """Build a tick from (series, time, value) triples."""
    series, times, values = zip(*samples, strict=True)
    return Tick(
        target,
        max(times),
        np.array(series, np.int64),
        np.array(values, np.float64),
        np.array(times, np.int64),
    )


def as_contents(found: Iterable[Series]) -> SamplesByLabels:
    contents: SamplesByLabels = {}
    for series in found:
        assert series.labels not in contents, "a series was returned twice"
        times = series.timestamps.tolist()
        assert times == sorted(set(times)), "times must be ascending"
        contents[series.labels] = dict(zip(times, series.values.view(np.int64).tolist(), strict=True))
    return contents


def contents_of(store: Store) -> SamplesByLabels:
    return as_contents(store.select([], *EVER))


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def fill(store: Store, clock: HandClock, hours: float, *, step: int = 60_000, width: int = 3) -> list[int]:
    """Fill one target with integers, one tick per step; return the series ids."""
    target = store.target("node")
    ids = store.resolve(target, [labels(f"m{i}", node="a") for i in range(width)])
    end = clock.at + int(hours * 3_600_000)
    times = range(clock.at, end, step)
    writer = store.write_side().writer
    for at in range(0, len(times), 60):  # many ticks per commit: disk speed is not tested
        ticks = [
            Tick(target, time, ids, np.arange(width, dtype=np.float64) + time // step % 97)
            for time in times[at : at + 60]
        ]
        clock.at = ticks[-1].timestamp
        outcomes = writer.call(lambda ticks=ticks: writer.appender.write(ticks))  # type: ignore[misc]
        assert all(isinstance(one, Appended) and one.accepted == width for one in outcomes)
    clock.at = end
    return [int(series_id) for series_id in ids]
