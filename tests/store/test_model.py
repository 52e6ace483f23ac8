"""Compares the store with a dictionary after random appends, seals, merges and restarts."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.seal import FINAL_LEVEL, Merge
from gpuscope.model.series import STALE_NAN_BITS, Labels
from tests.examples import examples
from tests.store.support import EVER, NOW, HandClock, SamplesByLabels, as_contents, contents_of, labels

STEP = 1000
MAX_LATE_MS = 15 * STEP
OPTIONS = StoreOptions(window_ms=20 * STEP, max_ahead_ms=10 * STEP, min_late_ms=MAX_LATE_MS)
VALUES = st.one_of(
    st.integers(0, 5).map(float),
    st.sampled_from([0.125, -0.0, float("inf"), float("nan")]),
    st.just(float(np.int64(STALE_NAN_BITS).view(np.float64))),
)
# One tick: how far the clock moves, target, (series, lateness in steps, value) for each sample.
samples = st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 30), VALUES), min_size=1, max_size=8)
ticks = st.tuples(st.just("tick"), st.integers(0, 3), st.integers(0, 1), samples)
scrapes = st.tuples(
    st.just("scrape"), st.integers(0, 3), st.integers(0, 1), st.lists(VALUES, min_size=7, max_size=7)
)
upkeep = st.tuples(st.sampled_from(["maintain", "seal", "reopen", "merge", "jump back"]))
steps = st.lists(st.one_of(ticks, scrapes, scrapes, upkeep), min_size=1, max_size=25)


class Model:
    """The expected contents of the store."""

    def __init__(self) -> None:
        self.kept: SamplesByLabels = {}

    def expect(self, one: Labels, time: int, pattern: int, *, floor: int, ceiling: int) -> str:
        if time <= floor:
            return "too_old"
        if time > ceiling:
            return "in_future"
        stored = self.kept.setdefault(one, {})
        if time in stored:
            return "repeated" if stored[time] == pattern else "duplicate"
        stored[time] = pattern
        return "accepted"


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = HandClock()
        self.model = Model()
        self.names = {target: [labels(f"m{i}", node=str(target)) for i in range(7)] for target in (0, 1)}
        self.open()

    def open(self) -> None:
        self.store = Store(self.folder, OPTIONS, self.clock)
        self.targets = {number: self.store.target(f"node{number}") for number in (0, 1)}
        self.ids = {n: self.store.resolve(self.targets[n], self.names[n]) for n in (0, 1)}

    def append(self, number: int, chosen: list[tuple[int, int, float]], *, scrape: bool) -> None:
        state = self.store.contents.get(self.targets[number])
        assert state is not None
        ceiling = self.clock.at + OPTIONS.max_ahead_ms
        floor = state.floor if state.floor <= ceiling else self.clock.at - OPTIONS.window_ms
        newest = max((max(times, default=-1) for times in self.model.kept.values()), default=-1)
        late_floor = (newest if newest <= ceiling else self.clock.at) - MAX_LATE_MS - 1
        # The store accepts late samples without reading blocks, and a reader then sees the sealed sample. The
        # dictionary would detect the conflict, so these samples are left out.
        sealed = max((block.last for block in state.blocks), default=-1)
        chosen = [
            (series, time, value)
            for series, time, value in chosen
            if not (time <= sealed and time in self.model.kept.get(self.names[number][series], {}))
        ]
        if not chosen:
            return
        outcome: Counter[str] = Counter()
        for series, time, value in chosen:
            pattern = int(np.float64(value).view(np.int64))
            verdict = self.model.expect(
                self.names[number][series], time, pattern, floor=min(floor, late_floor), ceiling=ceiling
            )
            outcome[verdict] += 1
        series_ids = self.ids[number][[series for series, _, _ in chosen]]
        values = np.array([value for _, _, value in chosen], np.float64)
        times = np.array([time for _, time, _ in chosen], np.int64)
        tick = Tick(self.targets[number], int(times[0]), series_ids, values, None if scrape else times)
        result = self.store.append(tick)
        found = {"accepted": result.accepted, "repeated": result.repeated, **result.refused}
        assert {what: count for what, count in found.items() if count} == outcome

    def step(self, step: tuple) -> None:  # type: ignore[type-arg]
        match step:
            case ("tick", moved, number, chosen):
                self.clock.at += moved * STEP
                placed = [(series, self.clock.at - late * STEP, value) for series, late, value in chosen]
                self.append(number, placed, scrape=False)
            case ("scrape", moved, number, values):
                self.clock.at += moved * STEP
                chosen = [(i, self.clock.at, value) for i, value in enumerate(values)]
                self.append(number, chosen, scrape=True)
            case ("maintain",):
                self.store.maintain()
            case ("seal",):
                self.store.seal()
            case ("merge",):
                for state in self.store.contents.states():
                    if len(state.blocks) > 1:
                        self.store.write_side().background.merge(Merge(list(state.blocks), FINAL_LEVEL))
            case ("jump back",):
                self.clock.at -= 45 * STEP
            case ("reopen",):
                self.store.close()
                self.open()


@given(steps)
@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_store_agrees_with_a_dictionary(chosen: list[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            for step in chosen:
                run.step(step)
            expected = {one: times for one, times in run.model.kept.items() if times}
            assert contents_of(run.store) == expected
            middle = (NOW - 3 * STEP, NOW + 5 * STEP)
            cut = {
                one: inside
                for one, times in expected.items()
                if (inside := {t: v for t, v in times.items() if middle[0] <= t <= middle[1]})
            }
            assert as_contents(run.store.select([], *middle)) == cut
            latest = {one: dict([max(times.items())]) for one, times in expected.items()}
            assert as_contents(run.store.latest([], *EVER)) == latest
            assert as_contents(run.store.latest([], *middle)) == {
                one: dict([max(times.items())]) for one, times in cut.items()
            }
            assert run.store.check().problems == []
        finally:
            run.store.close()
