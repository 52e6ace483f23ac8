"""Show what is wrong on the GPUs of a running gpuscope server, or what went wrong in a time range.

Now: most severe first, with where, what, who can act, since when, and the next step. With --since: most
expensive first, with the cost in GPU-hours and, with --rate, in money; small ones are added up by kind. --json
prints the server's answer as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from textwrap import wrap
from typing import Any, Final
from urllib.parse import urlencode

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_duration
from gpuscope.base.settings import Settings
from gpuscope.base.time_text import local_text
from gpuscope.cli.output import BOLD, DIM, RED, YELLOW, duration_text, fit_lines, paint, printable, wants_colour
from gpuscope.cli.server_client import (
    add_range_arguments,
    add_server_arguments,
    asked_range,
    expected_form,
    read_json,
    token_of,
    warn_if_simulated,
)

# The text of findings over a time range, 80 columns wide: cost, what, who, how long, next step, evidence.
#
# Input: the answer of `/api/findings?since=`, from a server that may be any program; names in it are hostile.

WIDTH: Final = 80
_COST_INDENT: Final = 12
MAX_NAMED: Final = 4
MAX_EVIDENCE: Final = 10_000


def past_lines(
    answer: Mapping[str, Any], colour: bool, zone: tzinfo | None = UTC, evidence_of: str = ""
) -> Iterator[str]:
    """With `evidence_of`, the address of the server, also query and link of each finding."""
    has_rates = "rate" in answer
    yield _headline(answer, zone)
    yield ""
    for finding in _objects(answer, "findings"):
        yield from _finding_lines(finding, has_rates, colour)
        if evidence_of:
            yield from _evidence_lines(finding, evidence_of)
        yield ""
    folded = list(_objects(answer, "folded"))
    if folded:
        yield "smaller ones"
        for group in folded:
            cost = _cost_text(group, has_rates)
            kind = printable(str(group.get("kind", "")), 40)
            yield f"{cost:>{_COST_INDENT - 2}}  {_whole(group.get('count'))} × {kind}"
        yield ""
    yield from _summary(answer, has_rates)


def _headline(answer: Mapping[str, Any], zone: tzinfo | None) -> str:
    ends = [_number(answer.get(name)) for name in ("since", "until")]
    span = " to ".join("?" if at is None else local_text(math.floor(at), zone) for at in ends)
    gpus = _whole(_object(answer, "coverage").get("gpus"))
    return f"findings, {span}, {gpus} GPUs"


def _finding_lines(finding: Mapping[str, Any], has_rates: bool, colour: bool) -> Iterator[str]:
    cost = _cost_text(finding, has_rates)
    why = printable(str(finding.get("why", "")), MAX_TEXT)
    pad = " " * _COST_INDENT
    first, *rest = _wrap(why, WIDTH - _COST_INDENT) or [""]
    yield paint(f"{cost:>{_COST_INDENT - 2}}", BOLD, colour) + f"  {first}"
    where = _where(finding, has_rates=has_rates)
    for line in (*rest, *_wrap(where, WIDTH - _COST_INDENT)):
        yield pad + line
    for line in _wrap("→ " + printable(str(finding.get("next", "")), MAX_TEXT), WIDTH - _COST_INDENT):
        yield pad + paint(line, DIM, colour)


def _evidence_lines(finding: Mapping[str, Any], server: str) -> Iterator[str]:
    """On one line each, to be copied."""
    yield " " * _COST_INDENT + printable(str(finding.get("evidence", "")), MAX_EVIDENCE)
    link = finding.get("link")
    if isinstance(link, str) and link.startswith("./"):
        yield " " * _COST_INDENT + printable(server.rstrip("/") + link[1:], MAX_EVIDENCE)


def _where(finding: Mapping[str, Any], *, has_rates: bool) -> str:
    """With rates the first column is money, and the GPU-hours are here."""
    hours, times = _number(finding.get("hours")), finding.get("times")
    has_price = has_rates and _number(finding.get("cost")) is not None
    parts = [_hours(_number(finding.get("cost_gpu_hours")))] if has_price else []
    nodes = [printable(str(node), 60) for node in finding.get("nodes") or ()]
    if nodes:
        more = f" and {len(nodes) - MAX_NAMED} more" if nodes[MAX_NAMED:] else ""
        parts.append(", ".join(nodes[:MAX_NAMED]) + more)
    jobs = [printable(str(job), 20) for job in finding.get("jobs") or ()]
    if jobs:
        parts.append(f"jobs {', '.join(jobs)}" if len(jobs) > 1 else f"job {jobs[0]}")
    if hours is not None:
        parts.append(duration_text(3600 * hours))
    if isinstance(times, int) and times > 1:
        parts.append(f"{times} times")
    if finding.get("until") is None:
        parts.append("still so")
    return "; ".join(parts)


def _summary(answer: Mapping[str, Any], has_rates: bool) -> Iterator[str]:
    coverage = _object(answer, "coverage")
    lost, known = _number(answer.get("cost_gpu_hours")), _number(coverage.get("known_gpu_hours"))
    text = f"cost of all findings: {_hours(lost)} of {_hours(known)} known"
    if lost is not None and known:
        text += f", {100 * lost / known:.0f} %"
    cost = _number(answer.get("cost"))
    if has_rates and cost is not None:
        text += f"; {cost:,.2f} at {printable(str(answer['rate']), 60)} per GPU-hour"
    yield from _wrap(text, WIDTH)
    for model in answer.get("unpriced_models") or ():
        yield from _wrap(f"no rate for model {printable(str(model), 60)}: shown in hours", WIDTH)
    for sentence in coverage.get("missing") or ():
        yield from _wrap(f"missing: {printable(str(sentence), MAX_TEXT)}", WIDTH)


def _cost_text(one: Mapping[str, Any], has_rates: bool) -> str:
    cost, gpu_hours = _number(one.get("cost")), _number(one.get("cost_gpu_hours"))
    if has_rates and cost is not None:
        return f"{cost:,.2f}"
    return "–" if gpu_hours is None else f"{gpu_hours:,.1f} h"


def _hours(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f} GPU-hours"


def _whole(value: object) -> str:
    return str(value) if isinstance(value, int) else "?"


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or not abs(value) < sys.float_info.max:
        return None
    return float(value)


def _object(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _objects(answer: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    found = answer.get(name)
    yield from (finding for finding in (found if isinstance(found, list) else ()) if isinstance(finding, dict))


def _wrap(text: str, width: int) -> list[str]:
    """Names such as gpuscope-agent stay whole, so that they can be copied."""
    return wrap(text, width, break_on_hyphens=False)


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
    if not isinstance(found, list) or not all(isinstance(finding, dict) for finding in found):
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
    kinds = ", ".join(printable(str(finding["kind"]), 40) for finding in not_known[:MAX_KINDS])
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
