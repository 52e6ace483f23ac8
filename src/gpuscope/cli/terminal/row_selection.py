"""Which GPUs and processes are shown, and in which order: by user, node and free text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from gpuscope.cli.terminal.fleet_lines import STATE_ORDER
from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow, ProcessRow

GPU_SORTS: Final[dict[str, Callable[[GpuRow], Any]]] = {
    "gpu": lambda row: 0,  # as they come: by node and index
    "util": lambda row: _descending(row.working_ratio),
    "memory": lambda row: _descending(row.memory_used_bytes),
    "power": lambda row: _descending(row.power_watts),
    "temperature": lambda row: _descending(row.temperature_celsius),
    "state": lambda row: STATE_ORDER.get(row.state, 99),
    "user": lambda row: row.users or ("\U0010ffff",),  # those without a user last
}
PROCESS_SORTS: Final[dict[str, Callable[[ProcessRow], Any]]] = {
    "gpu": lambda row: 0,
    "memory": lambda row: _descending(row.memory_bytes),
    "sm": lambda row: _descending(row.sm_ratio),
    "cpu": lambda row: _descending(row.cpu_ratio),
    "user": lambda row: row.user or "\U0010ffff",
    "time": lambda row: row.started_at if row.started_at is not None else float("inf"),
    "pid": lambda row: row.pid,
    "command": lambda row: row.command,
}
_PROCESS_SORT_OF: Final = {"util": "sm", "memory": "memory", "user": "user"}


def _descending(value: float | None) -> float:
    """Absent numbers last."""
    return float("inf") if value is None else -value


def select(view: FleetView, *, user: str = "", nodes: Sequence[str] = (), sort: str = "gpu") -> FleetView:
    """`user`: only GPUs that this user is on, and this user's processes."""
    if nodes:
        view = view.of_nodes(nodes)
    gpus, processes = view.gpus, view.processes
    if user:
        gpus = tuple(row for row in gpus if user in row.users)
        processes = tuple(row for row in processes if row.user == user)
    gpus = tuple(sorted(gpus, key=GPU_SORTS[sort]))
    processes = tuple(sorted(processes, key=PROCESS_SORTS[_PROCESS_SORT_OF.get(sort, "gpu")]))
    return replace(view, gpus=gpus, processes=processes)


def matches(row: ProcessRow, text: str) -> bool:
    """Whether PID, user, owner, node or command contain the text; case does not matter."""
    wanted = text.casefold()
    fields = (str(row.pid), row.user, row.place, row.node, row.command, row.command_line)
    return any(wanted in field.casefold() for field in fields)
