"""List the alerts of a server, and the channels through which it cannot send them.

Works with any Alertmanager too. The exit code is 1 if an alert is active: neither silenced nor inhibited.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from gpuscope.cli.server_client import add_server_arguments, read_json, token_of
from gpuscope.cli.terminal import BOLD, RED, YELLOW, paint, printable, render_table, wants_colour
from gpuscope.errors import GpuscopeError
from gpuscope.settings import Settings

SETTINGS = ()
USAGE = "gpuscope alerts [MATCHER…] [options]"
EPILOG = """examples:
  gpuscope alerts                                   active alerts
  gpuscope alerts --all severity=critical           silenced and inhibited ones too
  gpuscope alerts --json --server http://alertmanager:9093
"""
_COLOURS = {"critical": RED, "warning": YELLOW}
_HIDDEN = frozenset(("alertname", "severity"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matchers", nargs="*", metavar="MATCHER", help='labels to look for: node=n3, gpu=~"0|1"'
    )
    parser.add_argument("--all", action="store_true", help="silenced and inhibited alerts too")
    parser.add_argument("--json", action="store_true", help="the answer of Alertmanager's API")
    add_server_arguments(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    parameters = [("filter", text) for text in args.matchers]
    if not args.all:
        parameters += [("silenced", "false"), ("inhibited", "false")]
    alerts = read_json(args.server, f"/api/v2/alerts?{urlencode(parameters)}", token=token_of(args))
    if args.json:
        print(json.dumps(alerts, indent=2))
    else:
        _print(alerts, args.all, wants_colour())
        _warn_of_channels(args)
    return 1 if any(one["status"]["state"] == "active" for one in alerts) else 0


def _print(alerts: Sequence[Mapping[str, Any]], with_state: bool, colour: bool) -> None:
    if not alerts:
        print("no alerts" if with_state else "no active alerts")
        return
    rows = []
    for one in sorted(alerts, key=lambda one: str(one["startsAt"])):
        labels = one["labels"]
        severity = printable(labels.get("severity", ""), 10)
        row = [printable(labels.get("alertname", ""), 40), severity, _since(one["startsAt"])]
        if with_state:
            row.append(printable(one["status"]["state"], 12))
        row.append(_rest(labels))
        rows.append(row)
    head = ["ALERT", "SEVERITY", "SINCE", *(["STATE"] if with_state else []), "LABELS"]
    lines = render_table(head, rows)
    print(paint(lines[0], BOLD, colour))
    for row, line in zip(rows, lines[1:], strict=True):
        print(paint(line, _COLOURS[row[1]], colour) if row[1] in _COLOURS else line)


def _since(text: object) -> str:
    return printable(str(text)[:19].replace("T", " "), 19)


def _rest(labels: Mapping[str, str]) -> str:
    pairs = (f"{name}={value}" for name, value in sorted(labels.items()) if name not in _HIDDEN)
    return printable(" ".join(pairs), 120)


def _warn_of_channels(args: argparse.Namespace) -> None:
    """What a user of this command may not know: that nobody was told."""
    try:
        status = read_json(args.server, "/api/notify", token=token_of(args))
    except GpuscopeError:  # an Alertmanager does not have it
        return
    for channel in status["channels"]:
        if channel["up"] is False:
            name = printable(channel["channel"])
            reason = printable(channel["last_error"])
            print(
                f"gpuscope: channel {name} fails since {_since(channel['failing_since'])}: {reason}",
                file=sys.stderr,
            )
    if status["reload_error"]:
        print(
            f"gpuscope: the alerting file was not reloaded: {printable(status['reload_error'])}",
            file=sys.stderr,
        )
