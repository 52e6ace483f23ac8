"""Collect, store and show this machine's GPUs in one process: agent, history, PromQL, API and page.

With --demo a simulated fleet goes through the same pipeline; six hours of its history (less for a large fleet)
are filled in while the page already runs. A demo has its own data folder and never writes into one with real
history.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import DEFAULT_DATA, DEMO_DATA, Settings
from gpuscope.cli import ALERT_SETTINGS, COLLECTING_SETTINGS, HISTORY_SETTINGS, WEB_SETTINGS

SETTINGS = (
    "listen", "store_interval", *HISTORY_SETTINGS, "interval", "demo_nodes", *WEB_SETTINGS,
    *COLLECTING_SETTINGS, *ALERT_SETTINGS,
)  # fmt: skip

EPILOG = """examples:
  gpuscope up                          this machine's GPUs, page and API on http://127.0.0.1:9470
  gpuscope up --demo                   a simulated fleet of 4 nodes with 8 GPUs each
  gpuscope up --demo --scenario one-works --scenario xid79@+2m
                                       with two of the scenarios that `gpuscope up --scenarios` lists
"""

COMMON = ("listen", "data", "retention", "scenario")

DEMO_NODES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--demo", action="store_true", help="a simulated fleet instead of this machine")
    parser.add_argument("--scenarios", action="store_true", help="list what can happen in the simulated fleet")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.scenarios:
        from gpuscope.demo import SCENARIOS

        print("\n".join(f"{scenario.name:13} {scenario.meaning}" for scenario in SCENARIOS.values()))
        return 0
    if args.demo and settings.source not in ("auto", "demo"):
        raise UsageError(f"--demo and --source {settings.source}: give only one of them")
    from gpuscope.cli.wiring.heap import paused_while_starting

    with paused_while_starting():
        _run(args, settings)
    return 0


def _run(args: argparse.Namespace, settings: Settings) -> None:
    if args.demo or settings.source == "demo":
        from gpuscope.cli.wiring.demo import build_demo
        from gpuscope.cli.wiring.run_up import run_demo

        data = DEMO_DATA if settings.data == DEFAULT_DATA else settings.data
        settings = replace(settings, source="demo", data=data, demo_nodes=settings.demo_nodes or DEMO_NODES)
        run_demo(settings, build_demo(settings))
        return
    from gpuscope.cli.wiring.run_agent import build_collector
    from gpuscope.cli.wiring.run_up import run_up
    from gpuscope.history.scrape.local_feeds import STORED_FAMILIES

    run_up(settings, [build_collector(settings, STORED_FAMILIES)])
