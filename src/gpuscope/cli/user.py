"""Who may log in to `up` and `server` from outside this machine, and API tokens for programs.

A running server sees each change at once. Passwords are asked for, or read from standard input where that is no
terminal; they are never arguments, which every user of the machine could see. A token is shown once.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuscope.cli import EVERY_SETTING
from gpuscope.errors import UsageError
from gpuscope.settings import Settings, home_path

if TYPE_CHECKING:
    from gpuscope.server.login.user_file import UserFile

SETTINGS = EVERY_SETTING
COMMON = ("data",)
USAGE = "gpuscope user add|passwd|remove|token|revoke|list [NAME] [options]"

EPILOG = """examples:
  gpuscope user add ann                    asks for her password
  gpuscope user passwd ann                 a new password; ends her sessions
  gpuscope user remove ann
  gpuscope user token grafana              an API token that reads, for `Authorization: Bearer …`
  gpuscope user token node7 --write        one that sends samples by remote write, and nothing else
  gpuscope user revoke grafana             ends a token
  gpuscope user list --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=tuple(ACTIONS), help="what to do")
    parser.add_argument("name", nargs="?", default="", help="the user's or the token's name")
    parser.add_argument(
        "--write", action="store_true", help="the token sends samples by remote write and does nothing else"
    )
    parser.add_argument("--json", action="store_true", help="list as JSON")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.server.login.user_file import UserFile

    if args.write and args.action != "token":
        raise UsageError(f"--write: says what a token may do; `{args.action}` has none")
    if args.action != "list" and not args.name:
        raise UsageError(f"gpuscope user {args.action}: whom? give a name")
    try:
        ACTIONS[args.action](UserFile(home_path(settings.data, "data")), args)
    except OSError as error:
        raise UsageError(f"--data {settings.data}: {error.strerror}; is it the server's folder?") from None
    return 0


def _add(users: UserFile, args: argparse.Namespace) -> None:
    from gpuscope.server.login.user_file import UserError, clean_name

    if clean_name(args.name) in users.names():  # before the password is asked for
        raise UserError(f"user {args.name!r} exists; `gpuscope user passwd {args.name}` gives a new password")
    users.add(args.name, _ask_password(args.name))
    print(f"{args.name} may log in now")


def _passwd(users: UserFile, args: argparse.Namespace) -> None:
    users.set_password(args.name, _ask_password(args.name))
    print(f"{args.name} has a new password; older sessions have ended")


def _remove(users: UserFile, args: argparse.Namespace) -> None:
    users.remove(args.name)
    print(f"{args.name} is removed; their sessions have ended")


def _token(users: UserFile, args: argparse.Namespace) -> None:
    token = users.add_token(args.name, writes=args.write)
    print(token)
    print("it is shown only now; send it as `Authorization: Bearer …`", file=sys.stderr)


def _revoke(users: UserFile, args: argparse.Namespace) -> None:
    users.revoke_token(args.name)
    print(f"token {args.name} revoked")


def _list(users: UserFile, args: argparse.Namespace) -> None:
    rows = [{"kind": "user", "name": name, "created": _day(at)} for name, at in users.names().items()]
    rows += [
        {"kind": "write token" if one.writes else "token", "name": one.name, "created": _day(one.created_at)}
        for one in users.tokens()
    ]
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        print("nobody yet: `gpuscope user add NAME`", file=sys.stderr)
    for row in rows:
        print(f"{row['name']:<24} {row['kind']:<14} {row['created']}")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _ask_password(name: str) -> str:
    from gpuscope.server.login.user_file import UserError

    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass(f"password for {name}: ")
    if getpass.getpass("again: ") != password:
        raise UserError("the two passwords differ; nothing was changed")
    return password


ACTIONS: dict[str, Callable[[UserFile, argparse.Namespace], None]] = {
    "add": _add,
    "passwd": _passwd,
    "remove": _remove,
    "list": _list,
    "token": _token,
    "revoke": _revoke,
}
