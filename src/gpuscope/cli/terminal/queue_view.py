"""Slurm's queue as a terminal shows it, from samples of `gpuscope_slurm_*` of any origin.

A number that is not known is None. Names and reasons are text that users choose: they are made printable here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.cli.terminal.spans import printable

MAX_NAME_CELLS: Final = 60
QueueSample = tuple[str, Mapping[str, str], float]

_PREFIX: Final = "gpuscope_slurm_"


@dataclass(slots=True)
class PartitionRow:
    name: str
    jobs: Counter[str] = field(default_factory=Counter)
    """By state, lower case."""
    gpus: Counter[str] = field(default_factory=Counter)
    """By state: allocated, idle, drained, down."""
    gpus_requested: float | None = None
    oldest_wait_seconds: float | None = None


@dataclass(slots=True)
class WaitingRow:
    job: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: float | None = None
    tasks: float = 1.0
    eligible_at: float | None = None

    def text(self, name: str) -> str:
        return printable(self.labels.get(name, ""), MAX_NAME_CELLS)


@dataclass(slots=True)
class NodeReasonRow:
    node: str
    reason: str = ""
    by: str = ""
    since: float | None = None


@dataclass(slots=True)
class ReservationRow:
    name: str
    nodes: str = ""
    users: str = ""
    is_active: bool = False
    starts_at: float | None = None
    ends_at: float | None = None


@dataclass(slots=True)
class SlurmQueue:
    is_up: bool = True
    partitions: dict[str, PartitionRow] = field(default_factory=dict)
    waiting: dict[str, WaitingRow] = field(default_factory=dict)
    nodes: dict[str, NodeReasonRow] = field(default_factory=dict)
    reservations: dict[str, ReservationRow] = field(default_factory=dict)

    @property
    def longest_waiting_first(self) -> list[WaitingRow]:
        """Jobs that may not start yet come last."""
        return sorted(self.waiting.values(), key=lambda row: (row.eligible_at or math.inf, row.job))


def to_queue(samples: Iterable[QueueSample]) -> SlurmQueue | None:
    """None if no agent reads Slurm."""
    queue: SlurmQueue | None = None
    for metric, labels, value in samples:
        if metric.startswith(_PREFIX) and math.isfinite(value):
            queue = queue or SlurmQueue()
            _add(queue, metric.removeprefix(_PREFIX), labels, value)
    return queue


def _add(queue: SlurmQueue, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "up":
        queue.is_up = value == 1
    elif name.startswith("partition_"):
        _add_to_partition(queue, name, labels, value)
    elif name.startswith("pending_job_"):
        job = labels.get("slurm_job", "")
        _add_to_waiting(queue.waiting.setdefault(job, WaitingRow(job)), name, labels, value)
    elif name.startswith("node_reason_"):
        text = printable(labels.get("node", ""), MAX_NAME_CELLS)
        node = queue.nodes.setdefault(text, NodeReasonRow(text))
        if name == "node_reason_info":
            node.reason = printable(labels.get("reason", ""), 2 * MAX_NAME_CELLS)
            node.by = printable(labels.get("by", ""), MAX_NAME_CELLS)
        else:
            node.since = value
    elif name.startswith("reservation_"):
        text = printable(labels.get("reservation", ""), MAX_NAME_CELLS)
        _add_to_reservation(queue.reservations.setdefault(text, ReservationRow(text)), name, labels, value)


def _add_to_partition(queue: SlurmQueue, name: str, labels: Mapping[str, str], value: float) -> None:
    text = printable(labels.get("partition", ""), MAX_NAME_CELLS)
    row = queue.partitions.setdefault(text, PartitionRow(text))
    if name == "partition_jobs":
        row.jobs[labels.get("state", "")] += int(value)
    elif name == "partition_oldest_pending_seconds":
        row.oldest_wait_seconds = value
    elif labels.get("gres") == "gpu":
        if name == "partition_gpus":
            row.gpus[labels.get("state", "")] += int(value)
        elif name == "partition_gpus_requested":
            row.gpus_requested = (row.gpus_requested or 0.0) + value


def _add_to_waiting(row: WaitingRow, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "pending_job_info":
        row.labels = labels
    elif name == "pending_job_gpus":
        row.gpus = value
    elif name == "pending_job_tasks":
        row.tasks = value
    elif name == "pending_job_eligible_timestamp_seconds":
        row.eligible_at = value


def _add_to_reservation(row: ReservationRow, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "reservation_info":
        row.nodes = printable(labels.get("nodes", ""), MAX_NAME_CELLS)
        row.users = printable(labels.get("users", "") or labels.get("accounts", ""), MAX_NAME_CELLS)
    elif name == "reservation_active":
        row.is_active = value == 1
    elif name == "reservation_start_timestamp_seconds":
        row.starts_at = value
    elif name == "reservation_end_timestamp_seconds":
        row.ends_at = value
