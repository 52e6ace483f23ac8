"""The usage report against simulated accounts whose truth is known, on the embedded store and real engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.engines.query_engine import EngineInfo
from gpuscope.history.promql import Engine
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.judge.reports.rates import parse_co2_factor, parse_rates
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.reports.usage.usage_text import text_lines, to_csv, to_html
from gpuscope.model.series import Labels, Matcher, MatchOp, Series
from gpuscope.serve.reports.report_answers import usage_answer
from tests.fakes import Keywords
from tests.goldens import check_golden
from tests.reports.test_counter_growth import END_MS, Samples

STEP_MS = 15_000
HOURS = 4
POINTS = HOURS * 240
HOSTILE = '<script>alert(1)</script>=cmd|"\x1b[31m'


class SampleEngine(EmbeddedEngine):
    """The evaluator over samples in memory."""

    def __init__(self, samples: Sequence[Series]) -> None:
        super().__init__(None, Engine(Samples(samples)))  # type: ignore[arg-type]
        self._samples_in_memory = samples

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        wanted = [parse_selector(selector) for selector in selectors]
        return [
            one.labels
            for one in self._samples_in_memory
            if any(all(_matches(matcher, dict(one.labels)) for matcher in matchers) for matchers in wanted)
        ]

    async def label_values(
        self,
        label: str,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_values: int | None = None,
    ) -> list[str]:
        found = await self.series(selectors, start_ms, end_ms)
        return sorted({dict(labels)[label] for labels in found if label in dict(labels)})

    async def describe(self) -> EngineInfo:
        return EngineInfo("Prometheus", "3", 15 * 86_400_000)


def _matches(matcher: Matcher, labels: dict[str, str]) -> bool:
    is_equal = labels.get(matcher.name, "") == matcher.value
    return is_equal if matcher.op is MatchOp.EQUAL else not is_equal


def series(metric: str, rate: float, first: int = 0, last: int = POINTS, **labels: str) -> Series:
    """A counter that grows by `rate` a second from sample `first` until sample `last`; it began at 0 there."""
    pairs: Labels = tuple(sorted({"__name__": metric, "instance": "n1", **labels}.items()))
    times = END_MS - HOURS * 3_600_000 + STEP_MS * np.arange(first + 1, last + 1, dtype=np.int64)
    return Series(pairs, times, rate * (STEP_MS / 1000) * np.arange(1, last - first + 1, dtype=float))


def gpu(number: int, model: str = "NVIDIA H100", **more: float) -> list[Series]:
    """One board: seconds per second that were held and free; the rest is not observed."""
    uuid, index = f"GPU-{number}", str(number)
    rows = [
        series("gpuscope_gpu_observed_seconds_total", more.get("observed", 1.0), gpu=index, uuid=uuid),
        series("gpuscope_gpu_held_seconds_total", more.get("held", 0.0), gpu=index, uuid=uuid),
        series("gpuscope_gpu_free_seconds_total", more.get("free", 0.0), gpu=index, uuid=uuid),
        series("gpuscope_gpu_stranded_seconds_total", more.get("stranded", 0.0), gpu=index, uuid=uuid),
    ]
    if "busy" in more:
        rows.append(series("gpuscope_gpu_held_busy_seconds_total", more["busy"], gpu=index, uuid=uuid))
    info: Labels = tuple(sorted({"__name__": "gpuscope_gpu_info", "uuid": uuid, "model": model}.items()))
    return [*rows, Series(info, np.array([END_MS], np.int64), np.array([1.0]))]


def owner(
    name: str, number: int, share: float, busy: float | None = None, first: int = 0, last: int = POINTS
) -> list[Series]:
    labels = {"kind": "user", "namespace": "", "name": name, "gpu": str(number), "uuid": f"GPU-{number}"}
    rows = [series("gpuscope_owner_gpu_seconds_total", share, first, last, **labels)]
    if busy is not None:
        rows.append(series("gpuscope_owner_busy_seconds_total", busy, first, last, **labels))
        rows.append(series("gpuscope_owner_energy_joules_total", 360.0 * busy, first, last, **labels))
    return rows


FLEET = [
    *gpu(0, held=1.0, busy=0.7),
    *gpu(1, "NVIDIA A100", held=0.5, free=0.5),
    *gpu(2, held=0.0, free=0.4, stranded=0.2, observed=0.6),
    *owner("ann", 0, 0.75, busy=0.6),
    *owner("bob", 0, 0.125, busy=0.0),
    *owner(HOSTILE, 1, 0.5),
]


def report(
    by: str = "user",
    hours: float = HOURS,
    rate: str = "",
    basis: str = "held",
    co2: str = "",
    fleet: Sequence[Series] = FLEET,
) -> UsageReport:
    question = UsageQuestion(
        parse_grouping(by),
        END_MS - int(hours * 3_600_000),
        END_MS,
        parse_rates(rate, basis) if rate else None,
        parse_co2_factor(co2) if co2 else None,
    )
    return asyncio.run(usage_report(SampleEngine(fleet), question))


def test_hours_by_user_and_the_invariant() -> None:
    found = report()
    assert [(row.names[0], row.held, row.busy) for row in found.rows] == [
        ("ann", pytest.approx(3.0), pytest.approx(2.4)),
        (HOSTILE, pytest.approx(2.0), None),
        ("bob", pytest.approx(0.5), pytest.approx(0.0)),
    ]
    parts = found.invariant
    assert parts.gpu_hours == pytest.approx(12, rel=1e-3)
    assert (parts.owners, parts.unattributed) == (pytest.approx(5.5), pytest.approx(0.5))
    assert (parts.free, parts.lost, parts.stranded) == (
        pytest.approx(3.6),
        pytest.approx(1.6, rel=1e-2),
        pytest.approx(0.8),
    )
    total = parts.owners + parts.unattributed + parts.free + parts.lost + parts.stranded
    assert total == pytest.approx(parts.gpu_hours, rel=1e-3)
    assert found.rows[0].energy_kwh == pytest.approx(2.4 * 0.36)


def test_idle_stretches_are_never_longer_than_the_idle_time() -> None:
    """A stretch is counted at once when it is 15 minutes long, also if it began before the range."""
    labels: Keywords = {"kind": "user", "namespace": "", "name": "ann", "gpu": "0", "uuid": "GPU-0"}
    stretches = series("gpuscope_owner_idle_gpu_seconds_total", 1.1, **labels)
    (row,) = report(fleet=[*gpu(0, held=1.0), *owner("ann", 0, 1.0, busy=0.0), stretches]).rows
    assert row.idle_held == pytest.approx(row.idle)


def test_a_kind_without_owners_is_unattributed() -> None:
    found = report("pod")
    assert found.rows == []
    assert found.invariant.unattributed == pytest.approx(6.0)
    assert found.missing[-1] == "the history has no owner of kind pod: all 6.0 h are unattributed"


def test_by_node_and_model() -> None:
    (node,) = report("node").rows
    assert (node.names, round(node.held, 3), round(node.busy_known, 3)) == (("n1",), 6.0, 2.8)
    assert node.unknown == pytest.approx(2.0), "of the second GPU the work is not known"
    assert [(row.names[0], round(row.held, 3)) for row in report("model").rows] == [
        ("NVIDIA H100", 4.0),
        ("NVIDIA A100", 2.0),
    ]
    assert report("model").invariant.unattributed == 0, "by GPU every holder counts"


def test_a_part_of_the_history() -> None:
    assert report(hours=1).rows[0].held == pytest.approx(0.75)
    assert report(hours=1).missing == [
        "n1: 0.4 GPU-hours lost: the agent was down or a GPU did not answer",
        "0.5 GPU-hours are without energy: the GPUs do not measure it, or several owners share them",
    ]


def test_a_history_that_is_too_short_is_said() -> None:
    sentence, *_ = report(hours=10).missing
    assert sentence == "the history begins 6.0 h after the start of the range"
    assert report(hours=10).invariant.gpu_hours == pytest.approx(12, rel=1e-3), "nothing is extrapolated"


def test_costs() -> None:
    held = {row.names[0]: row.cost for row in report(rate="H100=2,*=1").rows}
    assert held == {"ann": pytest.approx(6), "bob": pytest.approx(1), HOSTILE: pytest.approx(2)}
    used = {row.names[0]: row.cost for row in report(rate="2", basis="used").rows}
    assert used == {"ann": pytest.approx(4.8), "bob": pytest.approx(0), HOSTILE: None}
    assert report(rate="0.5/kWh").rows[0].cost == pytest.approx(2.4 * 0.36 / 2)
    unpriced = report(rate="A100=1")
    assert "no rate for model NVIDIA H100: 3.5 GPU-hours are not in the cost" in unpriced.missing
    assert {row.names[0]: row.cost for row in unpriced.rows}["ann"] is None, "an unknown price is not 0"


def test_a_cost_without_some_of_the_hours_is_marked() -> None:
    """Half of her hours are on a model without a rate: the number is not what they cost."""
    fleet = [*gpu(0, held=1.0), *gpu(1, "NVIDIA A100", held=1.0), *owner("ann", 0, 1.0), *owner("ann", 1, 1.0)]
    found = report(rate="H100=2", fleet=fleet)
    (row,) = found.rows
    assert (row.cost, row.unpriced) == (pytest.approx(8), pytest.approx(4))
    assert "no rate for model NVIDIA A100: 4.0 GPU-hours are not in the cost" in found.missing
    lines = list(text_lines(found, "usage", str))
    assert [line.rstrip()[-6:] for line in lines if line.startswith(("ann", "total"))] == ["≥ 8.00", "≥ 8.00"]
    assert usage_answer(found, "usage")["rows"][0]["unpriced_hours"] == pytest.approx(4)
    assert "≥ 8.00" in to_html(found, "usage")
    by_energy = report(rate="1/kWh", fleet=[*gpu(0, held=1.0), *owner("ann", 0, 1.0)])
    assert (by_energy.rows[0].cost, by_energy.rows[0].unpriced) == (None, pytest.approx(4))
    assert "4.0 GPU-hours are without energy" in by_energy.missing[-1]


@pytest.mark.parametrize("text", ["x", "H100=", "1/week", "-1", "A=1,B=y", "nan", "inf"])
def test_a_wrong_rate_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--rate"):
        parse_rates(text)


def test_text_fits_80_columns_and_escapes() -> None:
    everything = report(rate="2", co2="475")
    lines = list(text_lines(everything, "usage", lambda text: text.replace("\x1b", "?")))
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert any(line.startswith("12.0 GPU-hours = 5.5 owners + 0.5 unattributed") for line in lines)
    assert "cost: 2 per GPU-hour held" in lines
    assert "CO₂: 475 g per kWh" in lines


def test_json_and_csv_and_html() -> None:
    document = json.loads(json.dumps(usage_answer(report(), "usage")))
    assert document["rows"][0]["name"] == "ann"
    assert document["rows"][1]["busy_hours"] is None, "not known, never 0"
    assert document["rows"][1]["unknown_hours"] == pytest.approx(2.0)
    assert abs(document["invariant"]["difference"]) <= 0.001 * document["invariant"]["gpu_hours"]
    assert usage_answer(report(), "usage", max_rows=1)["rows_left_out"] == 2
    table = to_csv(report(rate="1", co2="100"), str).splitlines()
    assert table[0] == (
        "user,gpu_hours,busy_hours,idle_hours,unknown_hours,idle_held_hours,energy_kwh,energy_is_estimate,"
        "cost,unpriced_hours,co2_kg"
    )
    assert table[1] == "ann,3,2.4,0.6,0,0,0.864,false,3,0,0.0864"
    page = to_html(report(), "usage")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_range_that_begins_between_two_readings_adds_up() -> None:
    fleet = [*gpu(0, held=1.0), *owner("ann", 0, 0.75)]
    parts = report(hours=0.5 - 2 / 3600, fleet=fleet).invariant
    assert parts.gpu_hours == pytest.approx(0.5, abs=1e-3), "from the reading before the start"
    assert parts.owners + parts.unattributed + parts.lost == pytest.approx(parts.gpu_hours, rel=1e-3)


def test_the_plot_adds_up_to_the_invariant() -> None:
    found = report()
    parts = [(one.busy + one.idle + one.unknown, one.free, one.lost, one.stranded) for one in found.buckets]
    held, free, lost, stranded = (sum(column) for column in zip(*parts, strict=True))
    invariant = found.invariant
    assert held == pytest.approx(invariant.owners + invariant.unattributed)
    assert (free, stranded) == (pytest.approx(invariant.free), pytest.approx(invariant.stranded))
    assert lost == pytest.approx(invariant.lost, rel=1e-2)


@pytest.mark.parametrize("text", ["users", "label:", "label:a b", "label", "user:x", 'label:x"}', ""])
def test_a_wrong_grouping_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--by"):
        parse_grouping(text)


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", ""])
def test_a_wrong_co2_factor_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--co2"):
        parse_co2_factor(text)


@pytest.mark.parametrize(("kind", "by"), [("usage", "user"), ("usage", "model"), ("idle", "user")])
def test_the_text_is_as_it_was(kind: str, by: str) -> None:
    found = report(by, rate="H100=2,*=1", co2="475")
    if kind == "idle":
        found.sort_by_idle()
    lines = list(text_lines(found, kind, lambda text: text.replace("\x1b", "?")))
    assert max(map(len, lines)) <= 80
    check_golden(Path(f"reports/{kind}_by_{by}.txt"), ("\n".join(lines) + "\n").encode())
