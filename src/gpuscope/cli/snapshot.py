"""Show this machine's GPUs now, and the processes on each of them."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.snapshot_table import render
from gpuscope.cli.terminal import wants_colour
from gpuscope.readings import ABSENT, Snapshot
from gpuscope.settings import Settings

SETTINGS = ("interval", *COLLECTING_SETTINGS)

LOG_LEVEL = "warning"

EPILOG = """examples:
  gpuscope snapshot                       print a table
  gpuscope snapshot --json | jq .devices  print JSON; absent values are omitted
  gpuscope snapshot --watch               repeat every second until Ctrl-C
"""

ONCE_IDLE_SECONDS = 0.5
"""A single snapshot observes processes for one second only, so `idle_after` must be shorter than that."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch one line per snapshot")
    parser.add_argument("--watch", action="store_true", help="repeat at every --interval until Ctrl-C")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.wiring import run_agent as wiring

    if not args.watch:
        settings = replace(settings, idle_after=min(settings.idle_after, ONCE_IDLE_SECONDS))
    running = wiring.CollectorThreads(
        wiring.build_collector(settings, ("native", "host") if args.json else ("native",))
    )
    if args.watch:
        return _watch(running, args.json, settings.interval)
    snapshot = wiring.read_once(running)
    _print(snapshot, args.json, indent=2)
    wiring.require_gpu(snapshot)
    return 0


def _watch(running: Any, as_json: bool, interval: float) -> int:
    running.start_workers()
    pause = threading.Event()
    try:
        while True:
            snapshot = running.collector.tick()
            if not as_json and sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            _print(snapshot, as_json, indent=None)
            sys.stdout.flush()
            pause.wait(interval)
    except KeyboardInterrupt:
        return 0
    finally:
        running.stop()


def _print(snapshot: Snapshot, as_json: bool, indent: int | None) -> None:
    if as_json:
        print(json.dumps(to_json(snapshot), indent=indent, ensure_ascii=True))
    else:
        print("\n".join(render(snapshot, wants_colour())))


def to_json(value: Any) -> Any:
    """Converts readings to JSON values; absent values are omitted, never null or 0."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: to_json(v) for name, v in pairs if v is not ABSENT and v != {} and v is not None}
    if isinstance(value, Mapping):
        return {".".join(k) if isinstance(k, tuple) else str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value
