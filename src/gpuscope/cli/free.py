"""Find free GPUs on this machine or in a fleet, best fit first.

A GPU is free if no process is on it, nothing is wrong with it, and neither Slurm nor Kubernetes has allocated
it, as far as the agent knows. A GPU whose processes are not known is not listed, and standard error says so.
This command does not reserve a GPU. Exit code 1 if there are not enough.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_argument, parse_bytes, parse_duration
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.live_arguments import add_live_arguments, only_shown_nodes, open_remote_reader
from gpuscope.cli.output import bytes_text, printable, render_table
from gpuscope.cli.server_client import print_simulated_warning
from gpuscope.cli.snapshot import view_of
from gpuscope.cli.terminal.fleet_lines import short_model
from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow
from gpuscope.cli.wiring.live_readers import LiveReader, Picture
from gpuscope.judge.checks.states import State

# Where free GPUs are: sets of GPUs of one node, best fit first.
#
# A GPU is free if its state is `idle`: no process is on it and no scheduler has given it away. GPUs that
# reach each other over NVLink and share a NUMA node are preferred; then sets that leave the fewest free GPUs
# beside them, and the smallest memory that is enough, so that large free sets stay whole.

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


SETTINGS = ("interval", *COLLECTING_SETTINGS)
LOG_LEVEL = "error"
MAX_COUNT = 1024
MAX_ERROR = 500
MAX_NAMED = 8
"""GPUs that one line of standard error names."""
HEAD = ("NODE", "GPUS", "MODEL", "FREE", "TOGETHER")
FLEET_SECONDS = 5.0

EPILOG = """examples:
  gpuscope free                                          every free GPU
  gpuscope free --count 2 --memory 40GiB --model H100    two together on one node
  gpuscope free --server http://monitor:9470 --count 8   in a fleet: one line per node
  env $(gpuscope free --env) python train.py             run on the best free GPU
  gpuscope free --count 4 --wait && ./start              wait until there are four
