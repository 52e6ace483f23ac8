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

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_duration
from gpuscope.base.settings import Settings
from gpuscope.cli.findings_text import past_lines
from gpuscope.cli.output import BOLD, DIM, RED, YELLOW, duration_text, fit_lines, paint, printable, wants_colour
from gpuscope.cli.range_arguments import add_range_arguments, asked_range
from gpuscope.cli.server_client import (
    add_server_arguments,
    expected_form,
    read_json,
    token_of,
    warn_if_simulated,
)

SETTINGS = ("time_zone",)
COMMON = ("time_zone",)
EPILOG = """examples:
  gpuscope findings
  gpuscope findings --since 7d --rate H100=2.5,*=1
  gpuscope findings --since 2026-10-01 --until 2026-11-01 --time-zone Europe/Berlin

Exit code 0 without findings, 1 with some, 4 if the server does not answer."""
MAX_TEXT = 300
MAX_KINDS = 8
_INDENT = 10
SEVERITIES = ("critical", "warning", "info")
_COLOURS = {"critical": RED, "warning": YELLOW}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_range_arguments(parser, None, "the findings of a range, from then on")
    parser.add_argument("--rate", metavar="2.5", help="with --since: price of a GPU-hour, also by model")
    parser.add_argument("--all", action="store_true", help="with --since: every finding, also small ones")
    parser.add_argument("--evidence", action="store_true", help="with --since: query and link of each finding")
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def run(args: argparse.Namespace, settings: Settings) -> int:
    answer = read_json(args.server, _path(args, settings), token=token_of(args))
    found = answer.get("findings") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise GpuscopeError(f"{args.server}: /api/findings has no list of findings; is it a gpuscope server?")
    warn_if_simulated(args)
    with expected_form(args.server, "gpuscope"):
        if args.json:
            print(json.dumps(answer, indent=2))
        elif args.since:
            evidence_of = args.server if args.evidence else ""
            print("\n".join(past_lines(answer, wants_colour(), settings.time_zone, evidence_of)))
        else:
            for finding in sorted(found, key=_most_severe_first):
                _print(finding, time.time(), wants_colour())
            for line in _not_known_lines(answer.get("not_known")):
                print(line)
            if not found and not answer.get("not_known"):
                print("no findings")
    return 1 if found else 0


def _not_known_lines(not_known: Any) -> list[str]:
    """One sentence: the kinds that the server cannot judge now, and the first reason."""
    if not isinstance(not_known, list) or not not_known:
        return []
    kinds = ", ".join(printable(str(one["kind"]), 40) for one in not_known[:MAX_KINDS])
    more = f" and {len(not_known) - MAX_KINDS} more" if len(not_known) > MAX_KINDS else ""
    reason = printable(str(not_known[0]["reason"]), MAX_TEXT)
    return fit_lines(f"not known now: {kinds}{more}: {reason}", 0)


def _path(args: argparse.Namespace, settings: Settings) -> str:
    if not args.since:
        for name in ("until", "rate", "all", "evidence"):
            if getattr(args, name):
                raise UsageError(f"--{name} needs --since: for example --since 7d")
        return "/api/findings"
    asked = asked_range(args, settings)
    since = _as_sent(args.since, asked.start_ms)
    until = _as_sent(args.until, asked.end_ms) if args.until else ""
    fields = {"since": since, "until": until, "rate": args.rate, "all": "1" if args.all else ""}
    return "/api/findings?" + urlencode({name: value for name, value in fields.items() if value})


def _as_sent(text: str, at_ms: int) -> str:
    """A duration counts from the server's clock; dates are those of this command's time zone."""
    try:
        parse_duration(text)
    except ValueError:
        return f"{at_ms / 1000:.3f}"
    return text


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
