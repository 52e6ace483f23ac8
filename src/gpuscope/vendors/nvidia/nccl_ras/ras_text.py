"""The status text of RAS, which NCCL before 2.28.7 has only, as a `RasStatus`.

The text is made for people: it has a table of communicators by size and state, and below it the ranks that
differ from the others. A rank of a group that is half of the communicator or more is counted, not named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.nvidia.nccl_ras.ras_status import (
    NOBODY,
    BehindRank,
    Communicator,
    RasStatus,
    SilentRank,
)

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
            communicators.append(_communicator(size, running, difference, dead))
    return RasStatus(version=version[1], communicators=tuple(communicators), nodes=_nodes(lines))


def _communicator(
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
