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

from gpuscope.base.errors import UsageError
from gpuscope.base.time_text import MAX_MILLISECONDS, OUT_OF_RANGE, parse_prometheus_duration

T = TypeVar("T")
SOURCE_GROUP = "collection"
"""The heading of the command line's help under which the settings of a source stand."""

MAX_PORT = 65535
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DECIMALS = re.compile(r"(\d+\.\d+)([a-z]+)", re.ASCII)


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
    """Seconds from Prometheus' `250ms`, `1m30s` or `1y`, from decimals such as `1.5h`, or a bare number of
    seconds."""
    try:
        if _NUMBER.fullmatch(text):
            seconds = float(text)
        elif decimals := _DECIMALS.fullmatch(text):
            seconds = float(decimals[1]) * parse_prometheus_duration(f"1{decimals[2]}") / 1000
        else:
            seconds = parse_prometheus_duration(text) / 1000
        if seconds * 1000 > MAX_MILLISECONDS:
            raise ValueError(OUT_OF_RANGE)
    except ValueError as error:
        raise ValueError("longer than 292 years" if str(error) == OUT_OF_RANGE else "not a duration") from None
    return seconds


def with_unit(parse: Callable[[str], float]) -> Callable[[str], float]:
    """For times that are usually hours or days: a bare number is an error, because 30 is meant to be 30d."""

    def parse_with_unit(text: str) -> float:
        if _NUMBER.fullmatch(text) and float(text):
            raise ValueError(f"a number without a unit ({text}d?)")
        return parse(text)

    return parse_with_unit


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
