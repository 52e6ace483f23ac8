"""The differential test's expressions over HTTP: on the embedded store, and through `--store` on real engines.

Prometheus must give the very same answers, refusals and warnings included. VictoriaMetrics speaks MetricsQL,
which departs from PromQL on purpose: `NOT_ALIKE` lists how, and what is therefore not compared; a slow test
holds that list to be no longer than it must. Every other expression must have the same answer there as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration_api.servers import Answer, Day, ask, differences
from tests.integration_api.test_same_answers import compared, sorted_labels
from tests.promql.corpus import by_hand, random_expressions

ALL = tuple(dict.fromkeys([*by_hand(), *random_expressions(seed=7, count=300)]))
SOME = ALL[::2]
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """Expressions that VictoriaMetrics answers by rules of its own, and which."""

    pattern: str
    reason: str
    ranges_only: bool = False
    always: bool = True  # or only at some times of the day


NOT_ALIKE = (
    Kind(
        r"\b(rate|increase|delta|irate|idelta|deriv|changes|resets|predict_linear)\(",
        "they count from the last sample before the window, and nothing is extrapolated",
    ),
    Kind(r"\[[^\]]*:", "a subquery's steps begin elsewhere, and gaps between them are filled"),
    Kind(r"_over_time\(.*(gauge|events_total)", "NaN samples are passed over: these series have some"),
    Kind(r"NaN|bool.*(gauge|events_total)", "NaN is no value: what compares with it is absent"),
    Kind(r"\bsgn\(", "sgn() of what is absent is 0, where another series at that time has a value"),
    Kind(r"\b(huge|cancels)\b", "a block has one decimal exponent: 1e308 takes the digits of its neighbours"),
    Kind(r"clamp\(gauge, 500, 100\)", "limits the wrong way round are none; Prometheus has no answer"),
    Kind(r"1_000", "no underscores in numbers"),
    Kind(r"absent\(.*d=.*d=", "of two matchers for one label, absent() takes the last; Prometheus neither"),
    Kind(r"\b(endless_bucket|le=~\"1.2.5)", "a histogram without +Inf is taken as it is"),
    Kind(r"histogram_fraction\(3, 1", "limits the wrong way round are refused"),
    Kind(
        r"timestamp\(.*\(|timestamp\(gauge",
        "of a computed value timestamp() has a multiple of five minutes",
        always=False,
    ),
    Kind(r"count_values.*(gpu.*gpu|nan)", "count_values() overwrites no label, and has other digits"),
    Kind(r'"m", "\$1", "model"', "a dot in label_replace() matches no line break"),
    Kind(
        r"\b(gauge|events_total)\b",
        "a gap is bridged by the interval it guesses, not by five minutes, and NaN by the sample before it",
        ranges_only=True,
    ),
    Kind(
        r"histogram_(quantile\((0,|-1|2|scalar)|fraction)",
        "of a histogram that is all zeros after a reset no quantile is infinite, and a fraction is 0 or 1",
        ranges_only=True,
    ),
)  # fmt: skip
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Question:
    path: str
    parameters: dict[str, object]

    def put(self, url: str, expression: str) -> Answer:
        return ask(url, f"/api/v1/{self.path}", {"query": expression, **self.parameters}, post=True)


def at(time: float) -> Question:
    return Question("query", {"time": time})


def over(start: float, end: float, step: float) -> Question:
    return Question("query_range", {"start": start, "end": end, "step": step})


def all_answers(url: str, question: Question, expressions: Iterable[str]) -> list[Answer]:
    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(lambda expression: question.put(url, expression), expressions))


def problems(ours: str, over_engine: str, question: Question, expressions: tuple[str, ...]) -> list[str]:
    answers = (all_answers(url, question, expressions) for url in (ours, over_engine))
    found = []
    for expression, mine, its in zip(expressions, *answers, strict=True):
        first = next(differences(in_order(expression, mine), in_order(expression, its)), None)
        if first is not None:
            found.append(f"{expression}\n    {question.path}{first}")
    return found


def in_order(expression: str, answer: Answer) -> Any:
    """What is compared; only sort() promises an order of series, and only at one instant."""
    told = compared(answer, in_order=expression.startswith("sort"))
    for notes in ("warnings", "infos"):  # Prometheus has one for each value of a parameter, up to ten
        if notes in told.body:
            told.body[notes] = bool(told.body[notes])
    data = told.body.get("data") if isinstance(told.body, dict) else None
    if data and data["resultType"] == "matrix":
        data["result"] = sorted(data["result"], key=lambda one: sorted_labels(one["metric"]))
    return {"status": told.status, "kind": told.kind, "body": told.body}


def report(found: list[str]) -> str:
    return f"{len(found)} differ:\n" + "\n".join(found[:20])


def test_prometheus(gpuscope: str, over_prometheus: str, day: Day) -> None:
    for question in (at(day.middle), over(day.start - 300, day.end + 600, 311)):
        found = problems(gpuscope, over_prometheus, question, SOME)
        assert not found, report(found)


@pytest.mark.slow
@pytest.mark.parametrize("step", [15, 47, 300, 1000])
def test_prometheus_with_all_of_them_and_more(gpuscope: str, over_prometheus: str, day: Day, step: int) -> None:
    expressions = tuple(dict.fromkeys([*ALL, *random_expressions(seed=step, count=1_000)]))
    for question in (at(day.middle + step), over(day.start - 600, day.end + 600, step)):
        found = problems(gpuscope, over_prometheus, question, expressions)
        assert not found, report(found)


def kinds(expression: str, *, ranges: bool) -> Iterator[Kind]:
    for kind in NOT_ALIKE:
        if (ranges or not kind.ranges_only) and re.search(kind.pattern, expression):
            yield kind


def differ(mine: Answer, its: Answer) -> str | None:
    """What VictoriaMetrics says otherwise, apart from form: scalars are vectors, NaN is absent, names stay.

    What PromQL refuses it may answer: its language is the wider one.
    """
    if mine.status != 200:
        return None
    if its.status != 200:
        return f"refused: {its.body}"
    left, right = (_points(_body(one)["data"]) for one in (mine, its))
    for key in sorted(left.keys() | right.keys()):
        a, b = left.get(key), right.get(key)
        if a is None or b is None or not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-9):
            return f"{key}: {a}, not {b}"
    return None


def _body(answer: Answer) -> Any:
    # VictoriaMetrics calls samples themselves a stream of JSON, though it is one document.
    return answer.body if isinstance(answer.body, dict) else json.loads(answer.body)


def _points(data: Any) -> dict[tuple[Any, ...], float]:
    if data["resultType"] == "string":
        return {(data["result"][1],): 0.0}
    scalar = data["resultType"] == "scalar"
    rows = [{"metric": {}, "value": data["result"]}] if scalar else data["result"]
    return {
        (*((k, v) for k, v in sorted_labels(row["metric"]) if k != "__name__"), ("", str(float(time)))): float(
            value
        )
        for row in rows
        for time, value in row.get("values", [row.get("value")])
        if value != "NaN"
    }


def alike(expressions: Iterable[str], *, ranges: bool) -> tuple[str, ...]:
    return tuple(one for one in expressions if not any(kinds(one, ranges=ranges)))


def inside(day: Day, step: int) -> Question:
    # Before the first sample and after the last it bridges by the interval it guesses.
    return over(day.start + 1800, day.end - 1800, step)


def deviations(ours: str, theirs: str, question: Question, expressions: tuple[str, ...]) -> dict[str, str]:
    answers = (all_answers(url, question, expressions) for url in (ours, theirs))
    told = {one: differ(mine, its) for one, mine, its in zip(expressions, *answers, strict=True)}
    return {one: said for one, said in told.items() if said is not None}


def test_victoria_metrics(gpuscope: str, over_victoria_metrics: str, day: Day) -> None:
    for question, ranges in ((at(day.middle), False), (at(day.middle + 600), False), (inside(day, 60), True)):
        expressions = alike(SOME, ranges=ranges)
        assert len(expressions) > 120, "most of what is asked every day is compared"
        found = deviations(gpuscope, over_victoria_metrics, question, expressions)
        assert not found, report([f"{one}\n    {said}" for one, said in found.items()])


@pytest.mark.slow
def test_victoria_metrics_with_all_of_them(gpuscope: str, over_victoria_metrics: str, day: Day) -> None:
    # At the first two times no sample is NaN or infinite, at the others the series that have such are left out.
    calm, any_time = ([at(day.middle + seconds) for seconds in some] for some in ((0, 600), (300, 900, 1500)))
    for question in (*calm, *any_time, inside(day, 30), inside(day, 60)):
        expressions = alike(ALL, ranges=question not in calm)
        found = deviations(gpuscope, over_victoria_metrics, question, expressions)
        assert not found, report([f"{one}\n    {said}" for one, said in found.items()])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [one for one in NOT_ALIKE if one.always], ids=lambda kind: kind.pattern)
def test_each_kind_left_out_does_deviate(
    gpuscope: str, over_victoria_metrics: str, day: Day, kind: Kind
) -> None:
    """Each by itself: by an expression that no other kind would have left out."""
    question = inside(day, 60) if kind.ranges_only else at(day.middle)
    only = tuple(one for one in ALL if list(kinds(one, ranges=kind.ranges_only)) == [kind])
    later = at(day.middle + 600)
    found = deviations(gpuscope, over_victoria_metrics, question, only)
    found |= {} if kind.ranges_only else deviations(gpuscope, over_victoria_metrics, later, only)
    assert found, f"of {len(only)} expressions none deviates: compare them"
