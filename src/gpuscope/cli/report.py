"""Report GPU-hours by user, account, pod, job, node, model and more: held, busy, idle, energy, cost, CO₂.

Every report prints its invariant: owners, unattributed, free, lost and stranded hours add up to GPUs × hours.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gpuscope.base.settings import Settings
from gpuscope.cli.output import csv_cell, printable
from gpuscope.cli.server_client import (
    add_range_arguments,
    add_server_arguments,
    asked_range,
    explained_errors,
    token_of,
    warn_if_simulated,
)

if TYPE_CHECKING:
    from gpuscope.history.engines.http_connection import EngineConnection
    from gpuscope.judge.reports.usage.usage import UsageReport
    from gpuscope.judge.reports.usage.usage_report import UsageQuestion

SETTINGS = ("co2", "time_zone")
COMMON = ("co2", "time_zone")
USAGE = "gpuscope report usage|idle [--by user] [--since 7d] [options]"

EPILOG = """examples:
  gpuscope report usage --by user --since 30d
  gpuscope report usage --since "last month" --until "this month"
  gpuscope report usage --since 2026-10 --until 2026-11 --time-zone Europe/Berlin
  gpuscope report idle --by job --since 7d --csv > idle.csv
  gpuscope report usage --by model --rate H100=2.5,A100=1.2 --html > usage.html
  gpuscope report usage --by label:team --since 365d --co2 475
  gpuscope report usage --server http://prometheus:9090 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        choices=("usage", "idle"),
        metavar="usage|idle",
        help="usage: most held first; idle: most idle first",
    )
    parser.add_argument(
        "--by",
        metavar="user",
        default="user",
        help="what a row is: user, account, pod, namespace, job, node, model, mig-profile or label:NAME (user)",
    )
    add_range_arguments(parser, "7d")
    parser.add_argument("--rate", metavar="2.5", help="price per GPU-hour, also by model, or 0.3/kWh")
    parser.add_argument(
        "--rate-basis", metavar="held|used", default="held", help="hours that are charged (held)"
    )
    parser.add_argument(
        "--history",
        choices=("auto", "samples", "rollups"),
        default="auto",
        help="what is read: samples, hourly roll-ups, or roll-ups where there are any (auto)",
    )
    add_server_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--csv", action="store_true", help="for spreadsheets")
    form.add_argument("--html", action="store_true", help="one page with plots, without scripts")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.judge.reports.usage.usage_text import text_lines, to_csv, to_html
    from gpuscope.serve.reports.report_answers import usage_answer

    report = _report(args, _question(args, settings))
    if args.kind == "idle":
        report.sort_by_idle()
    warn_if_simulated(args)
    if args.json:
        print(json.dumps(usage_answer(report, args.kind), indent=2))
    elif args.csv:
        print(to_csv(report, csv_cell), end="")
    elif args.html:
        print(to_html(report, args.kind), end="")
    else:
        print("\n".join(text_lines(report, args.kind, printable)))
    return 0


def _question(args: argparse.Namespace, settings: Settings) -> UsageQuestion:
    from gpuscope.judge.reports.rates import parse_rates
    from gpuscope.judge.reports.usage.usage import parse_grouping
    from gpuscope.judge.reports.usage.usage_report import UsageQuestion

    asked = asked_range(args, settings)
    return UsageQuestion(
        grouping=parse_grouping(args.by),
        start_ms=asked.start_ms,
        end_ms=asked.end_ms,
        rates=parse_rates(args.rate, args.rate_basis) if args.rate else None,
        co2_grams_per_kwh=settings.co2,
        source=args.history,
        zone=settings.time_zone,
    )


def _report(args: argparse.Namespace, question: UsageQuestion) -> UsageReport:
    from gpuscope.history.engines.http_connection import connect, run_with
    from gpuscope.history.engines.http_engine import HttpEngine
    from gpuscope.judge.reports.usage.usage_report import usage_report

    async def read(connection: EngineConnection) -> UsageReport:
        return await usage_report(HttpEngine(connection), question)

    with explained_errors():
        return run_with(connect(args.server, origin="--server", token=token_of(args)), read)
