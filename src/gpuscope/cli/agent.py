"""Serve this machine's GPU metrics in the Prometheus text format.

Metrics are read in the background, so a scrape is cheap. With --as NAME the agent replaces another exporter, on
that exporter's port; the flags after --as NAME are that exporter's flags.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuscope.base.limits import limit_names
from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import families_without_gpus
from gpuscope.cli import COLLECTING_SETTINGS

if TYPE_CHECKING:
    from gpuscope.agent.families.stand_in import ListenerPlan
    from gpuscope.cli.wiring.run_agent import CollectorThreads

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
  gpuscope agent                                   all GPUs of this machine on :9400/metrics
  gpuscope agent --source demo --scenario thermal  eight simulated GPUs, one overheating
  gpuscope agent --as dcgm-exporter -f my.csv      replace dcgm-exporter, with its own flags
  gpuscope agent --as nvidia_gpu_exporter --as node_exporter
                                                   replace two exporters, on :9835 and :9100
  gpuscope agent --once                            print the metrics once and exit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.stand_ins import stand_in_names

    names = ", ".join(stand_in_names())
    parser.add_argument(
        "--once", action="store_true", help="print the metrics once on standard output and exit"
    )
    parser.add_argument(
        "--as",
        dest="stand_ins",
        metavar="NAME",
        action="append",
        default=[],
        help=f"replace an exporter; repeatable. One of: {names} [GPUSCOPE_STAND_IN]",
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """gpuscope's flags may appear anywhere; unknown flags belong to the preceding `--as NAME`."""
    args = argparse.Namespace(stand_ins=[])
    for segment in _segments(argv):
        before = len(args.stand_ins)
        args, exporter_flags = parser.parse_known_args(segment, args)
        if len(args.stand_ins) > before:
            args.stand_ins[-1] = (args.stand_ins[-1], tuple(exporter_flags))
        elif exporter_flags:
            parser.error(f"unrecognized arguments: {' '.join(exporter_flags)}")
    return args


def _segments(argv: Sequence[str]) -> list[list[str]]:
    segments: list[list[str]] = [[]]
    for word in argv:
        if word == "--as" or word.startswith("--as="):
            segments.append([])
        segments[-1].append(word)
    return segments


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.cli.wiring.asyncio_import import import_asyncio_without_tls
    from gpuscope.serve.stand_ins import plan_listeners, settings_for

    plans = plan_listeners(settings, args.stand_ins or [(name, ()) for name in settings.stand_in])
    if not any(plan.web_config_file for plan in plans):
        import_asyncio_without_tls()
    from gpuscope.cli.wiring import run_agent as wiring

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
    from gpuscope.cli.wiring import run_agent as wiring

    if not settings.remote_write:  # avoids importing the remote-write modules
        wiring.serve_agent(running, plans, settings)
        return
    from gpuscope.cli.wiring.remote_write import sending_snapshots

    with sending_snapshots(settings, running.collector, families) as sender:
        first, *others = plans
        with_counters = replace(first, builders=(*first.builders, sender) if sender else first.builders)
        wiring.serve_agent(running, [with_counters, *others], settings)
