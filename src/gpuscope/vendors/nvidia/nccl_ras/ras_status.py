"""What a status document says of each communicator: who takes part, who is behind, who does not answer.

Input: the bytes of the document, JSON or text; output: a `RasStatus`, or UnusableAnswer for one that is cut off
or of another program. Text names only the ranks that differ from the others, so that `members` is empty.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe

MAX_TEXT_CHARACTERS: Final = 64
READY: Final = 0  # of init_state and async_error
IN_PROGRESS: Final = 7
NOBODY: Final = -1  # the PID of a process that RAS does not know


class Member(NamedTuple):
    """A rank that answered."""

    rank: int
    host: str
    pid: int
    nvml_dev: int
    operations: int
    counts: Mapping[str, int]


class BehindRank(NamedTuple):
    rank: int
    host: str
    pid: int
    operation: str
    launched: int
    furthest: int
    waiting: int  # ranks that have launched `furthest`


class SilentRank(NamedTuple):
    """A rank whose process did not answer RAS."""

    rank: int
    host: str
    pid: int
    dead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    id: str
    size: int
    running: bool  # False while it is set up or torn down: counts differ then, and nobody waits
    progress: Hashable  # equal while no rank has launched anything
    members: tuple[Member, ...] = ()
    behind: tuple[BehindRank, ...] = ()
    behind_count: int = 0  # text does not name all of them
    silent: tuple[SilentRank, ...] = ()
    failed: int = 0  # ranks with an error

    @property
    def places(self) -> Iterator[tuple[int, str, int]]:
        """Rank, host and PID of every rank whose process is known."""
        yield from ((member.rank, member.host, member.pid) for member in self.members if member.pid > 0)
        yield from ((silent.rank, silent.host, silent.pid) for silent in self.silent if silent.pid > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RasStatus:
    version: str
    communicators: tuple[Communicator, ...]
    nodes: Maybe[int] = ABSENT  # only text says it


def parse_json(document: bytes) -> RasStatus:
    try:
        root = orjson.loads(document)
        communicators = tuple(map(_communicator, root["communicators"]))
        return RasStatus(version=_text(root["nccl_version"]), communicators=communicators)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise UnusableAnswer("its status is cut off or not in NCCL's format") from None


def _communicator(row: Mapping[str, Any]) -> Communicator:
    members, running, failed = [], True, 0
    for rank in row["ranks"]:
        status, counts = rank["status"], rank["collective_counts"]
        members.append(
            Member(
                rank=_number(rank["rank"]),
                host=_text(rank["host"]),
                pid=_number(rank["pid"], NOBODY),
                nvml_dev=_number(rank["nvml_dev"], NOBODY),
                operations=sum(map(_number, counts.values())),
                counts=counts,
            )
        )
        leaving = status["finalize_called"] or status["destroy_flag"] or status["abort_flag"]
        running = running and status["init_state"] == READY and not leaving
        errors = {status["init_state"], status["async_error"]} - {READY, IN_PROGRESS}
        failed += bool(errors)
    behind = tuple(_behind(members))
    return Communicator(
        id=_text(row["hash"]).removeprefix("0x"),
        size=_number(row["size"]),
        running=running,
        progress=tuple((member.rank, *member.counts.values()) for member in members),
        members=tuple(members),
        behind=behind,
        behind_count=len(behind),
        silent=tuple(_silent(row["missing_ranks"])),
        failed=failed,
    )


def _behind(members: list[Member]) -> Iterator[BehindRank]:
    """The ranks that have launched less than others, with the operation that they lack most."""
    furthest: dict[str, int] = {}
    for member in members:
        for operation, count in member.counts.items():
            furthest[operation] = max(count, furthest.get(operation, 0))
    if all(member.counts == furthest for member in members):
        return
    waiting = {
        operation: sum(member.counts.get(operation) == most for member in members)
        for operation, most in furthest.items()
    }
    for member in members:
        lacking = {
            operation: most - member.counts.get(operation, 0)
            for operation, most in furthest.items()
            if member.counts.get(operation, 0) < most
        }
        if lacking:
            operation = max(lacking, key=lambda name: lacking[name])
            yield BehindRank(
                rank=member.rank,
                host=member.host,
                pid=member.pid,
                operation=_text(operation),
                launched=furthest[operation] - lacking[operation],
                furthest=furthest[operation],
                waiting=waiting[operation],
            )


def _silent(missing: list[Mapping[str, Any]]) -> Iterator[SilentRank]:
    for rank in missing:
        # One that answered, but not about this communicator, has left it or has not joined it yet.
        if rank["status"]["unresponsive"] or rank["status"]["considered_dead"]:
            yield SilentRank(
                rank=_number(rank["rank"]),
                host=_text(rank["host"]),
                pid=_number(rank["pid"], NOBODY),
                dead=bool(rank["status"]["considered_dead"]),
            )


def _number(value: object, lowest: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError
    return value


def _text(value: object) -> str:
    """For a label: a hostile program may listen on the port."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError
    return value[:MAX_TEXT_CHARACTERS]
