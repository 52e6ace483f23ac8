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
from gpuscope.cli.terminal.queue_view import NodeReasonRow, PartitionRow, ReservationRow, SlurmQueue, WaitingRow
from gpuscope.cli.terminal.spans import (
    Column,
    Line,
    Span,
    Style,
    bar,
    bytes_text,
    draw_head,
    draw_row,
    duration_text,
    lay_out,
    short_duration,
    sparkline,
)
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
    about = [finding for finding in view.findings or () if finding.node == row.node and row.gpu in finding.gpus]
    return lines + [line for finding in about for line in _finding_lines(finding, view.now, width)]


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
    return [line for finding in view.findings for line in _finding_lines(finding, view.now, width)]


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


# The page of Slurm's queue in `gpuscope top`: partitions, jobs that wait and why, nodes, reservations.

GAP: Line = []


def queue_lines(view: FleetView, width: int) -> list[Line]:
    queue = view.queue
    if queue is None:
        return [[Span("no Slurm queue: no source of these numbers knows one", Style.DIM)]]
    if not queue.is_up:
        return [[Span("Slurm does not answer; `gpuscope doctor` says why where it is read", Style.RED)]]
    lines = _partition_lines(queue, width)
    waiting = queue.longest_waiting_first
    lines += [GAP, [Span(f"waiting: {len(waiting)}", Style.BOLD)], *_waiting_lines(waiting, view.now, width)]
    if queue.nodes:
        nodes = sorted(queue.nodes.values(), key=lambda row: row.node)
        lines += [GAP, [Span("nodes with a reason", Style.BOLD)], *_node_lines(nodes, view.now, width)]
    if queue.reservations:
        rows = sorted(queue.reservations.values(), key=lambda row: (row.starts_at or 0.0, row.name))
        lines += [GAP, [Span("reservations", Style.BOLD)], *_reservation_lines(rows, view.now, width)]
    return lines


def _partition_lines(queue: SlurmQueue, width: int) -> list[Line]:
    rows = sorted(queue.partitions.values(), key=lambda row: row.name)
    columns: tuple[Column[PartitionRow], ...] = (
        Column(title="PARTITION", rank=0, text=lambda row: row.name, least=9, most=24),
        Column(title="RUN", rank=1, text=lambda row: str(row.jobs["running"]), right=True),
        Column(title="WAIT", rank=0, text=lambda row: str(row.jobs["pending"]), right=True),
        Column(title="OLDEST", rank=2, text=lambda row: _duration(row.oldest_wait_seconds), right=True),
        Column(title="GPUS", rank=2, text=lambda row: _total(row), right=True),
        Column(title="USED", rank=3, text=lambda row: _gpus(row, "allocated"), right=True),
        Column(title="FREE", rank=3, text=lambda row: _gpus(row, "idle"), right=True),
        Column(title="DRAINED", rank=5, text=lambda row: _gpus(row, "drained"), right=True),
        Column(title="DOWN", rank=5, text=lambda row: _gpus(row, "down"), right=True),
        Column(title="WANTED", rank=4, text=lambda row: _count(row.gpus_requested), right=True),
    )
    layout = lay_out(columns, rows, width)
    return [draw_head(layout), *(draw_row(layout, row) for row in rows)]


def _waiting_lines(rows: list[WaitingRow], now: float, width: int) -> list[Line]:
    columns: tuple[Column[WaitingRow], ...] = (
        Column(title="JOB", rank=0, text=_job_text, most=24),
        Column(title="USER", rank=1, text=lambda row: row.text("user"), least=6, most=16),
        Column(title="ACCOUNT", rank=5, text=lambda row: row.text("account"), least=7, most=16),
        Column(title="PARTITION", rank=3, text=lambda row: row.text("partition"), least=9, most=20),
        Column(title="GPUS", rank=2, text=lambda row: _count(row.gpus), right=True),
        Column(title="WAITS", rank=1, text=lambda row: _waits(row, now), right=True),
        Column(title="REASON", rank=0, text=lambda row: row.text("reason"), least=8, most=28),
        Column(title="NAME", rank=4, text=lambda row: row.text("name"), least=8, most=40),
    )
    layout = lay_out(columns, rows, width)
    return [draw_head(layout), *(draw_row(layout, row) for row in rows)] if rows else []


def _node_lines(rows: list[NodeReasonRow], now: float, width: int) -> list[Line]:
    columns: tuple[Column[NodeReasonRow], ...] = (
        Column(title="NODE", rank=0, text=lambda row: row.node, most=24),
        Column(title="FOR", rank=1, text=lambda row: _since(row.since, now), right=True),
        Column(title="BY", rank=2, text=lambda row: row.by, least=4, most=16),
        Column(title="REASON", rank=0, text=lambda row: row.reason, least=10, most=120),
    )
    layout = lay_out(columns, rows, width)
    return [draw_head(layout), *(draw_row(layout, row) for row in rows)]


def _reservation_lines(rows: list[ReservationRow], now: float, width: int) -> list[Line]:
    columns: tuple[Column[ReservationRow], ...] = (
        Column(title="RESERVATION", rank=0, text=lambda row: row.name, least=8, most=24),
        Column(title="WHEN", rank=0, text=lambda row: _when(row, now)),
        Column(title="NODES", rank=1, text=lambda row: row.nodes, least=6, most=32),
        Column(title="FOR", rank=2, text=lambda row: row.users, least=6, most=40),
    )
    layout = lay_out(columns, rows, width)
    return [draw_head(layout), *(draw_row(layout, row) for row in rows)]


def _job_text(row: WaitingRow) -> str:
    tasks = f" ×{row.tasks:.0f}" if row.tasks > 1 else ""
    return f"{row.text('slurm_job') or row.job}{tasks}"


def _waits(row: WaitingRow, now: float) -> str:
    """Empty for a job that may not start yet (`--begin`): it does not wait."""
    return "" if row.eligible_at is None or row.eligible_at > now else short_duration(now - row.eligible_at)


def _total(row: PartitionRow) -> str:
    return str(sum(row.gpus.values())) if row.gpus else ""


def _gpus(row: PartitionRow, state: str) -> str:
    return str(row.gpus[state]) if row.gpus else ""


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else short_duration(seconds)


def _since(at: float | None, now: float) -> str:
    return "" if at is None else short_duration(max(0.0, now - at))


def _when(row: ReservationRow, now: float) -> str:
    if row.is_active:
        return "now" if row.ends_at is None else f"for {short_duration(max(0.0, row.ends_at - now))} more"
    return "" if row.starts_at is None else f"in {short_duration(max(0.0, row.starts_at - now))}"
