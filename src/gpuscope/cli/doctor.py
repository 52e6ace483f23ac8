"""Check this machine: what works, what does not, why, and the command that fixes it.

With --server URL, check from here whether that server can be reached and has GPU data, instead of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS, EVERY_SETTING
from gpuscope.cli.output import DIM, GREEN, RED, YELLOW, paint, printable, wants_colour

if TYPE_CHECKING:
    from gpuscope.model.doctor_check import CheckResult

SETTINGS = EVERY_SETTING
COMMON = ("listen", "config", "rules", "alerting", *COLLECTING_SETTINGS)

LOG_LEVEL = "error"

EPILOG = "Exit code 0 if no problem was found, else 1."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--server", metavar="URL", default="", help="check this server instead of this machine")
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default="",
        help="API token for --server; better in GPUSCOPE_TOKEN than here",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.model.doctor_check import Verdict

    is_loadable = False
    if args.server:
        results = _examine_server(args)
    else:
        results, is_loadable = _examine_machine(settings)
    has_problem = any(result.verdict is Verdict.BAD for result in results)
    if args.json:
        print(
            json.dumps([{"verdict": r.verdict.value, "what": r.what, "fix": r.fix} for r in results], indent=2)
        )
        return 1 if has_problem else 0
    _print_results(results)
    if not has_problem and is_loadable:
        hint = "last step: `gpuscope load` loads the GPUs and compares what is measured"
        print(paint(hint, DIM, wants_colour()))
    return 1 if has_problem else 0


def _examine_machine(settings: Settings) -> tuple[list[CheckResult], bool]:
    """The results, and whether there are real GPUs, which could be loaded."""
    from gpuscope.cli.wiring import run_agent as wiring
    from gpuscope.model.doctor_check import DoctorContext
    from gpuscope.serve.doctor import examine

    snapshot = wiring.read_once(wiring.CollectorThreads(wiring.build_collector(settings, ("native",))))
    results = list(examine(DoctorContext(settings, snapshot, environment=dict(os.environ))))
    return results, bool(snapshot.devices) and not snapshot.simulated


def _examine_server(args: argparse.Namespace) -> list[CheckResult]:
    from gpuscope.model.doctor_check import Verdict
    from gpuscope.serve.doctor.server_reachability import check_data, check_server, parse_server_url

    url = parse_server_url(args.server, args.token or os.environ.get("GPUSCOPE_TOKEN", ""))
    results = list(check_server(url))
    if all(result.verdict is not Verdict.BAD for result in results):
        results += check_data(url)
    return results


def _print_results(results: Sequence[CheckResult]) -> None:
    from gpuscope.model.doctor_check import Verdict

    colours = {Verdict.GOOD: GREEN, Verdict.NOTE: YELLOW, Verdict.BAD: RED}
    colour = wants_colour()
    for result in results:
        mark = paint(f"{result.verdict.value:>7}", colours[result.verdict], colour)
        print(f"{mark}  {printable(result.what, 300)}")
        if result.fix:
            print(paint(f"         → {printable(result.fix, 300)}", DIM, colour))
