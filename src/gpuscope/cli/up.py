"""Collect, keep and show everything of this machine in one process: agent, history, PromQL, API and page.

With --demo it is a simulated fleet through the same pipeline; an empty data folder is first filled with six
hours of its history. A demo has a data folder of its own, and never writes into one with real history.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from gpuscope.cli import COLLECTING_SETTINGS, HISTORY_SETTINGS, WEB_SETTINGS
from gpuscope.settings import DEFAULT_DATA, DEMO_DATA, Settings

SETTINGS = (
    "listen", "store_interval", *HISTORY_SETTINGS, "interval", "demo_nodes", *WEB_SETTINGS,
    *COLLECTING_SETTINGS,
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
    from gpuscope.wiring import run_agent as wiring
    from gpuscope.wiring.run_up import STORED_FAMILIES, fill_with_history, run_up

    if args.scenarios:
        from gpuscope.sources.demo import SCENARIOS

        print("\n".join(f"{scenario.name:12} {scenario.meaning}" for scenario in SCENARIOS.values()))
        return 0
    if args.demo or settings.source == "demo":
        from gpuscope.wiring.demo import build_demo

        data = DEMO_DATA if settings.data == DEFAULT_DATA else settings.data
        settings = replace(settings, source="demo", data=data, demo_nodes=settings.demo_nodes or DEMO_NODES)
        demo = build_demo(settings)
        run_up(settings, demo.collectors, lambda store: fill_with_history(demo, settings, store))
        return 0
    collector = wiring.build_collector(settings, STORED_FAMILIES)
    run_up(settings, [collector], lambda store: None)
    return 0
