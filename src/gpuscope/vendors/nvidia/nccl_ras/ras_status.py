"""What a status document says of each communicator: who takes part, who is behind, who does not answer.

Input: the bytes of the document, JSON or text; output: a `RasStatus`, or UnusableAnswer for one that is cut off
or of another program. Text names only the ranks that differ from the others, so that `members` is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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


# The status text of RAS, which NCCL before 2.28.7 has only, as a `RasStatus`.
#
# The text is made for people: it has a table of communicators by size and state, and below it the ranks that
# differ from the others. A rank of a group that is half of the communicator or more is counted, not named.

MAX_COMMUNICATORS: Final = 4096
UNKNOWN_HOST: Final = "unknown"  # as NCCL's JSON has it

_VERSION = re.compile(r"NCCL version (\S{1,64}) ", re.ASCII)
_GROUP = re.compile(r" *(\d+) +(\d+) +(\d+) +(\d+(?:-\d+)?) +(\d+) +(\d+) +([A-Z]+) +([A-Z,]+)\s*\Z", re.ASCII)
"""Group, communicators, nodes, ranks per node, ranks per communicator, ranks, status, errors."""
_HEADING = re.compile(r"#(\d+)-(\d+) \(([0-9a-f]{1,16})\) (MISMATCH|INCOMPLETE|ERROR)\Z", re.ASCII)
_COUNTS = re.compile(
    r"  Communicator ranks have different (?:(\w{1,32}) operation|collective operation) counts\Z"
)
_LAUNCHED = re.compile(r"  (\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)\Z")
_RANK = re.compile(
    r"  Rank (\d+)(?: has (?:launched up to operation (\d+)|(not) launched any operations))?"
    r" -- (?:GPU .{1,40} managed by process (\d+) on node (\S{1,64})|\[process information not found\])\Z",
    re.ASCII,
)
_MISSING = re.compile(r"  The missing ranks?: ([\d,]+)\Z", re.ASCII)
_PROCESS = re.compile(r"  Process (\d+) on node (\S{1,64}) managing GPU", re.ASCII)
_FAILED = re.compile(r"  (?:Initialization|Asynchronous) errors? on (\d+) ranks?\Z", re.ASCII)


@dataclass(slots=True)
class _Differences:
    """What the text says about one communicator."""

    name: str  # its hash
    counts: dict[str, dict[int, int]] = field(default_factory=dict)  # operation -> launched -> ranks
    named: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    """Operation, launched, rank, PID, host."""
    silent: list[tuple[int, int, str]] = field(default_factory=list)  # rank, PID, host
    failed: int = 0
    other_status: bool = False  # some of its ranks are setting it up or leaving it
    operation: str = ""  # the one whose counts the next lines are about
    launched: int = 0  # by the ranks that the next lines name

    def add_mismatch(self, line: str) -> None:
        if line == "  Communicator ranks have different status":
            self.other_status = True
        elif title := _COUNTS.match(line):
            self.operation = title[1] or "collective"
            self.counts.setdefault(self.operation, {})
        elif self.operation and (group := _LAUNCHED.match(line)):
            self.launched = int(group[2] or 0)
            self.counts[self.operation][self.launched] = int(group[1])
        elif self.operation and (rank := _RANK.match(line)):
            if rank[2] or rank[3]:  # a group of one is one line
                self.launched = int(rank[2] or 0)
                self.counts[self.operation][self.launched] = 1
            self.named.append((self.operation, self.launched, int(rank[1]), *_place(rank)))

    def add_missing(self, line: str) -> None:
        if rank := _RANK.match(line):
            self.silent.append((int(rank[1]), *_place(rank)))
        elif missing := _MISSING.match(line):
            self.silent += [(int(rank), NOBODY, UNKNOWN_HOST) for rank in missing[1].split(",") if rank]

    def add_error(self, line: str) -> None:
        if failed := _FAILED.match(line):
            self.failed += int(failed[1])


def _place(rank: re.Match[str]) -> tuple[int, str]:
    return int(rank[4] or NOBODY), rank[5] or UNKNOWN_HOST


def parse_text(document: bytes) -> RasStatus:
    lines = document.decode("utf-8", "replace").replace("\r", "").split("\n")
    version = _VERSION.match(lines[0])
    # The last section is there even if it is empty: without it the text is cut off.
    if version is None or "Warnings" not in lines:
        raise UnusableAnswer("its status is cut off or not in NCCL's format")
    dead = set(_dead_processes(lines))
    differences = _differences(lines)
    communicators: list[Communicator] = []
    for match in filter(None, map(_GROUP.match, lines)):
        group, count, size, status = int(match[1]), int(match[2]), int(match[5]), match[7]
        for number in range(min(count, MAX_COMMUNICATORS - len(communicators))):
            difference = differences.get((group, number)) or _Differences(f"{group}-{number}")
            running = status == "RUNNING" and not difference.other_status
            communicators.append(_communicator_of_text(size, running, difference, dead))
    return RasStatus(version=version[1], communicators=tuple(communicators), nodes=_nodes(lines))


def _communicator_of_text(
    size: int, running: bool, difference: _Differences, dead: set[tuple[int, str]]
) -> Communicator:
    behind: dict[int, BehindRank] = {}
    behind_count = 0
    for operation, groups in difference.counts.items():
        furthest = max(groups, default=0)
        behind_count = max(
            behind_count, sum(ranks for launched, ranks in groups.items() if launched < furthest)
        )
        for lacking, launched, rank, pid, host in difference.named:
            if lacking == operation and launched < furthest:
                behind[rank] = BehindRank(rank, host, pid, operation, launched, furthest, groups[furthest])
    return Communicator(
        id=difference.name,
        size=size,
        running=running,
        progress=tuple((operation, *sorted(groups.items())) for operation, groups in difference.counts.items()),
        behind=tuple(behind.values()),
        behind_count=behind_count,
        silent=tuple(SilentRank(rank, host, pid, (pid, host) in dead) for rank, pid, host in difference.silent),
        failed=difference.failed,
    )


def _differences(lines: list[str]) -> dict[tuple[int, int], _Differences]:
    """By group and number within it."""
    differences: dict[tuple[int, int], _Differences] = {}
    add: Callable[[str], None] | None = None
    for line in lines:
        if heading := _HEADING.match(line):
            place = int(heading[1]), int(heading[2])
            current = differences.setdefault(place, _Differences(heading[3]))
            current.operation = ""
            add = {
                "MISMATCH": current.add_mismatch,
                "INCOMPLETE": current.add_missing,
                "ERROR": current.add_error,
            }[heading[4]]
        elif line.startswith("  "):
            if add is not None:
                add(line)
        elif line:  # an empty line also stands between the operations of a communicator
            add = None
    return differences


def _dead_processes(lines: list[str]) -> Iterator[tuple[int, str]]:
    section = ""
    for line in lines:
        if not line.startswith("  "):
            section = line
        elif section == "DEAD" and (process := _PROCESS.match(line)):
            yield int(process[1]), process[2]


def _nodes(lines: list[str]) -> Maybe[int]:
    """The row below the heading `(total)` of the job's summary."""
    for heading, row in pairwise(lines):
        cells = row.split()
        if heading.startswith("(total)") and cells and cells[0].isascii() and cells[0].isdigit():
            return int(cells[0])
    return ABSENT
