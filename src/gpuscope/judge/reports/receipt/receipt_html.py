"""A receipt as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final

from gpuscope.judge.reports.receipt.job_receipt import JobReceipt, ReceiptGpu
from gpuscope.judge.reports.receipt.receipt_text import (
    duration_text,
    gib_text,
    percent_text,
    receipt_facts,
    receipt_name,
    run_rows,
)
from gpuscope.judge.reports.report_page import legend, page, scrolling, sentences
from gpuscope.judge.reports.svg_plots import one_bar

MAX_GPU_ROWS: Final = 1_000
"""A browser shows more only slowly; the JSON has all."""


def receipt_page(receipt: JobReceipt) -> str:
    title = f"{receipt.kind} {receipt_name(receipt)}"
    return page(title, _parts(receipt, title))


def _parts(receipt: JobReceipt, title: str) -> Iterator[str]:
    yield f"<h1>{html.escape(title)}</h1>"
    yield f"<p>{html.escape(receipt.efficiency_line())}</p>"
    uses = _uses(receipt.held_hours, receipt.busy_hours, receipt.unknown_hours)
    yield one_bar(uses, receipt.held_hours, receipt.efficiency_line())
    yield legend(name for name, hours in uses.items() if hours > 0)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in receipt_facts(receipt)
    )
    yield f'<table class="facts"><tbody>{rows}</tbody></table>'
    yield "<h2>By GPU</h2>"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("held", "busy", "idle stretch", "memory GiB"))
    body = "".join(_gpu_row(gpu) for gpu in receipt.gpus[:MAX_GPU_ROWS])
    yield scrolling(
        "use by GPU",
        f'<table><thead><tr><th scope="col">GPU</th><td class="plot"></td>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>",
    )
    left_out = len(receipt.gpus) - MAX_GPU_ROWS
    if left_out > 0:
        yield f'<p class="soft">{left_out} more GPUs are left out here; the numbers above have them.</p>'
    if len(receipt.runs) > 1:
        titles = ("started", "run time", "GPUs", "GPU-hours", "busy")
        head = "".join(f'<th scope="col">{title}</th>' for title in titles)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in run_rows(receipt)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        yield "<h2>Runs</h2>" + scrolling("runs", table)
    if receipt.notes:
        items = "".join(
            f"<li>{html.escape(note.text)}<br><code>{html.escape(note.command)}</code></li>"
            for note in receipt.notes
        )
        yield f"<h2>Notes</h2><ul>{items}</ul>"
    yield sentences("Not known", receipt.not_known)


def _uses(held: float, busy: float | None, unknown: float) -> dict[str, float]:
    idle = 0.0 if busy is None else max(0.0, held - busy - unknown)
    return {"busy": busy or 0.0, "idle": idle, "unknown": unknown if busy is not None else held}


def _gpu_row(gpu: ReceiptGpu) -> str:
    name = ", ".join(filter(None, (f"{gpu.node} GPU {gpu.gpu}", gpu.profile, gpu.model)))
    uses = _uses(gpu.gpu_seconds, gpu.busy_seconds, gpu.unknown_seconds)
    idle = "–" if gpu.longest_idle_seconds is None else duration_text(gpu.longest_idle_seconds)
    cells = (
        duration_text(gpu.held_seconds),
        percent_text(gpu.busy_ratio),
        idle,
        f"{gib_text(gpu.memory_peak_bytes)}/{gib_text(gpu.memory_total_bytes)}",
    )
    plot = one_bar(uses, gpu.gpu_seconds, height=12)
    return (
        f'<tr><th scope="row">{html.escape(name)}</th><td class="plot">{plot}</td>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )
