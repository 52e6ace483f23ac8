"""Print the receipt of a Slurm job or a pod: GPUs requested, held and used, idle time, energy, XIDs, notes."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gpuscope.base.settings import Settings
from gpuscope.cli.output import printable
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
    from gpuscope.judge.reports.receipt.job_receipt import JobReceipt

SETTINGS = ("time_zone",)
COMMON = ("time_zone",)
USAGE = "gpuscope job ID|[NAMESPACE/]POD [--since 30d] [options]"

EPILOG = """examples:
  gpuscope job 4711
  gpuscope job 4711_3 --json
  gpuscope job ml/train-0 --html > receipt.html
  sacctmgr -i update job where jobid=4711 set AdminComment="$(gpuscope job 4711 --jobstats)"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job", metavar="ID|[NAMESPACE/]POD", help="a job number, a task of an array (4711_3), or a pod"
    )
    add_range_arguments(parser, "30d", "how far back to look for it")
    add_server_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--html", action="store_true", help="one page, without scripts")
    form.add_argument(
        "--jobstats", action="store_true", help="jobstats' JS1: text, for AdminComment and reportseff"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.judge.reports.receipt.receipt_text import jobstats_summary, receipt_lines, receipt_page
    from gpuscope.serve.reports.report_answers import job_answer

    receipt = _receipt(args, settings)
    warn_if_simulated(args)
    if args.json:
        print(json.dumps(job_answer(receipt), indent=2))
    elif args.html:
        print(receipt_page(receipt), end="")
    elif args.jobstats:
        print(jobstats_summary(receipt))
    else:
        print("\n".join(receipt_lines(receipt, printable)))
    return 0


def _receipt(args: argparse.Namespace, settings: Settings) -> JobReceipt:
    from gpuscope.history.engines.http_connection import connect, run_with
    from gpuscope.history.engines.http_engine import HttpEngine
    from gpuscope.judge.reports.receipt.job_question import parse_job
    from gpuscope.judge.reports.receipt.receipt_reader import read_receipt

    asked = asked_range(args, settings)
    question = parse_job(args.job, asked.start_ms, asked.end_ms)

    async def read(connection: EngineConnection) -> JobReceipt:
        return await read_receipt(HttpEngine(connection), question)

    with explained_errors():
        return run_with(connect(args.server, origin="--server", token=token_of(args)), read)
