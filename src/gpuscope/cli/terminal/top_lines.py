"""Lines of `gpuscope top` besides its two tables: title, status, keys, help, details, findings, queue."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable
from typing import Final

from gpuscope.cli.terminal.fleet_lines import (
    command_text,
    note_lines,
    percent,
    state_style,
    time_left,
    title_line,
    who_text,
)
from gpuscope.cli.terminal.fleet_view import FindingRow, FleetView, GpuRow, JobRow, ProcessRow
from gpuscope.cli.terminal.safe_text import bytes_text, duration_text
from gpuscope.cli.terminal.spans import Line, Span, Style, bar, sparkline
from gpuscope.cli.terminal.top_model import TopModel, gpu_key

FOOTER_KEYS: Final = (
    ("F1", "Help", "help"),
    ("/", "Search", "search"),
    ("F4", "Filter", "filter"),
    ("t", "Tree", "tree"),
    ("s", "Sort", "sort(1)"),
    ("f", "Findings", "findings"),
    ("k", "Signal", "signal"),
    ("q", "Quit", "quit"),
)
"""Key, label and action; a click on the label does the same."""

HELP: Final = (
    ("q F10 Ctrl-C", "quit"),
    ("? h F1", "this help; Esc closes it"),
    ("Up Down PgUp PgDn Home End", "move; the mouse wheel and clicks do the same"),
    ("Tab", "from the GPUs to the processes and back"),
    ("Enter", "details of the GPU or process"),
    ("g", "only processes of the selected GPU; again: all"),
    ("/ F3", "search processes by PID, user, job, pod or command"),
    ("n N", "next and previous hit"),
    ("\\ F4", "filter processes by the same; empty: all"),
    ("u", "filter by the selected process's user; again: all"),
    ("t F5", "tree: processes below the programs that started them"),
    ("s . > F6", "next order: gpu, memory, sm, cpu, user, time, pid, command"),
    ("S , <", "previous order"),
    ("M P T U", "order by GPU memory, CPU, start time, user"),
    ("I", "reverse the order"),
    ("f", "findings: what is wrong, and the next step"),
    ("j", "Slurm queue"),
    ("k F9", "send a signal to the selected process, after a question"),
    ("Space z", "pause and continue"),
)


def title_with_clock(model: TopModel) -> Line:
    at = time.strftime("%H:%M:%S", time.localtime(model.view.now)) if model.view.now else ""
    line = [Span(f"{at} ", Style.DIM), *title_line(model.view)]
    node = model.view.nodes[0] if len(model.view.nodes) == 1 else None
    if node is not None and node.cpu_ratio is not None:
        line.append(Span(f"  CPU {percent(node.cpu_ratio)}"))
    if node is not None and node.memory_used_bytes is not None and node.memory_total_bytes is not None:
        used, total = bytes_text(node.memory_used_bytes), bytes_text(node.memory_total_bytes)
        line.append(Span(f"  RAM {used} of {total}"))
    return line


def status_line(model: TopModel, shown: int, message: str = "") -> Line:
    """One line between the tables: problem first, then a message, then what is shown and how."""
    if model.problem:
        return [Span(f"{model.problem}; trying again", Style.RED)]
    if message:
        return [Span(message, Style.YELLOW)]
    order = f" by {model.sort}{' reversed' if model.reverse else ''}"
    line = [Span(f"{shown} processes", Style.BOLD), Span(order)]
    for active, text in (
        (model.tree, "tree"),
        (model.filter, f"filter {model.filter!r}"),
        (model.only_gpu, "one GPU"),
        (model.paused, "PAUSED"),
    ):
        if active:
            line.append(Span(f"  {text}", Style.CYAN))
    findings = model.view.findings
    if findings:
        worst = Style.RED if any(row.severity == "critical" for row in findings) else Style.YELLOW
        line.append(Span(f"  {len(findings)} finding{'s' if len(findings) > 1 else ''}: f", worst))
    for note in note_lines(model.view)[:1]:
        line += [Span("  "), *note]
    return line


def footer_line(width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """The line of keys, and the columns (from, to) that are clicked for an action."""
    line: Line = []
    regions: list[tuple[int, int, str]] = []
    at = 0
    for key, label, action in FOOTER_KEYS:
        cells = len(key) + len(label) + 1
        if at + cells > width:
            break
        line += [Span(key, Style.BOLD), Span(label, Style.REVERSE), Span(" ")]
        regions.append((at, at + cells, action))
        at += cells
    return line, regions


def help_lines() -> list[Line]:
    width = max(len(keys) for keys, _ in HELP)
    return [[Span(f"{keys:{width}}  ", Style.BOLD), Span(meaning)] for keys, meaning in HELP]


def gpu_detail_lines(row: GpuRow, model: TopModel, width: int) -> list[Line]:
    view = model.view
    past = list(model.history.get(gpu_key(row), ()))
    wide = max(10, width - 14)
    lines: list[Line] = [
        [Span(f"GPU {row.gpu} on {row.node}", Style.BOLD), Span(f"  {row.model} {row.profile}".rstrip())],
        *_pairs(
            ("state", row.state + (f": {row.reason}" if row.reason else ""), state_style(row.state)),
            ("since", _ago(row.since, view.now), Style.PLAIN),
            ("UUID", row.uuid, Style.PLAIN),
            ("who", who_text(row), Style.PLAIN),
        ),
        _meter("utilisation", row.working_ratio, percent(row.working_ratio), wide, model.unicode),
        _meter("memory", row.memory_ratio, _memory(row), wide, model.unicode),
        _meter("power", _share(row.power_watts, row.power_limit_watts), _watts(row), wide, model.unicode),
        *_pairs(
            ("temperature", _text(row.temperature_celsius, lambda value: f"{value:.0f} °C"), Style.PLAIN),
            ("SM active", percent(row.sm_ratio), Style.PLAIN),
            ("tensor", percent(row.tensor_ratio), Style.PLAIN),
            ("DRAM", percent(row.dram_ratio), Style.PLAIN),
        ),
        [Span(f"{'history':12}", Style.DIM), Span(sparkline(past, wide, model.unicode), Style.CYAN)],
        [],
    ]
    lines += [_job_line(job, view.now) for job in view.jobs if f"job {job.job}" in row.allocated_to]
    units = {row.uuid} | {each.uuid for each in view.gpus if each.parent == row.uuid}
    for process in view.processes:
        if process.uuid in units and process.node == row.node:
            lines.append(
                [
                    Span(f"{process.pid:>8} {process.user:12.12} {process.place:16.16} "),
                    Span(f"{_text(process.memory_bytes, bytes_text):>10} {percent(process.sm_ratio):>4} "),
                    Span(command_text(process)),
                ]
            )
    about = [one for one in view.findings or () if one.node == row.node and row.gpu in one.gpus]
    return lines + [line for one in about for line in _finding_lines(one, view.now, width)]


def _job_line(row: JobRow, now: float) -> Line:
    words = [f"job {row.job}", row.name, row.user, row.account, row.partition]
    left = time_left(row.ends_at, now)
    return [
        Span(f"{'allocated':12}", Style.DIM),
        Span("  ".join(filter(None, [*words, f"{left} left" if left else ""]))),
    ]


def process_detail_lines(row: ProcessRow, view: FleetView, width: int) -> list[Line]:
    wrapped = textwrap.wrap(command_text(row), max(20, width - 14)) or [""]
    return [
        [Span(f"process {row.pid} on {row.node}", Style.BOLD)],
        *_pairs(
            ("user", row.user, Style.PLAIN),
            ("pod", row.pod, Style.PLAIN),
            ("job", row.job, Style.PLAIN),
            ("account", row.account, Style.PLAIN),
            ("partition", row.partition, Style.PLAIN),
            ("time left", time_left(row.job_ends_at, view.now), Style.PLAIN),
            ("GPU", row.gpu, Style.PLAIN),
            ("UUID", row.uuid, Style.PLAIN),
            ("GPU memory", _text(row.memory_bytes, bytes_text), Style.PLAIN),
            ("SM", percent(row.sm_ratio), Style.PLAIN),
            ("CPU", percent(row.cpu_ratio), Style.PLAIN),
            ("memory", _text(row.host_memory_bytes, bytes_text), Style.PLAIN),
            ("started", _ago(row.started_at, view.now), Style.PLAIN),
            ("state", row.state, Style.YELLOW if row.state == "idle" else Style.PLAIN),
            ("idle for", _ago(row.idle_since, view.now), Style.YELLOW),
            ("parent", _text(row.parent_pid, str), Style.PLAIN),
            ("command", wrapped[0], Style.PLAIN),
        ),
        *([Span(" " * 12 + more)] for more in wrapped[1:]),
    ]


def finding_lines(view: FleetView, width: int) -> list[Line]:
    if view.findings is None:
        return [[Span("this server has no findings: it is of an earlier version", Style.YELLOW)]]
    if not view.findings:
        return [[Span("no findings")]]
    return [line for one in view.findings for line in _finding_lines(one, view.now, width)]


def _finding_lines(row: FindingRow, now: float, width: int) -> Iterable[Line]:
    style = {"critical": Style.RED, "warning": Style.YELLOW}.get(row.severity, Style.PLAIN)
    where = f"{row.node} GPU {','.join(row.gpus)}" if row.gpus else row.node
    since = f" (for {duration_text(now - row.since)})" if row.since is not None else ""
    yield [Span(f"{row.severity:8} ", style), Span(where, Style.BOLD)]
    for text, kind in ((row.why + since, Style.PLAIN), ("→ " + row.next_step, Style.CYAN)):
        for part in textwrap.wrap(text, max(20, width - 12)):
            yield [Span("         " + part, kind)]


def _pairs(*rows: tuple[str, str, Style]) -> list[Line]:
    return [[Span(f"{name:12}", Style.DIM), Span(value, style)] for name, value, style in rows if value]


def _meter(name: str, ratio: float | None, text: str, width: int, unicode: bool) -> Line:
    cells = max(4, width - 22)
    return [Span(f"{name:12}", Style.DIM), Span(bar(ratio, cells, unicode), Style.GREEN), Span(f" {text}")]


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{duration_text(now - at)} ago"


def _memory(row: GpuRow) -> str:
    total = "" if row.memory_total_bytes is None else f" / {bytes_text(row.memory_total_bytes)}"
    return "" if row.memory_used_bytes is None else bytes_text(row.memory_used_bytes) + total


def _share(value: float | None, limit: float | None) -> float | None:
    return None if value is None or not limit else value / limit


def _watts(row: GpuRow) -> str:
    if row.power_watts is None:
        return ""
    limit = "" if row.power_limit_watts is None else f" / {row.power_limit_watts:.0f}"
    return f"{row.power_watts:.0f}{limit} W"


def _text(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)
