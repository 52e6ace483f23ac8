"""The usage report against simulated accounts whose truth is known, on the embedded store and real engines."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.errors import UsageError
from gpuscope.promql import Engine
from gpuscope.reports.rates import parse_rates
from gpuscope.reports.usage import UsageReport, usage_report
from gpuscope.reports.usage_text import text_lines, to_csv, to_html, to_json
from gpuscope.series import Labels, Series
from tests.reports.test_counter_growth import END_MS, Samples

STEP_MS = 15_000
HOURS = 4
POINTS = HOURS * 240
HOSTILE = '<script>alert(1)</script>=cmd|"\x1b[31m'


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
    *gpu(0, held=1.0),
    *gpu(1, "NVIDIA A100", held=0.5, free=0.5),
    *gpu(2, held=0.0, free=0.4, stranded=0.2, observed=0.6),
    *owner("ann", 0, 0.75, busy=0.6),
    *owner("bob", 0, 0.125, busy=0.0),
    *owner(HOSTILE, 1, 0.5),
]


def report(by: str = "user", hours: float = HOURS, rate: str = "", basis: str = "held") -> UsageReport:
    engine = EmbeddedEngine(None, Engine(Samples(FLEET)))  # type: ignore[arg-type]
    rates = parse_rates(rate, basis) if rate else None
    return asyncio.run(usage_report(engine, by, END_MS - int(hours * 3_600_000), END_MS, rates))


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


def test_a_kind_without_owners_is_unattributed() -> None:
    found = report("pod")
    assert found.rows == []
    assert found.invariant.unattributed == pytest.approx(6.0)


def test_by_node_and_model() -> None:
    assert [(row.names[0], round(row.held, 3)) for row in report("node").rows] == [("n1", 5.5)]
    assert [(row.names[0], round(row.held, 3)) for row in report("model").rows] == [
        ("NVIDIA H100", 3.5),
        ("NVIDIA A100", 2.0),
    ]


def test_a_part_of_the_history() -> None:
    assert report(hours=1).rows[0].held == pytest.approx(0.75)
    assert report(hours=1).missing == []


def test_a_history_that_is_too_short_is_said() -> None:
    (sentence,) = report(hours=10).missing
    assert sentence == "the history begins 6.0 h after the start of the range"
    assert report(hours=10).invariant.gpu_hours == pytest.approx(12, rel=1e-3), "nothing is extrapolated"


def test_costs() -> None:
    held = {row.names[0]: row.cost for row in report(rate="H100=2,*=1").rows}
    assert held == {"ann": pytest.approx(6), "bob": pytest.approx(1), HOSTILE: pytest.approx(2)}
    used = {row.names[0]: row.cost for row in report(rate="2", basis="used").rows}
    assert used == {"ann": pytest.approx(4.8), "bob": pytest.approx(0), HOSTILE: None}
    assert report(rate="0.5/kWh").rows[0].cost == pytest.approx(2.4 * 0.36 / 2)
    unpriced = report(rate="A100=1")
    assert "no rate for model NVIDIA H100" in unpriced.missing
    assert {row.names[0]: row.cost for row in unpriced.rows}["ann"] is None, "an unknown price is not 0"


@pytest.mark.parametrize("text", ["x", "H100=", "1/week", "-1", "A=1,B=y"])
def test_a_wrong_rate_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--rate"):
        parse_rates(text)


def test_text_fits_80_columns_and_escapes() -> None:
    lines = list(text_lines(report(rate="2"), parse_rates("2"), lambda text: text.replace("\x1b", "?")))
    assert max(map(len, lines)) <= 100
    assert all(len(line) <= 80 for line in lines[:8])
    assert "\x1b" not in "".join(lines)
    assert any(line.startswith("12.0 GPU-hours = 5.5 owners + 0.5 unattributed") for line in lines)


def test_json_and_csv_and_html() -> None:
    document = json.loads(json.dumps(to_json(report(), None)))
    assert document["rows"][0]["name"] == "ann"
    assert document["rows"][1]["busy_hours"] is None
    assert list(document["invariant"]) == ["gpu_hours", "owners", "unattributed", "free", "lost", "stranded"]
    table = to_csv(report(), None, str)
    assert table.splitlines()[0] == "name,gpu_hours,busy_hours,idle_hours,energy_kwh"
    page = to_html(report(), None)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
