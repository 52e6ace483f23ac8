"""A usage report as one self-contained HTML page with plots."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final

from gpuscope.base.time_text import zone_text
from gpuscope.judge.reports.report_page import legend, page, scrolling, sentences
from gpuscope.judge.reports.svg_plots import PlotBar, one_bar, stacked_bars
from gpuscope.judge.reports.usage.usage import PARTS, UsageBucket, UsageReport, UsageRow, total_row
from gpuscope.judge.reports.usage.usage_text import (
    UsageColumn,
    invariant_text,
    price_sentences,
    range_text,
    row_name,
    usage_columns,
)

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
    yield scrolling(f"hours by {report.by}", _table(report))
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


def _table(report: UsageReport) -> str:
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
