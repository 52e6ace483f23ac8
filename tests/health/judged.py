"""Judges a fleet whose samples have stood still for the last hours, as an engine would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.history.promql import Engine, Vector
from gpuscope.history.store.series_pairs import predicate
from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.facts import NOTHING_MISSING, Missing, Sample, sort_samples
from gpuscope.judge.checks.finding import Finding, GpuKey, worst_first
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.judge.checks.judgement import EVALUATED, Judgement
from gpuscope.judge.checks.states import GpuState, states_of
from gpuscope.model.series import Matcher, Series
from tests.health.fleets import NOW

STEP_MS = 60_000
AGES = ("_idle_seconds", "_age_seconds", "_hung_seconds", "_free_seconds")
"""Their values were smaller before."""


class StandingSamples:
    """A `Storage` in which every sample has had its value for `seconds`, and an age has grown to it."""

    def __init__(self, samples: Iterable[Sample], now: float = NOW, seconds: float = 2 * 3600.0) -> None:
        now_ms = int(now * 1000)
        times = np.arange(now_ms - int(seconds * 1000), now_ms + 1, STEP_MS, dtype=np.int64)
        self._series: dict[tuple[tuple[str, str], ...], Series] = {}
        listed = list(samples)
        idle = {str(labels): value for name, labels, value in listed if name.endswith("process_idle_seconds")}
        for name, labels, value in listed:
            values = np.full(len(times), value)
            if name.endswith("_timestamp_seconds"):
                values = times / 1000 - (NOW - value)
            if name == "gpuscope_process_active" and value == 0:
                values[(now_ms - times) / 1000 > idle.get(str(labels), seconds)] = 1.0
            if name.endswith(AGES) and value:
                values = np.maximum(0.0, value - (now_ms - times) / 1000)
            key = tuple(sorted([("__name__", name), *labels.items()]))
            self._series[key] = Series(key, times, values)

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        accept = [(one.name, predicate(one)) for one in matchers]
        found = []
        for labels, series in self._series.items():
            values = dict(labels)
            if all(accepts(values.get(name, "")) for name, accepts in accept):
                inside = (series.timestamps >= start_ms) & (series.timestamps <= end_ms)
                if inside.any():
                    found.append(Series(labels, series.timestamps[inside], series.values[inside]))
        return found


def evaluate(judgement: Judgement, samples: Iterable[Sample], at: float = NOW) -> None:
    """All checks, whether or not they are due."""
    engine = Engine(StandingSamples(samples, at))
    for check in EVALUATED:
        vector = query(engine, check.promql, at)
        others = query(engine, check.others, at) if check.others and vector.labels else None
        judgement.apply(check, vector, at, others)


def query(engine: Engine, promql: str, at: float) -> Vector:
    found = engine.instant(promql, int(at * 1000))
    assert isinstance(found, Vector)
    return found


def found(samples: Iterable[Sample], missing: Missing = NOTHING_MISSING) -> list[Finding]:
    listed, judgement = list(samples), Judgement()
    evaluate(judgement, listed)
    return findings(judgement, listed, missing)


def findings(
    judgement: Judgement, samples: Iterable[Sample], missing: Missing = NOTHING_MISSING
) -> list[Finding]:
    maker = FindingMaker(sort_samples(samples, NOW).nodes, missing, judgement.others)
    return sorted(maker.make(judgement.open_now()), key=worst_first)


def states(samples: Iterable[Sample], instance: str = "n1:9400") -> dict[GpuKey, GpuState]:
    listed, judgement = list(samples), Judgement()
    evaluate(judgement, listed)
    nodes = sort_samples(listed, NOW).nodes
    reasons = FindingMaker(nodes).reasons(judgement.open_now())
    return states_of(nodes[instance], reasons.get(instance, {}), gone=False, unread=False, now=NOW)


def holds(check: Check, samples: Iterable[Sample], at: float = NOW) -> list[dict[str, str]]:
    """The labels of what it holds for."""
    return [dict(labels) for labels in query(Engine(StandingSamples(samples, at)), check.promql, at).labels]
