"""Check this machine: what works, what does not, why, and the command that fixes it.

With --server URL, check from here whether that server can be reached and used, instead of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.cli import COLLECTING_SETTINGS, EVERY_SETTING
from gpuscope.cli.terminal import DIM, GREEN, RED, YELLOW, paint, printable, wants_colour
from gpuscope.settings import Settings

if TYPE_CHECKING:
    from gpuscope.doctor import CheckResult

SETTINGS = EVERY_SETTING
COMMON = ("listen", *COLLECTING_SETTINGS)

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
    from gpuscope.doctor import Verdict

    findings = _examine_server(args) if args.server else _examine_machine(settings)
    if args.json:
        print(
            json.dumps([{"verdict": f.verdict.value, "what": f.what, "fix": f.fix} for f in findings], indent=2)
        )
    else:
        _print_findings(findings)
    return 1 if any(finding.verdict is Verdict.BAD for finding in findings) else 0


def _examine_machine(settings: Settings) -> list[CheckResult]:
    from gpuscope.doctor import DoctorContext, examine
    from gpuscope.wiring import run_agent as wiring

    snapshot = wiring.read_once(wiring.CollectorThreads(wiring.build_collector(settings, ("native",))))
    return list(examine(DoctorContext(settings, snapshot, environment=dict(os.environ))))


def _examine_server(args: argparse.Namespace) -> list[CheckResult]:
    from gpuscope.doctor.server_reachability import check_server, parse_server_url

    return list(check_server(parse_server_url(args.server, args.token or os.environ.get("GPUSCOPE_TOKEN", ""))))


def _print_findings(findings: Sequence[CheckResult]) -> None:
    from gpuscope.doctor import Verdict

    colours = {Verdict.GOOD: GREEN, Verdict.NOTE: YELLOW, Verdict.BAD: RED}
    colour = wants_colour()
    for finding in findings:
        mark = paint(f"{finding.verdict.value:>7}", colours[finding.verdict], colour)
        print(f"{mark}  {printable(finding.what, 300)}")
        if finding.fix:
            print(paint(f"         → {printable(finding.fix, 300)}", DIM, colour))
