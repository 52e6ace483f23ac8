"""The fleet as a terminal shows it, from a document of `/api/live`.

The document may come from any server, so every value is checked: a value of the wrong type is absent, text is
made printable once, here. A number that is not known is None; it is never 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpuscope.cli.terminal.queue_view import SlurmQueue, to_queue
from gpuscope.cli.terminal.spans import printable
from gpuscope.judge.checks.states import UNKNOWN_USES, State

MAX_NAME_CELLS: Final = 100
MAX_SENTENCE_CELLS: Final = 500
MAX_USERS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU or a MIG instance."""

    uuid: str
    gpu: str
    node: str
    model: str = ""
    parent: str = ""
    profile: str = ""
    state: str = "idle"
    why: str = ""
    since: float | None = None
    busy_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    users: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """Of its processes: pods, which say more than the user inside a container, else users, else jobs."""
    processes: int | None = None
    is_in_use: bool = False
    allocated_to: tuple[str, ...] = ()
    """Pods and jobs that a scheduler allocated it to; a job with its user, unless the user's processes are on
    it."""

    @property
    def reason(self) -> str:
        """Why it has its state, in words."""
        return UNKNOWN_USES.get(self.why, self.why)

    @property
    def may_be_free(self) -> bool:
        """It answers, and nobody knows whether it is free."""
        return self.state == State.STALE and self.why in UNKNOWN_USES

    @property
    def memory_ratio(self) -> float | None:
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes

    @property
    def working_ratio(self) -> float | None:
        """Utilisation; a MIG instance has none, SM activity is the nearest number."""
        return self.sm_ratio if self.busy_ratio is None else self.busy_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A process on one GPU or MIG instance. The last six fields are known only on its own machine."""

    uuid: str
    gpu: str
    node: str
    pid: int
    command: str = ""
    user: str = ""
    job: str = ""
    account: str = ""
    partition: str = ""
    job_ends_at: float | None = None
    """When the time limit of its Slurm job ends it."""
    pod: str = ""
    kind: str = ""
    memory_bytes: float | None = None
    sm_ratio: float | None = None
    started_at: float | None = None
    idle_since: float | None = None
    state: str = "unknown"
    parent_pid: int | None = None
    cpu_ratio: float | None = None
    host_memory_bytes: float | None = None
    command_line: str = ""
    start_ticks: int | None = None
    is_own: bool = False

    @property
    def place(self) -> str:
        """The pod or job that it belongs to."""
        return self.pod or (f"job {self.job}" if self.job else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A Slurm job on the GPUs that are shown."""

    job: str
    array: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    ends_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    name: str
    stale: bool = False
    gone_since: float | None = None
    gone_why: str = ""
    gpus_seen: float | None = None
    gpus_expected: float | None = None
    cpu_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    severity: str
    node: str
    gpus: tuple[str, ...]
    why: str
    next_step: str
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    now: float
    origin: str = ""
    """Where the numbers come from, for the title line."""
    simulated: bool = False
    nodes: tuple[NodeRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    queue: SlurmQueue | None = None
    """None: no agent of these numbers reads Slurm, or the queue was not requested."""
    findings: tuple[FindingRow, ...] | None = None
    """None: the server does not judge; that is not the same as no findings."""
    notes: tuple[str, ...] = ()

    def of_nodes(self, names: Iterable[str]) -> FleetView:
        wanted = frozenset(names)
        return replace(
            self,
            nodes=tuple(row for row in self.nodes if row.name in wanted),
            gpus=tuple(row for row in self.gpus if row.node in wanted),
            processes=tuple(row for row in self.processes if row.node in wanted),
            findings=self.findings
            if self.findings is None
            else tuple(row for row in self.findings if row.node in wanted),
        )


class NotALivePicture(ValueError):
    """The document is not one of `/api/live`."""


def to_fleet_view(picture: Any, origin: str = "") -> FleetView:
    """Raises NotALivePicture for any other document."""
    if not isinstance(picture, Mapping) or not isinstance(picture.get("gpus"), list):
        raise NotALivePicture("the answer has no list of GPUs")
    jobs = tuple(map(_job, _mappings(picture, "jobs")))
    by_number = {row.job: row for row in jobs}
    processes = tuple(filter(None, (_process(row, by_number) for row in _mappings(picture, "sessions"))))
    holders: dict[tuple[str, str], dict[str, None]] = {}  # in order
    for process in processes:
        holder = process.pod or process.user or process.place
        if holder:
            holders.setdefault((process.node, process.uuid), {})[holder] = None
    gpus = (_gpu(row, by_number, holders) for row in _mappings(picture, "gpus"))
    return FleetView(
        now=_number(picture.get("now")) or 0.0,
        origin=origin,
        simulated=picture.get("simulated") is True,
        nodes=tuple(_node(row) for row in _mappings(picture, "nodes")),
        gpus=tuple(gpus),
        processes=processes,
        jobs=jobs,
        queue=to_queue(_samples(picture.get("slurm"))),
        findings=to_findings(picture) if "findings" in picture else None,
        notes=_notes(picture),
    )


def _notes(picture: Mapping[str, Any]) -> tuple[str, ...]:
    left_out = _number(picture.get("left_out"))
    if not left_out:
        return ()
    nodes = "1 node is" if left_out == 1 else f"{left_out:.0f} nodes are"
    return (f"{nodes} not shown and not counted: the server has more than live_max_subjects allows",)


def to_findings(document: Mapping[str, Any]) -> tuple[FindingRow, ...]:
    """Of `/api/findings`, or of `/api/live`, which has the same list."""
    return tuple(
        FindingRow(
            severity=_text(row, "severity"),
            node=_text(row, "node"),
            gpus=_texts(row, "gpus"),
            why=_text(row, "why", MAX_SENTENCE_CELLS),
            next_step=_text(row, "next", MAX_SENTENCE_CELLS),
            since=_number(row.get("since")),
        )
        for row in _mappings(document, "findings")
    )


def _mappings(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = document.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _text(row: Mapping[str, Any], key: str, width: int = MAX_NAME_CELLS) -> str:
    value = row.get(key)
    return printable(value, width) if isinstance(value, str) else ""


def _texts(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = row.get(key)
    if not isinstance(values, list):
        return ()
    return tuple(printable(value, MAX_NAME_CELLS) for value in values[:MAX_USERS] if isinstance(value, str))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Python's JSON has integers that are no float.
    return float(value) if abs(value) < sys.float_info.max else None


def _node(row: Mapping[str, Any]) -> NodeRow:
    gone = row.get("gone")
    gone = gone if isinstance(gone, Mapping) else {}
    return NodeRow(
        name=_text(row, "name"),
        stale=row.get("stale") is True,
        gone_since=_number(gone.get("since")),
        gone_why=_text(gone, "why"),
        gpus_seen=_number(row.get("gpus_seen")),
        gpus_expected=_number(row.get("gpus_expected")),
        cpu_ratio=_number(row.get("cpu")),
        memory_used_bytes=_number(row.get("memory_used")),
        memory_total_bytes=_number(row.get("memory_total")),
    )


def _gpu(
    row: Mapping[str, Any], jobs: Mapping[str, JobRow], holders: Mapping[tuple[str, str], Iterable[str]]
) -> GpuRow:
    uuid, node = _text(row, "uuid"), _text(row, "node")
    on_it = tuple(holders.get((node, uuid), ()))
    users = _texts(row, "users")
    return GpuRow(
        uuid=uuid,
        gpu=_text(row, "gpu"),
        node=node,
        model=_text(row, "model"),
        parent=_text(row, "parent"),
        profile=_text(row, "profile"),
        state=_text(row, "state"),
        why=_text(row, "why"),
        since=_number(row.get("since")),
        busy_ratio=_number(row.get("busy")),
        memory_used_bytes=_number(row.get("memory_used")),
        memory_total_bytes=_number(row.get("memory_total")),
        power_watts=_number(row.get("power")),
        power_limit_watts=_number(row.get("power_limit")),
        temperature_celsius=_number(row.get("temperature")),
        sm_ratio=_number(row.get("sm")),
        tensor_ratio=_number(row.get("tensor")),
        dram_ratio=_number(row.get("dram")),
        users=users,
        holders=on_it,
        allocated_to=(*(_job_text(job, jobs, users) for job in _texts(row, "jobs")), *_texts(row, "pods")),
        processes=None if (count := _number(row.get("processes"))) is None else int(count),
        is_in_use=row.get("in_use") is True,
    )


def _job_text(number: str, jobs: Mapping[str, JobRow], users: Iterable[str]) -> str:
    """Whose job it is, where that is not plain: "bob, job 1" would be bob's."""
    job = jobs.get(number)
    owner = "" if job is None or job.user in users else job.user
    return f"{owner}'s job {number}" if owner else f"job {number}"


def _samples(rows: Any) -> Iterable[tuple[str, Mapping[str, str], float]]:
    """Of `gpuscope_slurm_*`, which a reader added to the document."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, tuple) and len(row) == 3 and isinstance(row[1], Mapping):
            yield row


def _job(row: Mapping[str, Any]) -> JobRow:
    return JobRow(
        job=_text(row, "job"),
        array=_text(row, "array"),
        name=_text(row, "name"),
        user=_text(row, "user"),
        account=_text(row, "account"),
        partition=_text(row, "partition"),
        ends_at=_number(row.get("ends_at")),
    )


def _process(row: Mapping[str, Any], jobs: Mapping[str, JobRow]) -> ProcessRow | None:
    pid = _number(row.get("pid"))
    if pid is None:  # without a PID it cannot be told from others
        return None
    namespace, pod = _text(row, "namespace"), _text(row, "pod")
    job = jobs.get(_text(row, "job"))
    return ProcessRow(
        uuid=_text(row, "uuid"),
        gpu=_text(row, "gpu"),
        node=_text(row, "node"),
        pid=int(pid),
        command=_text(row, "command"),
        user=_text(row, "user"),
        job=_text(row, "job"),
        account="" if job is None else job.account,
        partition="" if job is None else job.partition,
        job_ends_at=None if job is None else job.ends_at,
        pod=f"{namespace}/{pod}" if namespace and pod else pod,
        kind=_text(row, "type"),
        memory_bytes=_number(row.get("memory")),
        sm_ratio=_number(row.get("sm")),
        started_at=_number(row.get("since")),
        idle_since=_number(row.get("idle_since")),
        state=_text(row, "state"),
    )
