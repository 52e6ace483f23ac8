"""What a shipped alert means: the facts of `gpuscope explain alert`, and of the page behind `runbook_url`."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final

from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.source_steps import SOURCE_STEPS
from gpuscope.judge.rules.shipped.shipped_rule import WATCHDOG
from gpuscope.model.vendor import catalogues

Fact = tuple[str, str]
"""Heading and text."""

EXPLAINED: Final[dict[str, Check]] = {check.alert: check for check in (*CHECKS.values(), WATCHDOG)}
"""Checks by the name of their alert."""


def alert_facts(check: Check) -> list[Fact]:
    return list(_facts(check))


def _facts(check: Check) -> Iterator[Fact]:
    yield "meaning", check.meaning
    yield "severity", "none" if check is WATCHDOG else str(check.severity)
    yield "next step", check.shown_step.replace("{gpu_list}", "GPU")
    for errors in catalogues():
        if any(check.kind == row.kind for row in errors.checks):
            explain = f"gpuscope explain {errors.key} N"
            yield f"by {errors.word}", f"{explain} has the meaning and the next step of each {errors.word}"
    if check.kind == "source_down":
        yield from ((f"source {source}", step) for source, step in SOURCE_STEPS.items())
    if check.for_seconds:
        yield "fires after", duration_text(round(check.for_seconds * 1000))
    if check.inhibited_by:
        yield "not sent while", ", ".join(CHECKS[kind].alert for kind in check.inhibited_by)
    yield "finding", check.kind
    yield "expression", check.promql


def alert_page(check: Check) -> str:
    """HTML without scripts and styles: the server's content security policy allows none inside a page."""
    rows = "\n".join(
        f"<dt>{html.escape(heading)}</dt><dd>{_value(heading, text)}</dd>" for heading, text in _facts(check)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(check.alert)} · gpuscope</title></head>\n<body>\n"
        f"<h1>{html.escape(check.alert)}</h1>\n<dl>\n{rows}\n</dl>\n"
        '<p><a href="../../#/alerts">Alerts</a> · <a href="../../#/findings">Findings</a></p>\n</body></html>\n'
    )


def _value(heading: str, text: str) -> str:
    escaped = html.escape(text)
    return f"<code>{escaped}</code>" if heading in ("expression", "finding") else escaped
