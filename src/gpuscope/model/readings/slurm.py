"""A Slurm cluster as its controller describes it: jobs, nodes, reservations, shares, licences, scheduler.

Each part is read by a command of its own and is ABSENT when that command failed: () is "there are none". Texts
that users choose (job names, reasons) are kept as Slurm gives them. `SlurmJob` is a named tuple, because a busy
cluster has 20,000 of them every 15 seconds; an array that waits is one job with many `tasks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES

PENDING = "PENDING"
RUNNING = "RUNNING"
SUSPENDED = "SUSPENDED"
HOLDS_RESOURCES = frozenset({RUNNING, SUSPENDED, "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING"})
"""Job states in which the job's nodes and GPUs are allocated. A suspended job keeps its GPUs."""
ENDED = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
    }
)


@dataclass(frozen=True, slots=True)
class Gres:
    """A count of one generic resource: `gpu`, `shard` or `mps` of one model (a MIG profile is a model)."""

    kind: str
    model: str  # empty if the administrator gave no type
    count: int
    indices: Maybe[tuple[int, ...]] = ABSENT  # of the GPUs on their node, in gres.conf's order


class JobPlacement(NamedTuple):
    """What a job holds on one node."""

    node: str
    gres: tuple[Gres, ...]


class SlurmJob(NamedTuple):
    job_id: int  # Slurm's own number; the tasks of an array have different ones
    user: str
    account: str
    partitions: tuple[str, ...]  # several while it waits for the first that has room
    state: str  # upper case, as squeue prints it
    reason: str  # why it waits, or why it ended
    name: str
    cpus: int
    node_count: int
    gres: tuple[Gres, ...]  # allocated; of a pending job: requested
    node_list: str  # a hostlist; empty while it waits
    tasks: int = 1  # of an array that waits in one record
    array_job_id: Maybe[int] = ABSENT
    array_task: str = ""  # the task's number, or an expression such as `2-5%2`
    het_job_id: Maybe[int] = ABSENT
    qos: str = ""
    submitted_at: Maybe[float] = ABSENT
    eligible_at: Maybe[float] = ABSENT
    started_at: Maybe[float] = ABSENT  # of a pending job: when the scheduler expects to start it
    ends_at: Maybe[float] = ABSENT  # by its time limit; of a finished job: when it ended

    @property
    def gpus(self) -> int:
        return sum(gres.count for gres in self.gres if gres.kind == "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    name: str
    partitions: tuple[str, ...] = ()
    long_state: str  # as `sinfo` prints it, with its suffix: `down*`, `mixed-`; empty if it is not known
    base_state: str = ""  # lower case: idle, mixed, allocated, down, error, unknown, future; or empty
    flags: frozenset[str] = frozenset()  # lower case: drain, not_responding, planned, maint
    cpus_allocated: Maybe[int] = ABSENT
    cpus_idle: Maybe[int] = ABSENT
    cpus_other: Maybe[int] = ABSENT
    cpus: Maybe[int] = ABSENT
    memory_bytes: Maybe[int] = ABSENT
    memory_allocated_bytes: Maybe[int] = ABSENT
    memory_free_bytes: Maybe[int] = ABSENT
    cpu_load: Maybe[float] = ABSENT
    gres: tuple[Gres, ...] = ()
    gres_used: tuple[Gres, ...] = ()
    gres_uncounted: frozenset[tuple[str, str]] = frozenset()  # (kind, model) whose use Slurm does not count
    reason: str = ""  # why it is drained or down
    reason_by: str = ""
    reason_at: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    name: str
    state: str  # ACTIVE or INACTIVE
    starts_at: Maybe[float] = ABSENT
    ends_at: Maybe[float] = ABSENT
    node_list: str = ""  # a hostlist
    node_count: Maybe[int] = ABSENT
    cores: Maybe[int] = ABSENT
    gpus: Maybe[int] = ABSENT  # in its TRES, or of its nodes where it has whole ones
    partition: str = ""
    users: str = ""
    accounts: str = ""
    flags: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShare:
    """One association: a user in an account, or the account itself (`user` is empty)."""

    account: str
    parent: str = ""
    user: str = ""
    raw_shares: Maybe[float] = ABSENT  # absent for `parent`
    norm_shares: Maybe[float] = ABSENT
    raw_usage: Maybe[float] = ABSENT  # billing seconds
    effective_usage: Maybe[float] = ABSENT
    fair_share: Maybe[float] = ABSENT  # absent for accounts under Fair Tree
    level_fs: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class License:
    name: str
    count: int
    used: int
    free: int
    reserved: int
    remote: bool = False


@dataclass(frozen=True, slots=True)
class RpcCount:
    name: str  # a message type or a user
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """What sdiag prints. Counts restart at midnight and at `scontrol reconfigure`, like any counter's reset.

    `main` and `backfill` are by sdiag's own names, in its units (microseconds): a name that this version of
    Slurm does not print, such as a mean before the first cycle, is not in them.
    """

    server: Mapping[str, float] = NO_VALUES  # "Server thread count", "DBD Agent queue size", "Jobs submitted"
    main: Mapping[str, float] = NO_VALUES  # "Last cycle", "Mean cycle", "Cycles per minute"
    backfill: Mapping[str, float] = NO_VALUES  # "Last cycle", "Depth Mean", "Total cycles"
    main_exits: Mapping[str, float] = NO_VALUES
    backfill_exits: Mapping[str, float] = NO_VALUES
    rpcs_by_type: tuple[RpcCount, ...] = ()
    rpcs_by_user: tuple[RpcCount, ...] = ()
    answered_at: Maybe[float] = ABSENT  # this and the next two by slurmctld's clock
    statistics_since: Maybe[float] = ABSENT
    jobs_counted_at: Maybe[float] = ABSENT  # "Jobs pending" and "Jobs running", up to 30 seconds before


class SlurmFailure(StrEnum):
    """Why a request failed, where the cause decides what to do about it."""

    TIMEOUT = auto()
    UNUSABLE_ANSWER = auto()  # cut off, too large, or not Slurm's
    TOKEN_REFUSED = auto()  # it has expired, or slurmrestd answered 401
    DOWN_OR_TOKEN_REFUSED = auto()  # slurmrestd says the same of both
    HIDDEN = auto()  # PrivateData in slurm.conf, or a list with fewer jobs than slurmctld counts
    OTHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmQuery:
    """The state of one kind of request to Slurm: a command, a path of slurmrestd, a page of slurmctld."""

    name: str
    success: bool
    why: str = ""  # of the last failure
    failure: Maybe[SlurmFailure] = ABSENT  # its kind
    runs: int = 0
    failures: int = 0
    duration_seconds: Maybe[float] = ABSENT
    last_success_at: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Counts of jobs where Slurm gives no list of them: its own metrics pages. States in upper case."""

    by_state: Mapping[str, int] = NO_VALUES
    by_user: Mapping[tuple[str, str], int] = NO_VALUES  # by (user, state)
    by_account: Mapping[tuple[str, str], int] = NO_VALUES
    by_partition: Mapping[tuple[str, str], int] = NO_VALUES
    cpus_by_user: Mapping[str, int] = NO_VALUES  # of running jobs
    cpus_by_account: Mapping[str, int] = NO_VALUES
    gpus_by_user: Mapping[str, int] = NO_VALUES
    gpus_by_account: Mapping[str, int] = NO_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    up: bool
    why: str = ""  # why it is not up
    failure: Maybe[SlurmFailure] = ABSENT  # the kind of that failure
    mode: str = "commands"
    read_at: float = 0.0
    version: Maybe[str] = ABSENT
    jobs: Maybe[tuple[SlurmJob, ...]] = ABSENT
    job_counts: Maybe[JobCounts] = ABSENT  # only if Slurm gives no list of jobs
    placements: Maybe[Mapping[int, tuple[JobPlacement, ...]]] = ABSENT  # by job_id
    nodes: Maybe[tuple[SlurmNode, ...]] = ABSENT
    node_counts: Maybe[Mapping[str, int]] = ABSENT  # by base state or flag, only where `nodes` have no state
    reservations: Maybe[tuple[Reservation, ...]] = ABSENT
    shares: Maybe[tuple[FairShare, ...]] = ABSENT
    licenses: Maybe[tuple[License, ...]] = ABSENT
    scheduler: Maybe[SchedulerStats] = ABSENT
    queries: tuple[SlurmQuery, ...] = ()
    max_job_series: int = 1000
    max_pending_series: int = 100
