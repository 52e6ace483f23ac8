"""A usage report as text of 80 columns, or as CSV. Names are escaped for each of them."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuscope.base.time_text import local_text
from gpuscope.judge.reports.usage.usage import PARTS, UsageReport, UsageRow, total_row
from gpuscope.judge.reports.usage.usage_grouping import parse_grouping

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
