"""Where free GPUs are: sets of GPUs of one node, best fit first.

A GPU is free if its state is `idle`: no process is on it and no scheduler has given it away. GPUs that reach
each other over NVLink and share a NUMA node are preferred; then sets that leave the fewest free GPUs beside
them, and the smallest memory that is enough, so that large free sets stay whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.cli.terminal.fleet_lines import short_model
from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow
from gpuscope.judge.checks.states import State

UUID_PATTERN: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]*", re.ASCII)
"""Only such a UUID is printed for a shell."""
TOGETHER: Final = ("NVLink, one NUMA node", "NVLink", "one NUMA node", "one node")


@dataclass(frozen=True, slots=True)
class Wanted:
    count: int = 1
    memory_bytes: float = 0.0
    model: str = ""
    mig: bool = False
    """MIG instances instead of whole GPUs."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of the places of GPUs; empty if nothing is."""

    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Indices of the GPUs of the same node that a GPU reaches over NVLink, by UUID."""
    numa: Mapping[str, str] = field(default_factory=dict)
    """NUMA node by UUID."""


@dataclass(frozen=True, slots=True)
class Placement:
    node: str
    gpus: tuple[GpuRow, ...]
    together: str
    """How near the GPUs are to each other; empty for a single GPU."""
    rank: tuple[int, int, float, str, str] = field(repr=False)

    @property
    def free_bytes(self) -> float | None:
        """Of the GPU that has the least."""
        known = [_free_bytes(row) for row in self.gpus]
        return min((count for count in known if count is not None), default=None)

    def visible_devices(self) -> str | None:
        """The value of CUDA_VISIBLE_DEVICES; None if a UUID is not one, which a shell must not see."""
        uuids = [row.uuid for row in self.gpus]
        return ",".join(uuids) if all(map(UUID_PATTERN.fullmatch, uuids)) else None


def find_placements(view: FleetView, wanted: Wanted, topology: Topology | None = None) -> list[Placement]:
    """For one GPU every free one; for several, the best set of each node."""
    topology = topology or Topology()
    by_node: dict[str, list[GpuRow]] = defaultdict(list)
    for row in _fitting(view, wanted):
        if row.state == State.IDLE:
            by_node[row.node].append(row)
    found: list[Placement] = []
    for node, rows in by_node.items():
        if wanted.count == 1:
            found += [_placement(node, [row], rows, "", 0) for row in rows]
        elif len(rows) >= wanted.count:
            found.append(_best_of_node(node, rows, wanted.count, topology))
    return sorted(found, key=lambda placement: placement.rank)


def find_unknown(view: FleetView, wanted: Wanted) -> list[GpuRow]:
    """GPUs of which nobody knows whether they are free."""
    return [row for row in _fitting(view, wanted) if row.may_be_free]


def _fitting(view: FleetView, wanted: Wanted) -> Iterator[GpuRow]:
    split = {(row.node, row.parent) for row in view.gpus if row.parent}
    for row in view.gpus:
        # A GPU in MIG mode cannot be used as a whole.
        if bool(row.parent) != wanted.mig or (row.node, row.uuid) in split:
            continue
        free = _free_bytes(row)
        if wanted.memory_bytes and (free is None or free < wanted.memory_bytes):
            continue
        if wanted.model.casefold() in f"{row.model} {row.profile}".casefold():
            yield row


def _free_bytes(row: GpuRow) -> float | None:
    if row.memory_total_bytes is None or row.memory_used_bytes is None:
        return None
    return row.memory_total_bytes - row.memory_used_bytes


def _best_of_node(node: str, rows: Sequence[GpuRow], count: int, topology: Topology) -> Placement:
    islands = _islands(rows, topology.links)
    numa = {row.uuid: topology.numa.get(row.uuid, "") for row in rows}
    keys: tuple[Callable[[GpuRow], object], ...] = (
        lambda row: (islands[row.uuid], numa[row.uuid]) if islands[row.uuid] and numa[row.uuid] else None,
        lambda row: islands[row.uuid] or None,
        lambda row: numa[row.uuid] or None,
    )
    for rank, key in enumerate(keys):
        groups: dict[object, list[GpuRow]] = defaultdict(list)
        for row in rows:
            if (place := key(row)) is not None:
                groups[place].append(row)
        enough = [group for group in groups.values() if len(group) >= count]
        if enough:
            group = min(enough, key=len)
            return _placement(node, _smallest(group, count), group, TOGETHER[rank], rank)
    return _placement(node, _smallest(rows, count), rows, TOGETHER[-1], len(TOGETHER) - 1)


def _smallest(rows: Iterable[GpuRow], count: int) -> list[GpuRow]:
    """The GPUs with the least memory, in the order of their indices."""
    chosen = sorted(rows, key=lambda row: (row.memory_total_bytes or 0.0, _index(row)))[:count]
    return sorted(chosen, key=_index)


def _index(row: GpuRow) -> tuple[int, ...]:
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in row.gpu.split("_"))


def _islands(rows: Iterable[GpuRow], links: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By UUID the lowest index of the GPUs that are connected by NVLink, over others too; empty: no NVLink."""
    listed = sorted(rows, key=_index)
    by_index = {row.gpu: row for row in listed}
    island: dict[str, str] = {}
    for first in listed:
        if first.uuid in island:
            continue
        waiting, members = [first], set()
        while waiting:
            row = waiting.pop()
            if row.uuid in members:
                continue
            members.add(row.uuid)
            waiting += [by_index[peer] for peer in links.get(row.uuid, ()) if peer in by_index]
        for uuid in members:
            island[uuid] = first.gpu if len(members) > 1 else ""
    return island


def _placement(
    node: str, chosen: Sequence[GpuRow], group: Sequence[GpuRow], together: str, rank: int
) -> Placement:
    memory = sum(row.memory_total_bytes or 0.0 for row in chosen)
    order = (rank, len(group) - len(chosen), memory, node, f"{_index(chosen[0])[0]:06d}")
    return Placement(node, tuple(chosen), together, order)


def models_text(placement: Placement) -> str:
    return ", ".join(dict.fromkeys(short_model(row.model) for row in placement.gpus))
