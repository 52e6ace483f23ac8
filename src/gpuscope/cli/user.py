"""Manage the users and API tokens of `up` and `server`.

A running server sees each change at once. The command prompts for a password, or reads it from standard input
if that is not a terminal; a password is never an argument, which other users could see. A token is shown once.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_path
from gpuscope.cli import EVERY_SETTING

if TYPE_CHECKING:
    from gpuscope.serve.login.access_rules import ClientRole
    from gpuscope.serve.login.user_file import UserFile

SETTINGS = EVERY_SETTING
COMMON = ("data",)
USAGE = "gpuscope user add|passwd|role|remove|token|revoke|list [NAME] [options]"
ROLES = ("viewer", "editor", "admin")

EPILOG = """examples:
  gpuscope user add ann                    add a user; prompts for the password
  gpuscope user add bob --role viewer      a user who may only read; --role editor may silence alerts
  gpuscope user role bob --role editor     give a user another role
  gpuscope user passwd ann                 set a new password; ends the user's sessions
  gpuscope user remove ann
  gpuscope user token grafana              create a read-only API token, for `Authorization: Bearer …`
  gpuscope user token amtool --role editor create a token that may silence alerts too
  gpuscope user token node7 --node node7   create a token for remote write of this node's samples only
  gpuscope user token vmagent --write      create a token for remote write of any node's samples
  gpuscope user revoke grafana             revoke a token
  gpuscope user list --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=tuple(ACTIONS), metavar="|".join(ACTIONS), help="what to do")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the user or token")
    parser.add_argument("--write", action="store_true", help="create a token for remote write only")
    parser.add_argument(
        "--node", default="", metavar="NODE", help="bind a token for remote write to the samples of this node"
    )
    parser.add_argument(
        "--role", choices=ROLES, help="role of a user (default: admin) or of a token (default: viewer)"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.serve.login.user_file import UserFile

    for flag, is_given in (("--write", args.write), ("--node", args.node)):
        if is_given and args.action != "token":
            raise UsageError(f"{flag}: only for the action `token`, not for `{args.action}`")
    args.write = args.write or bool(args.node)
    if args.role and (args.action not in ("add", "role", "token") or args.write):
        raise UsageError(
            "--role: only for the actions `add`, `role` and `token`, and not with --write or --node"
        )
    if args.action == "role" and not args.role:
        raise UsageError(
            f"user role: give the new role, for example `gpuscope user role {args.name} --role editor`"
        )
    if args.action != "list" and not args.name:
        raise UsageError(
            f"user {args.action}: a name is required, for example `gpuscope user {args.action} ann`"
        )
    try:
        ACTIONS[args.action](UserFile(home_path(settings.data, "data")), args)
    except OSError as error:
        raise UsageError(f"--data {settings.data}: {error.strerror}; use the server's data folder") from None
    return 0


def _add(users: UserFile, args: argparse.Namespace) -> None:
    from gpuscope.serve.login.user_file import UserError, clean_name

    if clean_name(args.name) in users.names():  # before prompting for the password
        raise UserError(f"user {args.name!r} exists; `gpuscope user passwd {args.name}` sets a new password")
    role = _role(args, "admin")
    users.add(args.name, _read_password(args.name), role=role)
    print(f"user {args.name} added, with the role {role}")


def _change_role(users: UserFile, args: argparse.Namespace) -> None:
    users.set_role(args.name, _role(args, ""))
    print(f"{args.name} has the role {args.role}")


def _role(args: argparse.Namespace, default: str) -> ClientRole:
    from gpuscope.serve.login.access_rules import ClientRole

    return ClientRole(args.role or default)


def _passwd(users: UserFile, args: argparse.Namespace) -> None:
    users.set_password(args.name, _read_password(args.name))
    print(f"password of {args.name} changed; older sessions have ended")


def _remove(users: UserFile, args: argparse.Namespace) -> None:
    users.remove(args.name)
    print(f"user {args.name} removed; their sessions have ended")


def _token(users: UserFile, args: argparse.Namespace) -> None:
    token = users.add_token(args.name, writes=args.write, role=_role(args, "viewer"), node=args.node)
    print(token)
    print("the token is shown only once; send it as `Authorization: Bearer …`", file=sys.stderr)


def _revoke(users: UserFile, args: argparse.Namespace) -> None:
    users.revoke_token(args.name)
    print(f"token {args.name} revoked")


def _list(users: UserFile, args: argparse.Namespace) -> None:
    rows = [
        {"kind": "user", "name": name, "role": entry.role.value, "node": "", "created": _day(entry.created_at)}
        for name, entry in users.names().items()
    ]
    rows += [
        {
            "kind": "write token" if token.writes else "token",
            "name": token.name,
            "role": "" if token.writes else token.role.value,
            "node": token.node,
            "created": _day(token.created_at),
        }
        for token in users.tokens()
    ]
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        print("no users yet; add one with `gpuscope user add NAME`", file=sys.stderr)
    for row in rows:
        bound = f"  node {row['node']}" if row["node"] else ""
        print(f"{row['name']:<24} {row['kind']:<14} {row['role']:<8} {row['created']}{bound}")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _read_password(name: str) -> str:
    from gpuscope.serve.login.user_file import UserError

    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass(f"password for {name}: ")
    if getpass.getpass("again: ") != password:
        raise UserError("the two passwords differ; nothing was changed")
    return password


ACTIONS: dict[str, Callable[[UserFile, argparse.Namespace], None]] = {
    "add": _add,
    "passwd": _passwd,
    "role": _change_role,
    "remove": _remove,
    "list": _list,
    "token": _token,
    "revoke": _revoke,
}
