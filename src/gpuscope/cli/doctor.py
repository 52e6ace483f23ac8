"""Check this machine: what works, what does not, why, and the command that fixes it."""

from __future__ import annotations

import argparse
import json
import os

from gpuscope.cli import COLLECTING_SETTINGS, EVERY_SETTING
from gpuscope.cli.terminal import DIM, GREEN, RED, YELLOW, paint, printable, wants_colour
from gpuscope.settings import Settings

SETTINGS = EVERY_SETTING
COMMON = ("listen", *COLLECTING_SETTINGS)

LOG_LEVEL = "error"

EPILOG = "Exit code 0 if no problem was found, else 1."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.doctor import DoctorContext, Verdict, examine
    from gpuscope.wiring import run_agent as wiring

    snapshot = wiring.read_once(wiring.CollectorThreads(wiring.build_collector(settings, ("native",))))
    findings = list(examine(DoctorContext(settings, snapshot, environment=dict(os.environ))))
    if args.json:
        print(
            json.dumps([{"verdict": f.verdict.value, "what": f.what, "fix": f.fix} for f in findings], indent=2)
        )
    else:
        colours = {Verdict.GOOD: GREEN, Verdict.NOTE: YELLOW, Verdict.BAD: RED}
        colour = wants_colour()
        for finding in findings:
            mark = paint(f"{finding.verdict.value:>7}", colours[finding.verdict], colour)
            print(f"{mark}  {printable(finding.what, 300)}")
            if finding.fix:
                print(paint(f"         → {printable(finding.fix, 300)}", DIM, colour))
    return 1 if any(finding.verdict is Verdict.BAD for finding in findings) else 0
