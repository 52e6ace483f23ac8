"""A usage report as text, CSV, JSON or one HTML page without scripts. Names are escaped for each of them."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from gpuscope.reports.rates import Rates
from gpuscope.reports.usage import GROUPS, UsageReport, UsageRow, total_row
from gpuscope.rfc3339 import to_rfc3339

Escape = Callable[[str], str]
PARTS: Final = ("owners", "unattributed", "free", "lost", "stranded")
MAX_NAME: Final = 30
_COLUMNS: Final = ("GPU-hours", "busy", "idle", "busy %", "kWh")


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _share(row: UsageRow) -> str:
    return "–" if row.busy is None or row.held <= 0 else f"{100 * row.busy / row.held:.0f}"


def _cells(row: UsageRow, rates: Rates | None) -> list[str]:
    cells = [_number(row.held), _number(row.busy), _number(row.idle), _share(row), _number(row.energy_kwh)]
    return cells + ([_number(row.cost, 2)] if rates else [])


def text_lines(report: UsageReport, rates: Rates | None, escape: Escape) -> Iterator[str]:
    """At most 80 columns wide."""
    span = f"{to_rfc3339(report.start_ms / 1000)} to {to_rfc3339(report.end_ms / 1000)}"
    yield f"usage by {report.by}, {span}, {report.gpus} GPUs"
    yield ""
    heads = [*_COLUMNS, *(["cost"] if rates else [])]
    rows = [*report.rows, total_row(report.rows)]
    names = [escape("/".join(filter(None, row.names)) or "unknown")[:MAX_NAME] for row in rows]
    width = max(len(report.by), *map(len, names)) if names else len(report.by)
    yield f"{report.by:<{width}}" + "".join(f"{head:>10}" for head in heads)[: 80 - width]
    for name, row in zip(names, rows, strict=True):
        yield f"{name:<{width}}" + "".join(f"{cell:>10}" for cell in _cells(row, rates))[: 80 - width]
    yield ""
    invariant = report.invariant
    yield f"{_number(invariant.gpu_hours)} GPU-hours = " + " + ".join(
        f"{_number(getattr(invariant, part))} {part}" for part in PARTS
    )
    if rates:
        yield f"cost: {rates.text} per {'kWh' if rates.basis == 'kWh' else f'GPU-hour {rates.basis}'}"
    for sentence in report.missing:
        yield f"missing: {escape(sentence)}"


def to_csv(report: UsageReport, rates: Rates | None, cell: Callable[[object], str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        [
            *GROUPS[report.by],
            "gpu_hours",
            "busy_hours",
            "idle_hours",
            "energy_kwh",
            *(["cost"] if rates else []),
        ]
    )
    for row in report.rows:
        numbers = [row.held, row.busy, row.idle, row.energy_kwh, *([row.cost] if rates else [])]
        writer.writerow([*map(cell, row.names), *("" if one is None else f"{one:.6g}" for one in numbers)])
    return out.getvalue()


def to_json(report: UsageReport, rates: Rates | None) -> dict[str, Any]:
    """`None` is not known; the invariant's last five parts add up to the first."""
    invariant = report.invariant
    return {
        "by": report.by,
        "start": report.start_ms / 1000,
        "end": report.end_ms / 1000,
        "gpus": report.gpus,
        "rows": [_row_json(report, row, rates) for row in report.rows],
        "invariant": {name: getattr(invariant, name) for name in ("gpu_hours", *PARTS)},
        "missing": report.missing,
        **({"rate": rates.text, "rate_basis": rates.basis} if rates else {}),
    }


def _row_json(report: UsageReport, row: UsageRow, rates: Rates | None) -> dict[str, Any]:
    return {
        **dict(zip(GROUPS[report.by], row.names, strict=True)),
        "gpu_hours": row.held,
        "busy_hours": row.busy,
        "idle_hours": row.idle,
        "energy_kwh": row.energy_kwh,
        **({"cost": row.cost} if rates else {}),
    }


_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;
margin:2em auto;padding:0 1em;color:#1b1f24}
table{border-collapse:collapse;width:100%}
th,td{padding:.3em .6em;text-align:right;border-bottom:1px solid #d8dee4}
th:first-child,td:first-child{text-align:left}.bar{display:flex;height:1.2em;border-radius:3px;overflow:hidden}
.owners{background:#2f6feb}.unattributed{background:#8b949e}.free{background:#d8dee4}.lost{background:#cf222e}
.stranded{background:#bf8700}.busy{background:#1a7f37}.idle{background:#d4a72c}td .bar{min-width:12em}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}
th,td{border-color:#30363d}.free{background:#30363d}}
"""


def to_html(report: UsageReport, rates: Rates | None) -> str:
    heads = [report.by, "", *_COLUMNS, *(["cost"] if rates else [])]
    most = max((row.held for row in report.rows), default=0.0)
    head_cells = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join(_html_row(row, rates, most) for row in report.rows)
    invariant = report.invariant
    whole = invariant.gpu_hours or 1.0
    parts = [(part, getattr(invariant, part)) for part in PARTS]
    bar = "".join(
        f'<span class="{part}" style="width:{100 * hours / whole:.2f}%"></span>' for part, hours in parts
    )
    legend = ", ".join(f"{_number(hours)} {part}" for part, hours in parts)
    span = f"{to_rfc3339(report.start_ms / 1000)} to {to_rfc3339(report.end_ms / 1000)}"
    notes = "".join(f"<p>Missing: {html.escape(sentence)}</p>" for sentence in report.missing)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>GPU usage by {report.by}</title>'
        f"<style>{_STYLE}</style><h1>GPU usage by {report.by}</h1><p>{span}, {report.gpus} GPUs</p>"
        f'<div class="bar" role="img" aria-label="{html.escape(legend)}">{bar}</div>'
        f"<p>{_number(invariant.gpu_hours)} GPU-hours: {html.escape(legend)}</p>{notes}"
        f"<table><thead><tr>{head_cells}</tr></thead><tbody>{body}</tbody></table></html>\n"
    )


def _html_row(row: UsageRow, rates: Rates | None, most: float) -> str:
    name = html.escape("/".join(filter(None, row.names)) or "unknown")
    parts: Sequence[tuple[str, float]] = (
        [("owners", row.held)]
        if row.busy is None
        else [("busy", min(row.busy, row.held)), ("idle", row.idle or 0.0)]
    )
    bar = "".join(
        f'<span class="{kind}" style="width:{100 * hours / (most or 1):.2f}%"></span>' for kind, hours in parts
    )
    cells = "".join(f"<td>{cell}</td>" for cell in _cells(row, rates))
    return f'<tr><td>{name}</td><td><div class="bar">{bar}</div></td>{cells}</tr>'
