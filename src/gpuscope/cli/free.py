"""Find free GPUs on this machine or in a fleet, best fit first.

A GPU is free if no process is on it, nothing is wrong with it, and neither Slurm nor Kubernetes has allocated
it, as far as the agent knows. A GPU whose processes are not known is not listed, and standard error says so.
This command does not reserve a GPU. Exit code 1 if there are not enough.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_argument, parse_bytes, parse_duration
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.live_arguments import add_live_arguments, only_shown_nodes, open_remote_reader
from gpuscope.cli.output import bytes_text, printable, render_table
from gpuscope.cli.server_client import print_simulated_warning
from gpuscope.cli.snapshot import view_of
from gpuscope.cli.terminal.fleet_view import GpuRow
from gpuscope.cli.terminal.free_gpus import (
    Placement,
    Topology,
    Wanted,
    find_placements,
    find_unknown,
    models_text,
)
from gpuscope.cli.wiring.live_readers import LiveReader, Picture

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
    from gpuscope.cli.wiring.own_reader import OwnReader
    from gpuscope.cli.wiring.run_agent import build_collector

    return OwnReader(build_collector(settings, ("native",)))


def _look(
    reader: LiveReader, args: argparse.Namespace, settings: Settings, wanted: Wanted, *, first: bool
) -> Search:
    from gpuscope.cli.wiring.own_reader import OwnReader
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
            "placements": [_to_json(one) for one in placements],
            "unknown": [
                {"node": row.node, "gpu": row.gpu, "uuid": row.uuid, "why": row.why} for row in unknown
            ],
        }
        print(json.dumps(document, indent=2))
    elif args.env:
        usable = [(one, devices) for one in placements if (devices := one.visible_devices())]
        if usable:
            best, devices = usable[0]
            if args.server:
                print(f"gpuscope: on {best.node}", file=sys.stderr)
            print(f"CUDA_VISIBLE_DEVICES={devices}")
        elif placements:
            raise GpuscopeError("the server sends UUIDs that are not those of GPUs")
    elif placements:
        shown = len(HEAD) if any(one.together for one in placements) else len(HEAD) - 1
        rows = [_cells(one)[:shown] for one in placements]
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
