"""Serve this machine's GPU metrics to Prometheus, or to anything that reads its text format.

The numbers are read in the background, so a scrape costs next to nothing. With --as NAME it stands in for
another exporter on that exporter's own port; flags behind --as NAME are that exporter's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.limits import limit_names
from gpuscope.settings import Settings
from gpuscope.source_plan import families_without_gpus

if TYPE_CHECKING:
    from gpuscope.server.listener import ListenerPlan
    from gpuscope.wiring.run_agent import CollectorThreads

SETTINGS = (
    "listen",
    "families",
    "interval",
    "counters",
    "fields",
    "dcgm_hostname_label",
    "dcgm_interval",
    "dcgm_fields",
    "web_config_file",
    "remote_write",
    "remote_write_http_config",
    "remote_write_interval",
    *COLLECTING_SETTINGS,
    *limit_names("http"),
)

SETTINGS_OF_OWN_FLAGS = ("stand_in",)
COMMON = ("listen", "families", "interval", "source", "counters")

EPILOG = """examples:
  gpuscope agent                                   every GPU of this machine on :9400/metrics
  gpuscope agent --source demo --scenario thermal  eight simulated GPUs, one too hot
  gpuscope agent --as dcgm-exporter -f my.csv      stand in for dcgm-exporter, with its own flags
  gpuscope agent --as nvidia_gpu_exporter --as node_exporter
                                                   two stand-ins, on :9835 and :9100
  gpuscope agent --once                            print the metrics once and stop
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.server.stand_ins import stand_in_names

    names = ", ".join(stand_in_names())
    parser.add_argument("--once", action="store_true", help="print one exposition on standard output and stop")
    parser.add_argument(
        "--as",
        dest="stand_ins",
        metavar="NAME",
        action="append",
        default=[],
        help=f"stand in for an exporter; may be repeated. One of: {names} [GPUSCOPE_STAND_IN]",
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Our flags may stand anywhere; what we do not know belongs to the `--as NAME` before it."""
    args = argparse.Namespace(stand_ins=[])
    for segment in _segments(argv):
        before = len(args.stand_ins)
        args, theirs = parser.parse_known_args(segment, args)
        if len(args.stand_ins) > before:
            args.stand_ins[-1] = (args.stand_ins[-1], tuple(theirs))
        elif theirs:
            parser.error(f"unrecognized arguments: {' '.join(theirs)}")
    return args


def _segments(argv: Sequence[str]) -> list[list[str]]:
    segments: list[list[str]] = [[]]
    for word in argv:
        if word == "--as" or word.startswith("--as="):
            segments.append([])
        segments[-1].append(word)
    return segments


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.server.stand_ins import plan_listeners, settings_for
    from gpuscope.wiring import run_agent as wiring

    plans = plan_listeners(settings, args.stand_ins or [(name, ()) for name in settings.stand_in])
    settings = settings_for(plans, settings)
    families = {family for plan in plans for family in plan.families}
    sources = {source for plan in plans for source in plan.sources}
    running = wiring.CollectorThreads(wiring.build_collector(settings, families, sources))
    if not args.once:
        _serve(running, plans, settings, families)
        return 0
    exporters = [wiring.build_exporter(plan) for plan in plans]
    for exporter in exporters:
        running.collector.subscribe(exporter.publish)
    snapshot = wiring.read_once(running)
    for exporter in exporters:
        sys.stdout.buffer.write(exporter.exposition())
    sys.stdout.buffer.flush()
    if not families_without_gpus().issuperset(families):
        wiring.require_gpu(snapshot)
    return 0


def _serve(
    running: CollectorThreads, plans: list[ListenerPlan], settings: Settings, families: set[str]
) -> None:
    from gpuscope.wiring import run_agent as wiring

    if not settings.remote_write:  # what pushes is not even loaded
        wiring.serve_agent(running, plans, settings)
        return
    from gpuscope.wiring.agent_push import pushing

    with pushing(settings, running.collector, families) as push:
        first, *others = plans
        told = replace(first, builders=(*first.builders, push) if push else first.builders)
        wiring.serve_agent(running, [told, *others], settings)
