"""The text of findings over a time range, 80 columns wide: cost, what, who, how long, next step, evidence.

Input: the answer of `/api/findings?since=`, from a server that may be any program; names in it are hostile.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from textwrap import wrap
from typing import Any, Final

from gpuscope.base.local_time import local_text
from gpuscope.cli.output import BOLD, DIM, duration_text, paint, printable

WIDTH: Final = 80
_INDENT: Final = 12
MAX_TEXT: Final = 300
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
        for one in folded:
            cost = _cost_text(one, has_rates)
            kind = printable(str(one.get("kind", "")), 40)
            yield f"{cost:>{_INDENT - 2}}  {_whole(one.get('count'))} × {kind}"
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
    pad = " " * _INDENT
    first, *rest = _wrap(why, WIDTH - _INDENT) or [""]
    yield paint(f"{cost:>{_INDENT - 2}}", BOLD, colour) + f"  {first}"
    where = _where(finding, has_rates=has_rates)
    for line in (*rest, *_wrap(where, WIDTH - _INDENT)):
        yield pad + line
    for line in _wrap("→ " + printable(str(finding.get("next", "")), MAX_TEXT), WIDTH - _INDENT):
        yield pad + paint(line, DIM, colour)


def _evidence_lines(finding: Mapping[str, Any], server: str) -> Iterator[str]:
    """On one line each, to be copied."""
    yield " " * _INDENT + printable(str(finding.get("evidence", "")), MAX_EVIDENCE)
    link = finding.get("link")
    if isinstance(link, str) and link.startswith("./"):
        yield " " * _INDENT + printable(server.rstrip("/") + link[1:], MAX_EVIDENCE)


def _where(finding: Mapping[str, Any], *, has_rates: bool) -> str:
    """With rates the first column is money, and the GPU-hours are here."""
    hours, times = _number(finding.get("hours")), finding.get("times")
    has_price = has_rates and _number(finding.get("cost")) is not None
    parts = [_hours(_number(finding.get("cost_gpu_hours")))] if has_price else []
    nodes = [printable(str(one), 60) for one in finding.get("nodes") or ()]
    if nodes:
        more = f" and {len(nodes) - MAX_NAMED} more" if nodes[MAX_NAMED:] else ""
        parts.append(", ".join(nodes[:MAX_NAMED]) + more)
    jobs = [printable(str(one), 20) for one in finding.get("jobs") or ()]
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
    yield from (one for one in (found if isinstance(found, list) else ()) if isinstance(one, dict))


def _wrap(text: str, width: int) -> list[str]:
    """Names such as gpuscope-agent stay whole, so that they can be copied."""
    return wrap(text, width, break_on_hyphens=False)
