"""Single values of Slurm's text: times, durations, counts, memory, states, array task lists.

Slurm writes a value it does not have in many ways (`N/A`, `Unknown`, `None`, `NONE`, `(null)`): all are ABSENT.
Times are seconds since 1970, because every command runs with SLURM_TIME_FORMAT=%s; a local time is read too,
for servers and versions that ignore it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from gpuscope.model.readings import ABSENT, Maybe

MAX_TEXT_CHARACTERS = 256
MAX_VALUE = 1 << 63  # Slurm's numbers have 64 bits; a larger one is not a count or a time
MAX_ARRAY_TASKS = 4_000_001  # Slurm's own largest MaxArraySize
_NOTHING = frozenset({"", "N/A", "n/a", "NA", "Unknown", "None", "NONE", "(null)", "UNLIMITED", "INVALID"})
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", re.ASCII)
_DAYS_HOURS = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)", re.ASCII)
_TASK_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_SUFFIXES = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "powering_down", "%": "power_down",
    "$": "maint", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
_FLAG_NAMES = {"maintenance": "maint"}  # StateComplete and slurmrestd write out what StateLong shortens
_LONG_STATES = {  # states that `sinfo` shows in place of a base state and a flag
    "drained": ("idle", "drain"), "draining": ("allocated", "drain"), "drain": ("idle", "drain"),
    "maint": ("idle", "maint"), "reserved": ("idle", "reserved"), "completing": ("allocated", "completing"),
    "planned": ("idle", "planned"), "powering_up": ("idle", "powering_up"),
    "powering_down": ("idle", "powering_down"), "powered_down": ("idle", "powered_down"),
    "power_down": ("idle", "power_down"), "power_up": ("idle", "power_up"), "failing": ("allocated", "fail"),
    "fail": ("idle", "fail"), "blocked": ("idle", "blocked"), "reboot": ("idle", "reboot_requested"),
    "reboot_issued": ("idle", "reboot_issued"), "inval": ("idle", "invalid_reg"),
    "perfctrs": ("idle", "perfctrs"),
}  # fmt: skip


def parse_number(text: str) -> Maybe[float]:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return float("inf") if text == "inf" else ABSENT


def parse_integer(text: str) -> Maybe[int]:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else ABSENT


def parse_time(text: str) -> Maybe[float]:
    """Seconds since 1970, or a local time such as `2026-11-15T18:25:37`."""
    if text.isdecimal():
        seconds = parse_integer(text)
        return ABSENT if seconds is ABSENT or seconds == 0 else float(seconds)
    if text in _NOTHING:
        return ABSENT
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return ABSENT


def parse_duration_text(text: str) -> Maybe[float]:
    """Seconds of `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS`, `D-HH` or bare minutes."""
    match = _DURATION.fullmatch(text)
    if match is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    match = _DAYS_HOURS.fullmatch(text)
    if match is not None:
        return float((int(match[1]) * 24 + int(match[2])) * 3600)
    minutes_only = parse_integer(text)
    return ABSENT if minutes_only is ABSENT else 60.0 * minutes_only


def parse_mebibytes(text: str) -> Maybe[int]:
    """Bytes of a number of MiB, which is Slurm's unit for memory; `62.50G` has its own unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return ABSENT
    power = " KMGTP".index(match[2]) if match[2] else 2
    return round(float(match[1]) * (1 << 10 * power))


def count_array_tasks(expression: str) -> int:
    """How many tasks `0-9`, `1,3,5-99:2%4` stands for; 1 for what is not such an expression.

    `%4` is how many may run at once. A list that Slurm cut off (`1,3,...`) counts what is there.
    """
    listed = expression.partition("%")[0].strip("[]")
    count = 0
    for piece in listed.split(","):
        match = _TASK_RANGE.fullmatch(piece)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        count += max(0, (last - first) // max(1, step) + 1)
    return min(max(count, 1), MAX_ARRAY_TASKS)


def node_flags(words: Iterable[str]) -> frozenset[str]:
    """One name for each flag, in lower case, whoever wrote it."""
    return frozenset(_FLAG_NAMES.get(word, word) for word in words)


def parse_node_state(long_state: str, complete_state: str = "") -> tuple[str, frozenset[str]]:
    """(base state, flags) in lower case, from `sinfo`'s StateComplete (`mixed+drain`) or else from StateLong.

    A state that is not known is its own base state, so that a newer Slurm's states show under their names.
    """
    text = (complete_state or long_state).strip().lower()
    if "+" in text:
        base, *flags = [part for part in text.split("+") if part] or [text]  # "+" alone is its own state
        return base, node_flags(flags)
    found = set()
    while text and text[-1] in _SUFFIXES:
        found.add(_SUFFIXES[text[-1]])
        text = text[:-1]
    base, flag = _LONG_STATES.get(text, (text, ""))
    return base, frozenset(found | {flag} if flag else found)
