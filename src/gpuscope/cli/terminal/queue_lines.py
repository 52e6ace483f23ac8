"""The page of Slurm's queue in `gpuscope top`: partitions, jobs that wait and why, nodes, reservations."""

from __future__ import annotations

from gpuscope.cli.terminal.fleet_view import FleetView
from gpuscope.cli.terminal.queue_view import NodeReasonRow, PartitionRow, ReservationRow, SlurmQueue, WaitingRow
from gpuscope.cli.terminal.safe_text import short_duration
from gpuscope.cli.terminal.spans import Line, Span, Style
from gpuscope.cli.terminal.table_columns import Column, draw_head, draw_row, lay_out

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
