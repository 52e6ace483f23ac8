"""Show what is wrong on the GPUs of a running gpuscope server, most severe first.

Each finding says where, what, who can act, since when, and the next step. --json prints the answer of
/api/findings as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from gpuscope.cli.server_client import add_server_arguments, read_json, token_of
from gpuscope.cli.terminal import BOLD, DIM, RED, YELLOW, duration_text, paint, printable, wants_colour
from gpuscope.errors import GpuscopeError
from gpuscope.settings import Settings

SETTINGS = ()
EPILOG = "Exit code 0 without findings, 1 with some, 4 if the server does not answer."
MAX_TEXT = 300
_COLOURS = {"critical": RED, "warning": YELLOW}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def run(args: argparse.Namespace, settings: Settings) -> int:
    answer = read_json(args.server, "/api/findings", token=token_of(args))
    found = answer.get("findings") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise GpuscopeError(f"{args.server}: /api/findings has no list of findings; is it a gpuscope server?")
    if args.json:
        print(json.dumps(answer, indent=2))
    else:
        for finding in found:
            _print(finding, time.time(), wants_colour())
        if not found:
            print("no findings")
    return 1 if found else 0


def _print(finding: dict[str, Any], now: float, colour: bool) -> None:
    severity = str(finding.get("severity", ""))
    mark = paint(f"{printable(severity, 8):>8}", _COLOURS.get(severity, DIM), colour)
    node = paint(printable(str(finding.get("node", "")), 60), BOLD, colour)
    since = finding.get("since")
    lasted = f" ({duration_text(now - since)})" if isinstance(since, int | float) else ""
    print(f"{mark}  {node}  {printable(str(finding.get('why', '')), MAX_TEXT)}{lasted}")
    print(paint(f"          → {printable(str(finding.get('next', '')), MAX_TEXT)}", DIM, colour))
