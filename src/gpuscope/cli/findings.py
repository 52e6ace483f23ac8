"""Show what is wrong on the GPUs of a running gpuscope server, or what went wrong in a time range.

Now: most severe first, with where, what, who can act, since when, and the next step. With --since: most
expensive first, with the cost in GPU-hours and, with --rate, in money; small ones are added up by kind. --json
prints the server's answer as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any
from urllib.parse import urlencode

from gpuscope.cli.findings_text import past_lines
from gpuscope.cli.server_client import (
    add_server_arguments,
    expected_form,
    read_json,
    token_of,
    warn_if_simulated,
)
from gpuscope.cli.terminal import (
    BOLD,
    DIM,
    RED,
    YELLOW,
    duration_text,
    fit_lines,
    paint,
    printable,
    wants_colour,
)
from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.settings import Settings

SETTINGS = ()
EPILOG = """examples:
  gpuscope findings
  gpuscope findings --since 7d --rate H100=2.5,*=1

Exit code 0 without findings, 1 with some, 4 if the server does not answer."""
MAX_TEXT = 300
_INDENT = 10
SEVERITIES = ("critical", "warning", "info")
_COLOURS = {"critical": RED, "warning": YELLOW}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="7d", help="the findings of a range that began this long ago")
    parser.add_argument("--until", metavar="1d", help="with --since: how long ago the range ended (now)")
    parser.add_argument("--rate", metavar="2.5", help="with --since: price of a GPU-hour, also by model")
    parser.add_argument("--all", action="store_true", help="with --since: every finding, also small ones")
    parser.add_argument("--evidence", action="store_true", help="with --since: query and link of each finding")
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def run(args: argparse.Namespace, settings: Settings) -> int:
    answer = read_json(args.server, _path(args), token=token_of(args))
    found = answer.get("findings") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise GpuscopeError(f"{args.server}: /api/findings has no list of findings; is it a gpuscope server?")
    warn_if_simulated(args)
    with expected_form(args.server, "gpuscope"):
        if args.json:
            print(json.dumps(answer, indent=2))
        elif args.since:
            print("\n".join(past_lines(answer, wants_colour(), args.server if args.evidence else "")))
        else:
            for finding in sorted(found, key=_most_severe_first):
                _print(finding, time.time(), wants_colour())
            if not found:
                print("no findings")
    return 1 if found else 0


def _path(args: argparse.Namespace) -> str:
    if not args.since:
        for name in ("until", "rate", "all", "evidence"):
            if getattr(args, name):
                raise UsageError(f"--{name} needs --since: for example --since 7d")
        return "/api/findings"
    fields = {"since": args.since, "until": args.until, "rate": args.rate, "all": "1" if args.all else ""}
    return "/api/findings?" + urlencode({name: value for name, value in fields.items() if value})


def _most_severe_first(finding: dict[str, Any]) -> int:
    severity = finding.get("severity")
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _print(finding: dict[str, Any], now: float, colour: bool) -> None:
    severity = str(finding.get("severity", ""))
    mark = paint(f"{printable(severity, 8):>8}", _COLOURS.get(severity, DIM), colour)
    node = printable(str(finding.get("node", "")), 60)
    since = finding.get("since")
    lasted = f" ({duration_text(now - since)})" if isinstance(since, int | float) else ""
    why, step = (printable(str(finding.get(name, "")), MAX_TEXT) for name in ("why", "next"))
    pad = " " * _INDENT
    first, *rest = fit_lines(f"{node}  {why}{lasted}", _INDENT)
    print(f"{mark}  {paint(node, BOLD, colour)}{first.removeprefix(node)}")
    for line in rest:
        print(pad + line)
    for line in fit_lines(f"→ {step}", _INDENT):
        print(pad + paint(line, DIM, colour))
