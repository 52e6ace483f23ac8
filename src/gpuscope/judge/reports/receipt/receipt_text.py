"""A receipt as text of 80 columns."""

from __future__ import annotations

import base64
import gzip
import json
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt, ReceiptGpu

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
    yield from _wrap(receipt.efficiency_line())
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
        yield started, length, str(run.gpus), f"{run.held_hours:.2f}", percent_text(run.efficiency)


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
    yield "state", "running" if receipt.is_running else "ended"
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
        yield "energy", f"{'~' if receipt.is_energy_estimate else ''}{receipt.energy_kwh:.2f} kWh"
    for reason, seconds in sorted(receipt.throttled_seconds.items()):
        yield "throttled", f"{duration_text(seconds)} ({reason})"
    yield "XIDs", ", ".join(f"{code} ({count}×)" for code, count in sorted(receipt.xids.items())) or "none"


def _hours(receipt: JobReceipt) -> str:
    busy = "–" if receipt.busy_hours is None else f"{receipt.busy_hours:.2f}"
    unknown = f", {receipt.unknown_hours:.2f} unknown" if receipt.unknown_hours > 0.001 else ""
    return f"{receipt.held_hours:.2f} held, {busy} busy{unknown}"


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
    idle = "–" if gpu.longest_idle_seconds is None else duration_text(gpu.longest_idle_seconds)
    memory = f"{gib_text(gpu.memory_peak_bytes)}/{gib_text(gpu.memory_total_bytes)}"
    unused = " ←" if gpu.busy_ratio is not None and gpu.busy_ratio < 0.01 else ""
    held = duration_text(gpu.held_seconds)
    return f"{name:<34}{held:>11}{percent_text(gpu.busy_ratio):>7}{idle:>14}{memory:>12}{unused}"


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
