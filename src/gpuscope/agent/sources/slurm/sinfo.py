"""`sinfo -N`: every node with its state, CPUs, memory and GRES; a node is listed once per partition.

Input: what sinfo printed with `ARGUMENTS`; output: nodes, each once, with all its partitions. `-a` shows hidden
partitions. A node in no partition is not printed by sinfo at all, and one whose state is FUTURE neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuscope.agent.sources.slurm.gres import parse_gres, uncounted_shares
from gpuscope.agent.sources.slurm.records import RecordSplitter
from gpuscope.agent.sources.slurm.values import (
    parse_integer,
    parse_mebibytes,
    parse_node_state,
    parse_number,
    parse_time,
)
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import SlurmNode

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
