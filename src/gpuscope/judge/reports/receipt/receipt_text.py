"""A receipt as text of 80 columns, as one self-contained HTML page, and in the form of jobstats."""

from __future__ import annotations

import base64
import gzip
import html
import json
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt, ReceiptGpu
from gpuscope.judge.reports.report_page import legend, one_bar, page, scrolling, sentences

WIDTH: Final = 80
METER: Final = 50
MAX_GPU_LINES: Final = 64
GIB: Final = float(1 << 30)
Escape = Callable[[str], str]


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def percent_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.0f} %"


def gib_text(value: float | None) -> str:
    return "–" if value is None else f"{value / GIB:.1f}"


def receipt_lines(receipt: JobReceipt, escape: Escape) -> Iterator[str]:
    title = f"{receipt.kind} {receipt_name(receipt)}"
    yield escape(title)[:WIDTH].center(WIDTH).rstrip()
    yield "=" * WIDTH
    for name, value in receipt_facts(receipt):
        yield f"{name:>18}: {escape(value)}"[:WIDTH]
    yield ""
    yield from _wrap(receipt.efficiency_line)
    yield ""
    yield f"{'GPUs busy':>18}  {_meter(receipt.efficiency)}"
    yield f"{'peak GPU memory':>18}  {_meter(receipt.peak_memory_ratio)}"
    yield ""
    yield from _gpu_table(receipt, escape)
    if len(receipt.runs) > 1:
        yield ""
        yield f"{'Runs, the last one above':<34}{'run time':>12}{'GPUs':>6}{'GPU-hours':>11}{'busy':>7}"
        for started, length, gpus, hours, busy in run_rows(receipt):
            yield f"  {started:<32}{length:>12}{gpus:>6}{hours:>11}{busy:>7}"
    if receipt.notes:
        yield ""
        yield "Notes"
        for note in receipt.notes:
            yield from _wrap(f"* {escape(note.text)}", "  ")
            yield from _wrap(f"    {escape(note.command)}", "      ")
    if receipt.not_known:
        yield ""
        yield "Not known"
        for sentence in receipt.not_known:
            yield from _wrap(f"* {escape(sentence)}", "  ")


def run_rows(receipt: JobReceipt) -> Iterator[tuple[str, str, str, str, str]]:
    """Of each run: when it started, for how long it ran, its GPUs, GPU-hours and busy share."""
    for run in receipt.runs:
        started, length = to_rfc3339(int(run.started_at)), duration_text(run.run_seconds)
        yield started, length, str(run.gpus), f"{run.gpu_hours:.2f}", percent_text(run.efficiency)


def receipt_name(receipt: JobReceipt) -> str:
    return f"{receipt.namespace}/{receipt.name}" if receipt.namespace else receipt.name


def receipt_facts(receipt: JobReceipt) -> Iterator[tuple[str, str]]:
    """Names and values, without those that are not known."""
    if receipt.user or receipt.account:
        yield "user/account", "/".join(filter(None, (receipt.user, receipt.account)))
    if receipt.job_name:
        yield "name", receipt.job_name
    if receipt.partition:
        yield "partition", receipt.partition
    yield "state", "running" if receipt.running else "ended"
    if len(receipt.runs) > 1:
        yield "runs", f"{len(receipt.runs)}; this is the last"
    yield "started", to_rfc3339(int(receipt.started_at))
    run = duration_text(receipt.run_seconds)
    yield "run time", f"{run} of {duration_text(receipt.limit_seconds)}" if receipt.limit_seconds else run
    if receipt.waited_seconds is not None:
        yield "waited", duration_text(receipt.waited_seconds)
    requested = "" if receipt.requested_gpus is None else f"{receipt.requested_gpus:g} requested, "
    nodes = len({gpu.node for gpu in receipt.gpus})
    yield "GPUs", f"{requested}{len(receipt.gpus)} held on {nodes} node{'s' if nodes != 1 else ''}"
    yield "GPU-hours", _hours(receipt)
    if receipt.idle_ratio is not None:
        longest = receipt.longest_idle_seconds
        stretch = "" if not longest else f", longest stretch {duration_text(longest)}"
        yield "idle", f"{percent_text(receipt.idle_ratio)}{stretch}"
    if receipt.energy_kwh is not None:
        yield "energy", f"{'~' if receipt.energy_is_estimate else ''}{receipt.energy_kwh:.2f} kWh"
    for reason, seconds in sorted(receipt.throttled_seconds.items()):
        yield "throttled", f"{duration_text(seconds)} ({reason})"
    yield "XIDs", ", ".join(f"{code} ({count}×)" for code, count in sorted(receipt.xids.items())) or "none"


def _hours(receipt: JobReceipt) -> str:
    busy = "–" if receipt.busy_hours is None else f"{receipt.busy_hours:.2f}"
    unknown = f", {receipt.unknown_hours:.2f} unknown" if receipt.unknown_hours > 0.001 else ""
    return f"{receipt.gpu_hours:.2f} held, {busy} busy{unknown}"


