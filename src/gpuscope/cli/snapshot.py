"""Show the GPUs of this machine or of a fleet now, one line each, and their processes.

The numbers come from the server of --server, else from an agent or server that runs on this machine, else from
the driver itself, which takes a second longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.live_arguments import add_live_arguments, open_remote_reader, terminal_look
from gpuscope.cli.terminal.fleet_lines import render_snapshot
from gpuscope.cli.terminal.fleet_view import FleetView, NotALivePicture, to_fleet_view
from gpuscope.cli.terminal.spans import printable
from gpuscope.cli.terminal.top_model import GPU_SORTS, select
from gpuscope.cli.wiring.live_readers import LiveReader, Picture
from gpuscope.model.readings import ABSENT

SETTINGS = ("interval", *(name for name in COLLECTING_SETTINGS if name != "node"))
SETTINGS_OF_OWN_FLAGS = ("node",)

LOG_LEVEL = "error"

EPILOG = """examples:
  gpuscope snapshot                                 this machine
  gpuscope snapshot --server http://monitor:9470    a whole fleet
  gpuscope snapshot --user alice --sort memory      one user's GPUs and processes, largest first
  gpuscope snapshot --json | jq .devices            all readings of this machine; absent values are omitted
  gpuscope snapshot --watch                         repeat every second until Ctrl-C
States: X lost, 0 gone, ? stale, ! sick, T throttled, H held and idle, B busy, - free.
With --server, --json prints the server's /api/live as it is.
"""

SECONDS_BETWEEN_READINGS = 0.8
ONCE_IDLE_SECONDS = 0.5
"""A single snapshot observes processes for less than a second, so `idle_after` must be shorter than that."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch one line per snapshot")
    parser.add_argument("--watch", action="store_true", help="repeat at every --interval until Ctrl-C")
    parser.add_argument("--sort", choices=tuple(GPU_SORTS), default="gpu", help="order of the lines (gpu)")
    parser.add_argument("--user", metavar="NAME", default="", help="only this user's GPUs and processes")
    parser.add_argument(
        "--node",
        metavar="NAME",
        action="append",
        dest="nodes",
        default=[],
        help="with --server only these nodes, repeatable; otherwise the name of this machine [GPUSCOPE_NODE]",
    )
    parser.add_argument("--ascii", action="store_true", help="no Unicode: bars of # and -")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if not args.server and args.nodes:
        if len(args.nodes) > 1:
            raise UsageError("--node: only one name without --server, the name of this machine")
        settings = replace(settings, node=args.nodes[0])
    if args.json and not args.server:
        return _json_of_this_machine(args, settings)
    reader = open_remote_reader(args, settings)
    if reader is None:
        return _show_this_machine(args, settings)
    nodes = args.nodes if args.server else [settings.node_name()]
    try:
        return _repeat(reader, args, nodes, settings.interval) if args.watch else _once(reader, args, nodes)
    finally:
        reader.close()


def _once(reader: LiveReader, args: argparse.Namespace, nodes: list[str]) -> int:
    _print(reader.read(), reader, args, nodes, indent=2)
    return 0


def _repeat(reader: LiveReader, args: argparse.Namespace, nodes: list[str], interval: float) -> int:
    pause = threading.Event()
    try:
        while True:
            try:
                _print(reader.read(), reader, args, nodes, indent=None)
            except GpuscopeError as error:
                if not args.server or args.json:
                    raise
                _write_screen([f"gpuscope: {error}; trying again"])
            pause.wait(interval)
    except KeyboardInterrupt:
        return 0


def _print(
    picture: Picture, reader: LiveReader, args: argparse.Namespace, nodes: list[str], indent: int | None
) -> None:
    if args.json:
        print(json.dumps(picture, indent=indent, ensure_ascii=True), flush=True)
        return
    view = view_of(picture, reader.origin)
    unknown = sorted(set(nodes) - {node.name for node in view.nodes})
    if unknown:
        raise UsageError(f"--node: {reader.origin} has no node {unknown[0]!r}")
    view = select(view, user=args.user, nodes=nodes, sort=args.sort)
    lines = render_snapshot(view, terminal_look(ascii_only=args.ascii))
    if args.watch:
        _write_screen(lines)
    else:
        print("\n".join(lines))


def view_of(picture: Picture, origin: str) -> FleetView:
    try:
        view = to_fleet_view(picture, origin)
    except NotALivePicture as error:
        raise GpuscopeError(f"{origin}/api/live: {error}; is it a gpuscope server?") from None
    notes = tuple(printable(str(note)) for note in picture.get("notes", ()))
    return replace(view, notes=(*view.notes, *notes))


def _write_screen(lines: list[str]) -> None:
    if sys.stdout.isatty():
        # Overwrites line by line: clearing the screen first would flicker.
        text = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
    else:
        text = "\n".join([*lines, "", ""])
    sys.stdout.write(text)
    sys.stdout.flush()


def _show_this_machine(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.cli.wiring import run_agent
    from gpuscope.cli.wiring.live_readers import OwnReader

    if not args.watch:
        settings = replace(settings, idle_after=min(settings.idle_after, ONCE_IDLE_SECONDS))
    reader = OwnReader(run_agent.build_collector(settings, ("native",)))
    try:
        if args.watch:
            return _repeat(reader, args, [], settings.interval)
        picture = reader.read_twice(SECONDS_BETWEEN_READINGS, run_agent.MAX_SECONDS_FOR_ONE_SHOT)
    finally:
        reader.close()
    if reader.collector.snapshot.devices:
        _print(picture, reader, args, [], indent=2)
    run_agent.require_gpu(reader.collector.snapshot)
    return 0


def _json_of_this_machine(args: argparse.Namespace, settings: Settings) -> int:
    """Every reading, more than an agent's metrics have: always from the driver."""
    from gpuscope.cli.wiring import run_agent

    if not args.watch:
        settings = replace(settings, idle_after=min(settings.idle_after, ONCE_IDLE_SECONDS))
    running = run_agent.CollectorThreads(run_agent.build_collector(settings, ("native", "host")))
    if args.watch:
        return _watch_json(running, settings.interval)
    snapshot = run_agent.read_once(running)
    print(json.dumps(to_json(snapshot), indent=2, ensure_ascii=True))
    run_agent.require_gpu(snapshot)
    return 0


def _watch_json(running: Any, interval: float) -> int:
    running.start_workers()
    pause = threading.Event()
    try:
        while True:
            print(json.dumps(to_json(running.collector.tick()), ensure_ascii=True), flush=True)
            pause.wait(interval)
    except KeyboardInterrupt:
        return 0
    finally:
        running.stop()


def to_json(value: Any) -> Any:
    """Converts readings to JSON values; absent values are omitted, never null or 0."""
    if is_dataclass(value) and not isinstance(value, type):
        return _known((f.name, getattr(value, f.name)) for f in fields(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # a named tuple, as Slurm's jobs are
        return _known(value._asdict().items())
    if isinstance(value, Mapping):
        return {".".join(k) if isinstance(k, tuple) else str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def _known(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: to_json(value) for name, value in pairs if value is not ABSENT and value not in ({}, None)}
