"""A usage report as text of 80 columns, as CSV, or as one self-contained HTML page with plots.

Names are escaped for each of them.
"""

from __future__ import annotations

import csv
import html
import io
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuscope.base.time_text import local_text, zone_text
from gpuscope.judge.reports.report_page import (
    PlotBar,
    legend,
    one_bar,
    page,
    scrolling,
    sentences,
    stacked_bars,
)
from gpuscope.judge.reports.usage.usage import (
    PARTS,
    UsageBucket,
    UsageReport,
    UsageRow,
    parse_grouping,
    total_row,
)

Escape = Callable[[str], str]
WIDTH: Final = 80
MIN_NAME: Final = 12
MAX_NAME: Final = 30
MIN_UNPRICED_HOURS: Final = 0.05


def number_text(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def busy_percent(row: UsageRow) -> str:
    return "–" if row.busy is None or row.held <= 0 else f"{100 * row.busy / row.held:.0f}"


def energy_text(row: UsageRow) -> str:
    return ("~" if row.is_energy_estimate else "") + number_text(row.energy_kwh)


def cost_text(row: UsageRow) -> str:
    """At least that much, if some of its hours have no price."""
    is_part = row.cost is not None and row.unpriced >= MIN_UNPRICED_HOURS
    return ("≥ " if is_part else "") + number_text(row.cost, 2)


@dataclass(frozen=True, slots=True)
class UsageColumn:
    head: str
    cell: Callable[[UsageRow], str]
    may_be_left_out: int = 0
    """When there is no room: 1 first, 0 never."""


def usage_columns(report: UsageReport) -> list[UsageColumn]:
    columns = [
        UsageColumn("GPU-hours", lambda row: number_text(row.held)),
        UsageColumn("busy", lambda row: number_text(row.busy)),
        UsageColumn("idle", lambda row: number_text(row.idle), 2),
    ]
    if any(row.unknown >= 0.05 for row in report.rows):
        columns.append(UsageColumn("unknown", lambda row: number_text(row.unknown)))
    columns += [
        UsageColumn("idle-held", lambda row: number_text(row.idle_held)),
        UsageColumn("busy %", busy_percent, 1),
        UsageColumn("kWh", energy_text),
    ]
    if report.co2_grams_per_kwh is not None:
        columns.append(UsageColumn("kg CO₂", lambda row: number_text(row.co2_kg)))
    if report.rates is not None:
        columns.append(UsageColumn("cost", cost_text))
    return columns


def row_name(row: UsageRow) -> str:
    return "/".join(filter(None, row.names)) or "unknown"


def range_text(report: UsageReport) -> str:
    return " to ".join(local_text(at_ms // 1000, report.zone) for at_ms in (report.start_ms, report.end_ms))


def text_lines(report: UsageReport, kind: str, escape: Escape) -> Iterator[str]:
    """At most 80 columns wide."""
    yield from _wrap(f"{kind} by {report.by}, {range_text(report)}, {report.gpus} GPUs", "")
    yield ""
    yield from _table(report, escape)
    yield ""
    yield from _wrap(invariant_text(report))
    yield from (line for sentence in price_sentences(report) for line in _wrap(sentence))
    for note in report.notes:
        yield from _wrap(f"note: {escape(note)}")
    for sentence in report.missing:
        yield from _wrap(f"missing: {escape(sentence)}")


def invariant_text(report: UsageReport) -> str:
    parts = " + ".join(f"{number_text(getattr(report.invariant, part))} {part}" for part in PARTS)
    return f"{number_text(report.invariant.gpu_hours)} GPU-hours = {parts}"


def price_sentences(report: UsageReport) -> Iterator[str]:
    rates = report.rates
    if rates is not None:
        yield f"cost: {rates.text} per {'kWh' if rates.basis == 'kWh' else f'GPU-hour {rates.basis}'}"
    if report.co2_grams_per_kwh is not None:
        yield f"CO₂: {report.co2_grams_per_kwh:g} g per kWh"


def _wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _table(report: UsageReport, escape: Escape) -> Iterator[str]:
    rows = [*report.rows, total_row(report.rows)]
    columns, widths = _fitting(usage_columns(report), rows)
    room = WIDTH - sum(widths)
    names = [_cut(escape(row_name(row)), min(room, MAX_NAME)) for row in rows]
    width = max(map(len, (report.by, *names)))
    yield f"{_cut(report.by, room):<{min(width, room)}}" + "".join(
        f"{column.head:>{size}}" for column, size in zip(columns, widths, strict=True)
    )
    for name, row in zip(names, rows, strict=True):
        cells = (f"{column.cell(row):>{size}}" for column, size in zip(columns, widths, strict=True))
        yield f"{name:<{min(width, room)}}" + "".join(cells)


def _fitting(columns: list[UsageColumn], rows: list[UsageRow]) -> tuple[list[UsageColumn], list[int]]:
    """Without the columns that leave no room for a name."""
    while True:
        widths = [2 + max(len(column.head), *(len(column.cell(row)) for row in rows)) for column in columns]
        optional = sorted(
            (column for column in columns if column.may_be_left_out), key=lambda one: one.may_be_left_out
        )
        if sum(widths) <= WIDTH - MIN_NAME or not optional:
            return columns, widths
        columns = [column for column in columns if column is not optional[0]]


def _cut(text: str, width: int) -> str:
    """Without its middle: names of pods differ at their ends."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:] if end else ''}"


def to_csv(report: UsageReport, cell: Callable[[object], str]) -> str:
    """`cell` escapes a name for spreadsheets; an empty cell is not known."""
    out = io.StringIO()
    writer = csv.writer(out)
    has_cost, has_co2 = report.rates is not None, report.co2_grams_per_kwh is not None
    heads = ["gpu_hours", "busy_hours", "idle_hours", "unknown_hours", "idle_held_hours", "energy_kwh"]
    heads.append("energy_is_estimate")
    heads += [*(["cost", "unpriced_hours"] if has_cost else []), *(["co2_kg"] if has_co2 else [])]
    writer.writerow([*parse_grouping(report.by).columns, *heads])
    for row in report.rows:
        numbers = [row.held, row.busy, row.idle, row.unknown, row.idle_held, row.energy_kwh]
        cells = ["" if number is None else f"{number:.6g}" for number in numbers]
        cells.append(str(row.is_energy_estimate).lower())
        more = [*([row.cost, row.unpriced] if has_cost else []), *([row.co2_kg] if has_co2 else [])]
        cells += ["" if one is None else f"{one:.6g}" for one in more]
        writer.writerow([*map(cell, row.names), *cells])
    return out.getvalue()


BUCKET_PARTS: Final = ("busy", "idle", "unknown", "free", "lost", "stranded")
ROW_PARTS: Final = ("busy", "idle-held", "idle", "unknown")
MAX_ROWS: Final = 2_000
"""Of the table; a browser shows more only slowly. CSV and JSON have all."""


def to_html(report: UsageReport, kind: str) -> str:
    title = f"GPU {kind} by {report.by}"
    return page(title, _parts(report, title))


def _parts(report: UsageReport, title: str) -> Iterator[str]:
    yield f"<h1>{html.escape(title)}</h1>"
    yield f'<p class="soft">{range_text(report)}, {report.gpus} GPUs</p>'
    yield "<h2>Where the hours went</h2>"
    parts = {part: getattr(report.invariant, part) for part in PARTS}
    yield one_bar(parts, report.invariant.gpu_hours, invariant_text(report))
    yield legend(part for part in PARTS if parts[part] > 0)
    yield f"<p>{html.escape(invariant_text(report))}</p>"
    if report.buckets:
        yield "<h2>Over time</h2>"
        width, zone = _width_text(report.buckets[0]), html.escape(zone_text(report.zone))
        yield f'<p class="soft">GPU-hours in each {width}; times are {zone}</p>'
        bars = [
            PlotBar(
                bucket.start_ms / 1000,
                bucket.end_ms / 1000,
                {part: getattr(bucket, part) for part in BUCKET_PARTS},
            )
            for bucket in report.buckets
        ]
        yield stacked_bars(bars, "GPU-hours over time by use", "h", report.zone)
        yield legend(part for part in BUCKET_PARTS if any(bar.parts[part] > 0 for bar in bars))
    yield f"<h2>By {html.escape(report.by)}</h2>"
    yield legend(part for part in ROW_PARTS if any(_row_parts(row)[part] > 0 for row in report.rows))
    yield scrolling(f"hours by {report.by}", _html_table(report))
    left_out = len(report.rows) - MAX_ROWS
    if left_out > 0:
        yield f'<p class="soft">{left_out} more rows are left out here; the total has them.</p>'
    yield sentences("Prices", price_sentences(report))
    yield sentences("Not known", report.missing)
    yield sentences("Notes", report.notes)


def _width_text(bucket: UsageBucket) -> str:
    minutes = (bucket.end_ms - bucket.start_ms) // 60_000
    if minutes < 60:
        return f"{minutes} minutes"
    return (
        "hour" if minutes == 60 else f"{minutes // 60} hours" if minutes < 1440 else f"{minutes / 1440:g} days"
    )


def _html_table(report: UsageReport) -> str:
    columns = usage_columns(report)
    heads = "".join(f'<th scope="col">{html.escape(column.head)}</th>' for column in columns)
    most = max((row.held for row in report.rows), default=0.0)
    body = "".join(_row(columns, row, most) for row in report.rows[:MAX_ROWS])
    total = total_row(report.rows)
    cells = "".join(f"<td>{column.cell(total)}</td>" for column in columns)
    return (
        f'<table><thead><tr><th scope="col">{html.escape(report.by)}</th><td class="plot"></td>{heads}</tr>'
        "</thead>"
        f'<tbody>{body}</tbody><tfoot><tr><th scope="row">total</th><td class="plot"></td>{cells}</tr></tfoot>'
        "</table>"
    )


def _row_parts(row: UsageRow) -> dict[str, float]:
    """Short pauses are no waste: only long idle stretches have a colour that asks for action."""
    idle = row.idle or 0.0
    parts = (row.busy or 0.0, min(row.idle_held, idle), max(0.0, idle - row.idle_held), row.unknown)
    return dict(zip(ROW_PARTS, parts, strict=True))


def _row(columns: list[UsageColumn], row: UsageRow, most: float) -> str:
    cells = "".join(f"<td>{column.cell(row)}</td>" for column in columns)
    return (
        f'<tr><th scope="row">{html.escape(row_name(row))}</th>'
        f'<td class="plot">{one_bar(_row_parts(row), most, height=12)}</td>{cells}</tr>'
    )
