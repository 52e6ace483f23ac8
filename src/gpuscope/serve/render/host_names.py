"""Checks host names from the command line: a name, an IPv4 or an IPv6 address, each at most once.

A list may be one of Slurm's: `gpu[01-16],login`.
They become targets and labels in YAML files, whose meaning a colon, a blank or a quote would change.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter

from gpuscope.agent.sources.slurm.hostlist import expand_hostlist
from gpuscope.base.errors import UsageError

_NAME = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?"
)
MAX_NAME_CHARACTERS = 253  # RFC 1035
MAX_NAMES = 10_000


def parse_host_names(text: str, flag: str) -> tuple[str, ...]:
    """`a,b,c` or a hostlist as names, in the given order."""
    try:
        names = [word.strip() for word in expand_hostlist(text, MAX_NAMES) if word.strip()]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; for example a,b,c or gpu[1-3]") from None
    if not names:
        raise UsageError(
            f"{flag}: {text!r} has no host name; give names separated by commas, for example a,b,c"
        )
    for name in names:
        check_host_name(name, flag)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{flag}: {twice} is given twice; name each host once")
    return tuple(names)


def check_host_name(name: str, flag: str) -> str:
    if _is_address(name) or (_NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARACTERS):
        return name
    hint = (
        "give the name without the port"
        if re.search(r":\d+$", name)
        else "letters, digits, - and . are allowed"
    )
    raise UsageError(f"{flag}: {name!r} is not a host name or address; {hint}")


def host_and_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
