"""List the alerts of a server, and the channels through which it cannot send them.

Works with any Alertmanager too. The exit code is 1 if an alert is active: neither silenced nor inhibited. The
alert Watchdog, which always fires, does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.settings import Settings
from gpuscope.base.time_text import to_rfc3339
from gpuscope.cli.output import BOLD, RED, YELLOW, paint, printable, render_table, wants_colour
from gpuscope.cli.server_client import (
    add_server_arguments,
    expected_form,
    read_json,
    token_of,
    warn_if_simulated,
)

SETTINGS = ()
USAGE = "gpuscope alerts [MATCHER…] [options]"
EPILOG = """examples:
  gpuscope alerts                                   active alerts
  gpuscope alerts --all severity=critical           silenced and inhibited ones too
  gpuscope alerts --json --server http://alertmanager:9093
"""
WATCHDOG = "Watchdog"
"""It always fires, to show that alerts arrive."""
_COLOURS = {"critical": RED, "warning": YELLOW}
_HIDDEN = frozenset(("alertname", "severity"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matchers", nargs="*", metavar="MATCHER", help='labels to look for: node=n3, gpu=~"0|1"'
    )
    parser.add_argument("--all", action="store_true", help="silenced and inhibited alerts and Watchdog too")
    parser.add_argument("--json", action="store_true", help="the answer of Alertmanager's API")
    add_server_arguments(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.judge.notify.alert_matchers import parse_matcher

    for text in args.matchers:
        try:
            parse_matcher(text)
        except ValueError as error:
            raise UsageError(f"alerts: {text!r} is not a matcher such as node=n3: {error}") from None
    parameters = [("filter", text) for text in args.matchers]
    if not args.all:
        parameters += [("silenced", "false"), ("inhibited", "false")]
    alerts = read_json(args.server, f"/api/v2/alerts?{urlencode(parameters)}", token=token_of(args))
    with expected_form(args.server, "Alertmanager"):
        counted = [alert for alert in alerts if alert["labels"].get("alertname") != WATCHDOG]
        is_any_active = any(alert["status"]["state"] == "active" for alert in counted)
        lines = _lines(alerts if args.all else counted, args.all, wants_colour())
    warn_if_simulated(args)
    if args.json:
        print(json.dumps(alerts, indent=2))
    else:
        print("\n".join(lines))
        with expected_form(args.server, "gpuscope"):
            _warn_of_channels(args)
    return 1 if is_any_active else 0


def _lines(alerts: Sequence[Mapping[str, Any]], with_state: bool, colour: bool) -> list[str]:
    if not alerts:
        return ["no alerts" if with_state else "no active alerts"]
    rows = []
    for alert in sorted(alerts, key=_order):
        labels = alert["labels"]
        severity = printable(labels.get("severity", ""), 10)
        row = [printable(labels.get("alertname", ""), 40), severity, _since(alert["startsAt"])]
        if with_state:
            row.append(printable(alert["status"]["state"], 12))
        row.append(_rest(labels))
        rows.append(row)
    head = ["ALERT", "SEVERITY", "SINCE", *(["STATE"] if with_state else []), "LABELS"]
    lines = render_table(head, rows)
    painted = [
        paint(line, _COLOURS[row[1]], colour) if row[1] in _COLOURS else line
        for row, line in zip(rows, lines[1:], strict=True)
    ]
    return [paint(lines[0], BOLD, colour), *painted]


def _order(alert: Mapping[str, Any]) -> tuple[int, str]:
    """Critical ones first, then the oldest."""
    severities = [*_COLOURS]
    severity = alert["labels"].get("severity")
    return severities.index(severity) if severity in severities else len(severities), str(alert["startsAt"])


def _since(text: object) -> str:
    return printable(str(text)[:19].replace("T", " "), 19)


def _rest(labels: Mapping[str, str]) -> str:
    pairs = (f"{name}={value}" for name, value in sorted(labels.items()) if name not in _HIDDEN)
    return printable(" ".join(pairs), 120)


def _warn_of_channels(args: argparse.Namespace) -> None:
    """Warns on standard error about channels that fail: their alerts reached nobody."""
    try:
        status = read_json(args.server, "/api/notify", token=token_of(args))
    except GpuscopeError:  # an Alertmanager does not have it
        return
    for channel in status["channels"]:
        if channel["up"] is False:
            name = printable(channel["channel"])
            reason = printable(channel["last_error"])
            since = _since(to_rfc3339(channel["failing_since"]))
            print(
                f"gpuscope: channel {name} has failed since {since}: {reason}",
                file=sys.stderr,
            )
    if status["reload_error"]:
        print(
            f"gpuscope: the alerting file was not reloaded: {printable(status['reload_error'])}",
            file=sys.stderr,
        )
