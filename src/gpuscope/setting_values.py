"""Parsers for the text of settings: durations, sizes, counts, addresses, lists, choices.

Each parser raises ValueError with the rest of a sentence: "not a duration". `parse_argument` prepends what the
parser does not know: "--since: '5x' is".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpuscope.errors import UsageError

T = TypeVar("T")
SOURCE_GROUP = "collection"
"""The heading of the command line's help under which the settings of a source stand."""

MAX_PORT = 65535
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def setting(
    default: T, parse: Callable[[str], Any], help_text: str, metavar: str = "", *, group: str = SOURCE_GROUP
) -> T:
    """A row of the settings table. `group` is a source's heading in the help; others are in `cli/parser.py`."""
    # The type is wrong on purpose, as in dataclasses.field(): the value is a Field only in the class body.
    row: T = field(
        default=default, metadata={"parse": parse, "help": help_text, "metavar": metavar, "group": group}
    )
    return row


def parse_argument(parser: Callable[[str], T], text: str, origin: str, example: str = "") -> T:
    """A wrong value is a UsageError: one sentence with the value, its origin (`--since`) and an example."""
    try:
        return parser(text)
    except ValueError as error:
        raise UsageError(f"{origin}: {text!r} is {error}{example and '; for example ' + example}") from None


def parse_duration(text: str) -> float:
    """Seconds from `1s`, `250ms`, `1m30s`, or a bare number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("not a duration") from None
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise ValueError("not a duration")
    return seconds


def parse_interval(text: str) -> float:
    """A sampling interval: at least 100 ms."""
    seconds = parse_duration(text)
    if seconds < 0.1:
        raise ValueError("shorter than 100ms; the driver updates its values no faster")
    return seconds


def parse_positive_duration(text: str) -> float:
    """A duration of at least one millisecond."""
    seconds = parse_duration(text)
    if seconds < 0.001:
        raise ValueError("not a duration of at least 1ms")
    return seconds


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT`, `[::1]:PORT` or a bare port; an empty host means all addresses."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= MAX_PORT:
        raise ValueError("not HOST:PORT with a port up to 65535, for example :9400 or 127.0.0.1:9400")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_count(text: str) -> int:
    """A non-negative integer."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("not a non-negative integer")
    return int(text)


def parse_counts(text: str) -> tuple[int, ...]:
    """Comma-separated non-negative integers."""
    return tuple(parse_count(word.strip()) for word in text.split(",") if word.strip())


def parse_positive(text: str) -> int:
    """A positive integer."""
    count = parse_count(text)
    if not 0 < count < 2**63:
        raise ValueError("not a positive integer")
    return count


def parse_number(text: str) -> float:
    """A number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("not a number of 0 or more")
    return number


def parse_bytes(text: str) -> int:
    """`512MiB`, `10GB` or a bare number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B?)", text, re.ASCII)
    if match is None:
        raise ValueError("not a size")
    base = 1000 if match[3] == "B" and match[2] else 1024
    return int(float(match[1]) * base ** " KMGT".index(match[2] or " "))


def parse_words(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def parse_http_url(text: str) -> str:
    """Empty, or an address that a page may link to: other schemes could run a script."""
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ValueError("not a URL like http://server:3000")
    return text.rstrip("/")


def parse_switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("not true or false")


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return text

    return parse
