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
    results = list(examine(DoctorContext(settings, snapshot, environment=dict(os.environ))))
    has_problem = any(result.verdict is Verdict.BAD for result in results)
    if args.json:
        print(
            json.dumps([{"verdict": r.verdict.value, "what": r.what, "fix": r.fix} for r in results], indent=2)
        )
        return 1 if has_problem else 0
    colours = {Verdict.GOOD: GREEN, Verdict.NOTE: YELLOW, Verdict.BAD: RED}
    colour = wants_colour()
    for result in results:
        mark = paint(f"{result.verdict.value:>7}", colours[result.verdict], colour)
        print(f"{mark}  {printable(result.what, 300)}")
        if result.fix:
            print(paint(f"         → {printable(result.fix, 300)}", DIM, colour))
    if not has_problem and snapshot.devices and not snapshot.simulated:
        print(paint("last step: `gpuscope load` loads the GPUs and compares what is measured", DIM, colour))
    return 1 if has_problem else 0
