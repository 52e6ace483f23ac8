"""Silence alerts for a time: add, list and expire silences of a server, or of any Alertmanager."""

from __future__ import annotations

import argparse
import getpass
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_argument, parse_positive_duration, with_unit
from gpuscope.base.settings import Settings
from gpuscope.base.time_text import to_rfc3339
from gpuscope.cli.output import printable, render_table
from gpuscope.cli.server_client import add_server_arguments, expected_form, read_json, request_json, token_of

if TYPE_CHECKING:
    from gpuscope.judge.notify.alert_matchers import AlertMatcher

SETTINGS = ()
USAGE = "gpuscope silence add|list|expire [MATCHER… | ID…] [options]"
EPILOG = """examples:
  gpuscope silence add node=n3 --for 2h --comment "new power supply"
  gpuscope silence add alertname=GpuHot 'gpu=~"0|1"' --for 1d --comment "known"
  gpuscope silence list
  gpuscope silence expire 13db969f-0ea0-40b8-b51d-b731c5010945
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("add", "list", "expire"), metavar="add|list|expire", help="what to do"
    )
    parser.add_argument(
        "words", nargs="*", metavar="MATCHER|ID", help="matchers of add and list, ids of expire"
    )
    parser.add_argument("--for", dest="length", metavar="1h", default="1h", help="how long (1h)")
    parser.add_argument("--comment", metavar="TEXT", default="", help="reason, shown with the silence")
    parser.add_argument("--author", metavar="NAME", default="", help="author of the silence (default: you)")
    parser.add_argument("--all", action="store_true", help="list: expired silences too")
    parser.add_argument("--json", action="store_true", help="list: the answer of Alertmanager's API")
    add_server_arguments(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.action == "add":
        print(_add(args))
    elif args.action == "list":
        _list(args)
    else:
        if not args.words:
            raise UsageError("silence expire: give the id of a silence; `gpuscope silence list` shows them")
        _expire(args)
    return 0


def _expire(args: argparse.Namespace) -> None:
    """All ids are checked first, so that a mistyped one expires nothing."""
    silences = read_json(args.server, "/api/v2/silences", token=token_of(args))
    with expected_form(args.server, "Alertmanager"):
        known = {str(silence["id"]) for silence in silences}
    for silence_id in args.words:
        if silence_id not in known:
            raise UsageError(
                f"silence not found: {printable(silence_id)}; `gpuscope silence list --all` shows all ids"
            )
    for silence_id in args.words:
        path = f"/api/v2/silence/{quote(silence_id, safe='')}"
        request_json(args.server, "DELETE", path, token=token_of(args))


def _parse_matchers(words: Sequence[str], action: str) -> list[AlertMatcher]:
    from gpuscope.judge.notify.alert_matchers import parse_matcher

    found = []
    for text in words:
        try:
            found.append(parse_matcher(text))
        except ValueError as error:
            raise UsageError(f"silence {action}: {text!r} is not a matcher such as node=n3: {error}") from None
    return found


def _add(args: argparse.Namespace) -> str:
    if not args.words:
        raise UsageError("silence add: give at least one matcher, for example node=n3")
    if not args.comment:
        raise UsageError("silence add: give a reason with --comment")
    seconds = parse_argument(with_unit(parse_positive_duration), args.length, "--for", "2h")
    matchers = _parse_matchers(args.words, "add")
    if all(matcher.is_equal and matcher.matches_value("") for matcher in matchers):
        raise UsageError("silence add: these matchers would silence every alert; give one with a value")
    now = time.time()
    ends_at = to_rfc3339(now + seconds, "milliseconds")
    silence = {
        "matchers": [
            {
                "name": matcher.name,
                "value": matcher.value,
                "isRegex": matcher.is_regex,
                "isEqual": matcher.is_equal,
            }
            for matcher in matchers
        ],
        "startsAt": to_rfc3339(now, "milliseconds"),
        "endsAt": ends_at,
        "createdBy": args.author or getpass.getuser(),
        "comment": args.comment,
    }
    answer = request_json(args.server, "POST", "/api/v2/silences", silence, token=token_of(args))
    with expected_form(args.server, "Alertmanager"):
        return printable(str(answer["silenceID"]))


def _list(args: argparse.Namespace) -> None:
    _parse_matchers(args.words, "list")
    silences = read_json(
        args.server,
        f"/api/v2/silences?{urlencode([('filter', text) for text in args.words])}",
        token=token_of(args),
    )
    with expected_form(args.server, "Alertmanager"):
        if not args.all:
            silences = [silence for silence in silences if silence["status"]["state"] != "expired"]
        rows = [_row(silence) for silence in silences]
    if args.json:
        print(json.dumps(silences, indent=2))
    elif not silences:
        print("no silences")
    else:
        print("\n".join(render_table(("ID", "STATE", "ENDS", "AUTHOR", "MATCHERS", "COMMENT"), rows)))


def _row(silence: Mapping[str, Any]) -> Sequence[str]:
    return (
        printable(str(silence["id"]), 36),
        printable(str(silence["status"]["state"]), 8),
        printable(str(silence["endsAt"])[:19].replace("T", " "), 19),
        printable(str(silence["createdBy"]), 20),
        printable(" ".join(_matcher(matcher) for matcher in silence["matchers"]), 60),
        printable(str(silence["comment"]), 60),
    )


def _matcher(one: Mapping[str, Any]) -> str:
    operator = (
        ("=~" if one["isRegex"] else "=") if one.get("isEqual", True) else "!~" if one["isRegex"] else "!="
    )
    return f"{one['name']}{operator}{one['value']}"
