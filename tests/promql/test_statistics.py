"""Query statistics; the differential test compares the numbers with a real Prometheus."""

from __future__ import annotations

import pytest

from gpuscope.history.promql import Engine, Statistics
from tests.promql.hostile import START_MS, hostile_storage

HOSTILE = hostile_storage()
MIDDLE_MS = START_MS + 3_600_000


def samples(query: str, steps: int = 1) -> list[int]:
    statistics = Statistics(per_step=True)
    if steps == 1:
        Engine(HOSTILE).instant(query, MIDDLE_MS, statistics=statistics)
    else:
        end = MIDDLE_MS + 60_000 * (steps - 1)
        Engine(HOSTILE).range(query, MIDDLE_MS, end, 60_000, statistics=statistics)
    told = statistics.as_json()["samples"]
    counts = [count for _, count in told["totalQueryableSamplesPerStep"]]
    assert sum(counts) == told["totalQueryableSamples"]
    assert told["peakSamples"] >= 0
    return counts


def test_samples_are_counted_per_step() -> None:
    (once,) = samples("watts")
    assert once > 0
    assert samples("watts + watts") == [2 * once]
    assert samples("watts", 3) == [once] * 3
    assert samples("1 + time()", 3) == [0, 0, 0]


def test_constant_selectors_count_at_every_step() -> None:
    assert samples("watts @ end()", 4) == samples("watts") * 4
    first, second = samples("sum_over_time(watts[5m] @ end())", 2)
    assert first == second > 0


def test_a_subquery_counts_its_results() -> None:
    (series,) = samples("watts")
    assert samples("sum_over_time(vector(1)[10m:1m])") == [10]
    assert samples("sum_over_time(sum(watts)[10m:1m])") == [10]
    assert samples("sum(watts)[10m:1m]") == [10 * series]


@pytest.mark.parametrize("per_step", [True, False])
def test_times_add_up(per_step: bool) -> None:
    statistics = Statistics(per_step=per_step)
    Engine(HOSTILE).instant("watts", MIDDLE_MS, statistics=statistics)
    told = statistics.as_json()
    timings = told["timings"]
    assert timings["evalTotalTime"] >= timings["innerEvalTime"] > 0
    assert timings["execTotalTime"] >= timings["evalTotalTime"]
    assert ("totalQueryableSamplesPerStep" in told["samples"]) == per_step


def test_counting_does_not_change_results() -> None:
    for query in ("watts", "rate(events_total[5m])", "max_over_time(gauge[5m:1m] @ end())", "topk(2, watts)"):
        plain = Engine(HOSTILE).range(query, START_MS, MIDDLE_MS, 60_000)
        counted = Engine(HOSTILE).range(query, START_MS, MIDDLE_MS, 60_000, statistics=Statistics())
        assert plain.labels == counted.labels
        assert plain.values.tobytes() == counted.values.tobytes()
        assert plain.present.tobytes() == counted.present.tobytes()
