"""Write metrics to a file for node_exporter's textfile collector. The file is replaced atomically."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_argument, parse_interval
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS

if TYPE_CHECKING:
    from gpuscope.cli.wiring.run_agent import CollectorThreads
    from gpuscope.model.exposition.text import TextfileWriter
    from gpuscope.serve.exporter import Exporter

SETTINGS = ("families", "fields", "counters", *COLLECTING_SETTINGS)

COMMON = ("families", "fields")

EPILOG = """examples:
  gpuscope textfile --output /var/lib/node_exporter/textfile_collector/gpu_sessions.prom
  gpuscope textfile --output /run/prometheus/dcgm.prom --families dcgm_legacy --fields +191,+51 --interval 1s
  gpuscope textfile --output /tmp/gpu.prom --once
"""

DEFAULT_FAMILIES = ("sessions",)

log = logging.getLogger("gpuscope")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="output file, *.prom")
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="write the file once and exit; the file stays")
    often.add_argument("--every", "--interval", metavar="60s", default="60s", help="write interval (60s)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.agent.families import load_family
    from gpuscope.cli.wiring import run_agent as wiring
    from gpuscope.model.exposition.text import TextfileWriter
    from gpuscope.serve.exporter import Exporter

    every = parse_argument(parse_interval, args.every, "--interval", "60s")
    if args.once:
        # The first process of a container ignores SIGTERM unless it has a handler. A run that is ended writes
        # nothing: its file would stay when the chart is removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        # It observes processes for one second only, so `idle_after` must be shorter.
        settings = replace(settings, idle_after=min(settings.idle_after, 0.5))
    families = settings.families or DEFAULT_FAMILIES
    exporter = Exporter(
        [load_family(name).build(settings) for name in families], openmetrics=False, title="textfile"
    )
    running = wiring.CollectorThreads(wiring.build_collector(settings, families))
    running.collector.subscribe(exporter.publish)
    writer = TextfileWriter(args.output)
    writer.claim()
    try:
        if args.once:
            _write_once(running, exporter, writer)
        else:
            stop = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
            wiring.write_textfile(running, exporter, writer, every=every, stop=stop)
    finally:
        writer.release()
    return 0


def _write_once(running: CollectorThreads, exporter: Exporter, writer: TextfileWriter) -> None:
    from gpuscope.cli.wiring import run_agent as wiring

    snapshot = wiring.read_once(running)
    try:
        writer.write(exporter.exposition())
    except OSError as error:
        raise UsageError(f"--output {writer.target}: {error.strerror}; choose another file") from None
    wiring.require_gpu(snapshot)
