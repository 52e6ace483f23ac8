"""Jobs that communicate with NCCL, as their RAS service describes them: ranks, and which of them are behind.

A job is seen by the agent of each node that has its processes; only the one with the lowest rank follows it
(`followed`), the others know their own ranks. Host and PID of a rank are the job's own: an address, and a PID
in the process' namespace. Operations are counted when they are launched, not when they end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES, Uuid

BEHIND = "behind"
SILENT = "silent"
DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRank:
    """A rank whose process runs on this node."""

    rank: int  # in the job's largest communicator
    host: str
    host_pid: int
    pid: int  # as this machine numbers it
    gpu_uuid: Maybe[Uuid] = ABSENT
    operations: Maybe[int] = ABSENT  # launched in the largest communicator; only of a job that is followed


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """A rank that others wait for while nothing moves."""

    communicator: str
    rank: int  # in the job's largest communicator, or else in this one
    host: str
    host_pid: int
    reason: str  # behind, silent or dead
    seconds: float  # for how long no rank of the communicator has launched anything
    operation: str = ""  # AllReduce; empty if it is not known
    launched: Maybe[int] = ABSENT
    furthest: Maybe[int] = ABSENT  # what the others have launched
    waiting: Maybe[int] = ABSENT  # how many have
    pid: Maybe[int] = ABSENT  # if it runs on this node


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveJob:
    name: str  # host and PID of its lowest process, the same on every node
    uid: int
    pids: tuple[int, ...]  # on this node; the first one's owner is the job's
    followed: bool
    version: str = ""
    ranks: Maybe[int] = ABSENT
    missing: Maybe[int] = ABSENT  # ranks that do not answer
    behind: Maybe[int] = ABSENT  # ranks that have launched less than others, which is normal for a moment
    failed: Maybe[int] = ABSENT  # ranks with an error of NCCL
    communicators: Maybe[int] = ABSENT
    stalled_seconds: Maybe[float] = ABSENT  # 0 while operations are launched, or all have launched the same
    local: tuple[LocalRank, ...] = ()
    stalled: tuple[StalledRank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveReading:
    jobs: tuple[CollectiveJob, ...] = ()
    requests: Mapping[str, int] = NO_VALUES  # since the source was opened, by result: answered, failed