def _meter(ratio: float | None) -> str:
    """Fifty characters with the number inside."""
    if ratio is None:
        return "[" + "not known".center(METER) + "]"
    filled = round(METER * min(1.0, ratio))
    number = f" {100 * ratio:.0f} %"
    bar = "|" * filled + " " * (METER - filled)
    return f"[{bar[: METER - len(number)]}{number}]"


def _gpu_table(receipt: JobReceipt, escape: Escape) -> Iterator[str]:
    yield f"{'GPU':<34}{'held':>11}{'busy':>7}{'idle stretch':>14}{'memory GiB':>12}"
    shown = receipt.gpus[:MAX_GPU_LINES]
    for node, gpus in groupby(shown, key=lambda one: one.node):
        yield escape(node)[:WIDTH]
        for gpu in gpus:
            yield _gpu_line(gpu, escape)
    if len(receipt.gpus) > len(shown):
        yield f"  and {len(receipt.gpus) - len(shown)} more GPUs; --json has all"
    if receipt.spread is not None and len(receipt.gpus) > 1:
        low, high = receipt.spread
        yield f"{'spread':<34}{'':>11}{100 * low:.0f}–{100 * high:.0f} %".rstrip()


def _gpu_line(gpu: ReceiptGpu, escape: Escape) -> str:
    name = escape("  " + " ".join(filter(None, (gpu.gpu, gpu.profile, gpu.model))))[:33]
    held, busy, idle, memory = _gpu_cells(gpu)
    unused = " ←" if gpu.busy_ratio is not None and gpu.busy_ratio < 0.01 else ""
    return f"{name:<34}{held:>11}{busy:>7}{idle:>14}{memory:>12}{unused}"


def _gpu_cells(gpu: ReceiptGpu) -> tuple[str, str, str, str]:
    """For how long it was held, its busy share, longest idle stretch and memory."""
    idle = "–" if gpu.longest_idle_seconds is None else duration_text(gpu.longest_idle_seconds)
    memory = f"{gib_text(gpu.memory_peak_bytes)}/{gib_text(gpu.memory_total_bytes)}"
    return duration_text(gpu.held_seconds), percent_text(gpu.busy_ratio), idle, memory


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    ) or [""]


JOBSTATS_PREFIX: Final = "JS1:"


def jobstats_summary(receipt: JobReceipt) -> str:
    """The form that jobstats keeps in Slurm's AdminComment, `JS1:` and gzipped JSON, for reportseff. It has no
    CPU and main memory, which reportseff takes from sacct, and no GPU whose work is not known: it shows 0."""
    document = json.dumps(_jobstats_document(receipt), separators=(",", ":"), sort_keys=True)
    # No time in the header: the same receipt is the same text.
    return JOBSTATS_PREFIX + base64.b64encode(gzip.compress(document.encode(), mtime=0)).decode("ascii")


def _jobstats_document(receipt: JobReceipt) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {}
    for gpu in receipt.gpus:
        if gpu.busy_ratio is None or gpu.memory_peak_bytes is None or not gpu.memory_total_bytes:
            continue
        node = nodes.setdefault(
            gpu.node, {"gpu_utilization": {}, "gpu_used_memory": {}, "gpu_total_memory": {}}
        )
        node["gpu_utilization"][gpu.gpu] = round(100 * gpu.busy_ratio, 1)
        node["gpu_used_memory"][gpu.gpu] = int(gpu.memory_peak_bytes)
        node["gpu_total_memory"][gpu.gpu] = int(gpu.memory_total_bytes)
    return {"gpus": len(receipt.gpus), "total_time": round(receipt.run_seconds), "nodes": nodes}


MAX_GPU_ROWS: Final = 1_000
"""A browser shows more only slowly; the JSON has all."""


def receipt_page(receipt: JobReceipt) -> str:
    title = f"{receipt.kind} {receipt_name(receipt)}"
    return page(title, _parts(receipt, title))


def _parts(receipt: JobReceipt, title: str) -> Iterator[str]:
    yield f"<h1>{html.escape(title)}</h1>"
    yield f"<p>{html.escape(receipt.efficiency_line)}</p>"
    uses = _uses(receipt.gpu_hours, receipt.busy_hours, receipt.unknown_hours)
    yield one_bar(uses, receipt.gpu_hours, receipt.efficiency_line)
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
    plot = one_bar(_uses(gpu.gpu_seconds, gpu.busy_seconds, gpu.unknown_seconds), gpu.gpu_seconds, height=12)
    cells = "".join(f"<td>{cell}</td>" for cell in _gpu_cells(gpu))
    return f'<tr><th scope="row">{html.escape(name)}</th><td class="plot">{plot}</td>{cells}</tr>'