"""


class Search(NamedTuple):
    placements: list[Placement]
    unknown: list[GpuRow]
    """GPUs of which nobody knows whether they are free."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_arguments(parser)
    parser.add_argument("--count", metavar="N", default="1", help="number of GPUs, all on one node (1)")
    parser.add_argument("--memory", metavar="40GiB", default="", help="free memory that each must have")
    parser.add_argument(
        "--model", metavar="TEXT", default="", help="text in the model's name, for example H100"
    )
    parser.add_argument("--mig", action="store_true", help="MIG instances instead of whole GPUs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--env", action="store_true", help="print CUDA_VISIBLE_DEVICES=… of the best ones only")
    form.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--wait", action="store_true", help="wait until there are enough")
    parser.add_argument(
        "--timeout", metavar="10m", default="", help="with --wait: maximum time; then exit code 1"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    wanted = _wanted(args)
    deadline = time.monotonic() + _seconds(args.timeout) if args.timeout else float("inf")
    reader = _open_reader(args, settings)
    pause = threading.Event()
    try:
        search = _look(reader, args, settings, wanted, first=True)
        while args.wait and not search.placements and time.monotonic() < deadline:
            pause.wait(FLEET_SECONDS if args.server else settings.interval)
            try:
                search = _look(reader, args, settings, wanted, first=False)
            except GpuscopeError as error:  # a server that restarts must not end the wait
                print(f"gpuscope: {printable(str(error), MAX_ERROR)}; still waiting", file=sys.stderr)
    finally:
        reader.close()
    _print(search.placements, args, search.unknown)
    _print_unknown(search.unknown)
    return 0 if search.placements else 1


def _wanted(args: argparse.Namespace) -> Wanted:
    if not args.count.isascii() or not args.count.isdigit() or not 1 <= int(args.count[:6]) <= MAX_COUNT:
        raise UsageError(f"--count: {args.count!r} is not a number from 1 to {MAX_COUNT}")
    memory = parse_argument(parse_bytes, args.memory, "--memory", "40GiB") if args.memory else 0
    if args.mig and int(args.count) > 1:
        raise UsageError("--mig: a CUDA program uses one MIG instance; omit --count")
    return Wanted(int(args.count), float(memory), args.model, args.mig)


def _seconds(text: str) -> float:
    return parse_argument(parse_duration, text, "--timeout", "10m")


def _open_reader(args: argparse.Namespace, settings: Settings) -> LiveReader:
    reader = open_remote_reader(args, settings, with_placement=True)
    if reader is not None:
        return reader
    from gpuscope.cli.wiring.live_readers import OwnReader
    from gpuscope.cli.wiring.run_agent import build_collector

    return OwnReader(build_collector(settings, ("native",)))


def _look(
    reader: LiveReader, args: argparse.Namespace, settings: Settings, wanted: Wanted, *, first: bool
) -> Search:
    from gpuscope.cli.wiring.live_readers import OwnReader
    from gpuscope.cli.wiring.run_agent import require_gpu

    own = reader if isinstance(reader, OwnReader) else None
    # Owners and allocations come with the second reading.
    picture = own.read_twice(0.8, 5.0) if own is not None and first else reader.read()
    view = only_shown_nodes(view_of(picture, reader.origin), args, settings)
    if own is not None and first:
        require_gpu(own.collector.snapshot)
    if view.simulated and first:
        print_simulated_warning(view.origin, sum(not row.parent for row in view.gpus))
    return Search(find_placements(view, wanted, _topology(picture)), find_unknown(view, wanted))


def _topology(picture: Picture) -> Topology:
    return Topology(picture.get("links") or {}, picture.get("numa") or {})


def _print_unknown(rows: Sequence[GpuRow]) -> None:
    """One line per reason."""
    for reason in dict.fromkeys(row.reason for row in rows):
        places = [f"{row.node} {row.gpu}" for row in rows if row.reason == reason]
        more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
        named = f"GPU {', '.join(places[:MAX_NAMED])}{more}"
        print(f"gpuscope: not known whether free: {named}: {reason}", file=sys.stderr)


def _print(placements: list[Placement], args: argparse.Namespace, unknown: Sequence[GpuRow]) -> None:
    if args.json:
        document = {
            "placements": [_to_json(placement) for placement in placements],
            "unknown": [
                {"node": row.node, "gpu": row.gpu, "uuid": row.uuid, "why": row.why} for row in unknown
            ],
        }
        print(json.dumps(document, indent=2))
    elif args.env:
        usable = [(placement, devices) for placement in placements if (devices := placement.visible_devices())]
        if usable:
            best, devices = usable[0]
            if args.server:
                print(f"gpuscope: on {best.node}", file=sys.stderr)
            print(f"CUDA_VISIBLE_DEVICES={devices}")
        elif placements:
            raise GpuscopeError("the server sends UUIDs that are not those of GPUs")
    elif placements:
        shown = len(HEAD) if any(placement.together for placement in placements) else len(HEAD) - 1
        rows = [_cells(placement)[:shown] for placement in placements]
        print("\n".join(render_table(HEAD[:shown], rows, ("FREE",))))
    if not placements:
        print("gpuscope: not enough free GPUs", file=sys.stderr)


def _cells(one: Placement) -> tuple[str, ...]:
    free = "" if one.free_bytes is None else bytes_text(one.free_bytes)
    return one.node, ",".join(row.gpu for row in one.gpus), models_text(one), free, one.together


def _to_json(one: Placement) -> dict[str, Any]:
    told: dict[str, Any] = {
        "node": one.node,
        "gpus": [row.gpu for row in one.gpus],
        "uuids": [row.uuid for row in one.gpus],
        "model": models_text(one),
        "together": one.together,
    }
    if one.free_bytes is not None:
        told["free_bytes"] = one.free_bytes
    return told
