"""Nodes, partitions and reservations of Slurm, from the text of `sinfo -N` and `scontrol show`.

Input: what sinfo printed with `ARGUMENTS`; output: nodes, each once, with all its partitions. `-a` shows hidden
partitions. A node in no partition is not printed by sinfo at all, and one whose state is FUTURE neither.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from gpuscope.agent.sources.slurm.gres import expand_hostlist, parse_gres, reserved_gpus, uncounted_shares
from gpuscope.agent.sources.slurm.values import (
    RecordSplitter,
    parse_integer,
    parse_mebibytes,
    parse_node_state,
    parse_number,
    parse_time,
)
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import License, Reservation, SlurmNode

FIELDS = (  # the first two are in every version, and in this place
    "NodeList", "PartitionName", "StateLong", "StateComplete", "CPUsState", "AllocMem", "Memory", "FreeMem",
    "CPUsLoad", "Gres", "GresUsed", "Timestamp", "User",
)  # fmt: skip
WIDTHS: Final = {"Reason": 256}
ARGUMENTS = ("-a", "-h", "-N", "-O")


class SinfoRun:
    """Reads what one run of sinfo prints."""

    def __init__(self, fields: Sequence[str] = FIELDS) -> None:
        """`fields` are the requested ones, without those that this sinfo refused."""
        self._names = (*WIDTHS, *fields)
        self._splitter = RecordSplitter(WIDTHS, len(fields), "sinfo")
        self._rows: dict[str, list[str]] = {}  # the first one of each node
        self._partitions: dict[str, list[str]] = {}

    def take(self, lines: bytes) -> bytes:
        """Nothing is left of lines that were read. Raises UnusableAnswer."""
        for record in self._splitter.records(lines):
            cells = self._splitter.cells(record)
            _, name, partition, *_ = cells
            self._rows.setdefault(name, cells)
            self._partitions.setdefault(name, []).append(partition)
        return b""

    def finish(self, unfinished_line: str = "") -> tuple[SlurmNode, ...]:
        """The nodes in sinfo's order. Raises UnusableAnswer, also if there are none: every cluster has some."""
        self._splitter.finish(unfinished_line)
        if not self._rows:
            raise UnusableAnswer("sinfo lists no nodes")
        return tuple(
            _to_node(dict(zip(self._names, cells, strict=True)), _distinct(self._partitions[name]))
            for name, cells in self._rows.items()
        )


def parse_sinfo(output: bytes) -> tuple[SlurmNode, ...]:
    run = SinfoRun()
    run.take(output)
    return run.finish()


def _distinct(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _to_node(row: dict[str, str], partitions: tuple[str, ...]) -> SlurmNode:
    base, flags = parse_node_state(row["StateLong"], row.get("StateComplete", ""))
    allocated, idle, other, total = _cpus(row["CPUsState"])
    if base == "allocated" and not row["StateLong"].startswith(base):
        base = _base_by_cpus(allocated, total)
    reason = row["Reason"]
    has_reason = reason not in ("none", "")
    by = row.get("User", "")
    return SlurmNode(
        name=row["NodeList"],
        partitions=partitions,
        long_state=row["StateLong"],
        base_state=base,
        flags=flags,
        cpus_allocated=allocated,
        cpus_idle=idle,
        cpus_other=other,
        cpus=total,
        memory_bytes=parse_mebibytes(row["Memory"]),
        memory_allocated_bytes=parse_mebibytes(row["AllocMem"]),
        memory_free_bytes=parse_mebibytes(row.get("FreeMem", "")),
        cpu_load=parse_number(row.get("CPUsLoad", "")),
        gres=parse_gres(row["Gres"]),
        gres_used=parse_gres(row.get("GresUsed", "")),
        gres_uncounted=uncounted_shares(row.get("GresUsed", "")),
        reason=reason if has_reason else "",
        reason_by=by if has_reason and by != "Unknown" else "",
        reason_at=parse_time(row.get("Timestamp", "")) if has_reason else ABSENT,
    )


def _base_by_cpus(allocated: Maybe[int], total: Maybe[int]) -> str:
    """Of a node that sinfo calls draining or completing: up to 22.05 it does not tell mixed from allocated."""
    if allocated is ABSENT or total is ABSENT:
        return "allocated"
    return "mixed" if 0 < allocated < total else "allocated"


def _cpus(text: str) -> tuple[Maybe[int], Maybe[int], Maybe[int], Maybe[int]]:
    parts = [parse_integer(part) for part in text.split("/")]
    return (parts[0], parts[1], parts[2], parts[3]) if len(parts) == 4 else (ABSENT, ABSENT, ABSENT, ABSENT)


# `scontrol`: is the controller up, reservations, licences.
#
# Input: scontrol's text; output: readings. Only administrators write what stands in it, and a reservation's
# name and comment may still be any text.

_PING = re.compile(r"^Slurmctld\(([^)]*)\) at (.*?) (?:is|are) (UP|DOWN)", re.MULTILINE)
_RESERVATION = re.compile(r"ReservationName=(?P<name>.*?)(?= StartTime=\S* EndTime=|$)", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z]\w*)=(\S*)")


def controllers(text: str) -> dict[str, bool]:
    """Whether each controller answers, by `primary at host`, from `scontrol ping`."""
    return {f"{role} at {host}": state == "UP" for role, host, state in _PING.findall(text)}


def parse_reservations(text: str, nodes: Mapping[str, SlurmNode]) -> tuple[Reservation, ...]:
    """From `scontrol show reservation -o`, one line each.

    The name may have any text in it, and so may the comment at the end: the first value of a key counts.
    """
    found = []
    for line in text.split("\n"):
        match = _RESERVATION.match(line)
        if match is not None:
            pairs = reversed(_PAIR.findall(line, match.end("name")))
            row = {key: _text(value) for key, value in pairs} | {"ReservationName": match["name"]}
            found.append(_to_reservation(row, nodes))
    return tuple(found)


def _to_reservation(row: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> Reservation:
    gpus: Maybe[int] = ABSENT
    with contextlib.suppress(ValueError):
        names = expand_hostlist(row.get("Nodes", ""))
        gpus = reserved_gpus(row.get("TRES", ""), names, nodes, some_cores="CoreIDs" in row)
    return Reservation(
        name=row.get("ReservationName", ""),
        state=row.get("State", ""),
        starts_at=parse_time(row.get("StartTime", "")),
        ends_at=parse_time(row.get("EndTime", "")),
        node_list=row.get("Nodes", ""),
        node_count=parse_integer(row.get("NodeCnt", "")),
        cores=parse_integer(row.get("CoreCnt", "")),
        gpus=gpus,
        partition=row.get("PartitionName", ""),
        users=row.get("Users", ""),
        accounts=row.get("Accounts", ""),
        flags=row.get("Flags", ""),
    )


def _text(value: str) -> str:
    return "" if value == "(null)" else value


def parse_licenses(text: str) -> tuple[License, ...]:
    """From `scontrol show licenses -o`."""
    found = []
    for line in text.splitlines():
        row = dict(_PAIR.findall(line))
        total, used = parse_integer(row.get("Total", "")), parse_integer(row.get("Used", ""))
        if "LicenseName" not in row or total is ABSENT or used is ABSENT:
            continue
        free, reserved = parse_integer(row.get("Free", "")), parse_integer(row.get("Reserved", ""))
        found.append(
            License(
                name=row["LicenseName"],
                count=total,
                used=used,
                free=total - used if free is ABSENT else free,
                reserved=0 if reserved is ABSENT else reserved,
                remote=row.get("Remote") == "yes",
            )
        )
    return tuple(found)
