"""Times and durations as text: RFC 3339 as in Prometheus' API, calendar days of a time zone, and `1h30m`."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, date, datetime, time, tzinfo
from typing import Final

_HOUR_24: Final = re.compile(r"[^T ]*[T ]24")


def to_rfc3339(seconds: float, timespec: str = "auto") -> str:
    """UTC, with microseconds if they are not 0. `timespec` (`seconds`, `milliseconds`) fixes the precision.

    Raises ValueError for a time outside the years 1 to 9999.
    """
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError):
        raise ValueError(f"{seconds} is not a time") from None
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch. A time without a zone is UTC. Raises ValueError."""
    if _HOUR_24.match(text):  # Python takes it from 3.14 on, Prometheus does not
        raise ValueError(f"{text!r} has no hour 24")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


# The calendar of a time zone: from local dates and times to seconds since the epoch, and back.
#
# A zone of None is this machine's: its offset of today would be wrong in the other half of the year. A local
# time that the clocks show twice is the first of the two; one that they skip counts on from before the
# change, so a day without a midnight begins at the change.


def parse_time_zone(text: str) -> tzinfo | None:
    """`Europe/Berlin` or `UTC`; empty or `local` is this machine's. Raises ValueError."""
    if text in ("", "local"):
        return None
    if text == "UTC":
        return UTC
    try:
        # ZoneInfo refuses absolute paths and `..` itself.
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("not a time zone such as Europe/Berlin") from None


def to_local(seconds: float, zone: tzinfo | None) -> datetime:
    """With its offset. Raises ValueError for a time outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone(zone)
    except (OverflowError, OSError):
        raise ValueError(f"{seconds} is not a time") from None


def local_text(seconds: float, zone: tzinfo | None) -> str:
    """RFC 3339 with the zone's offset: 2026-10-01T00:00:00+02:00, in UTC 2026-09-30T22:00:00Z."""
    return to_local(seconds, zone).isoformat().replace("+00:00", "Z")


def zone_text(zone: tzinfo | None) -> str:
    return "local time" if zone is None else str(zone)


def from_local(moment: datetime, zone: tzinfo | None) -> float:
    """Seconds since the epoch of a local time without an offset."""
    return moment.replace(tzinfo=zone, fold=0).timestamp()


def is_skipped(moment: datetime, zone: tzinfo | None) -> bool:
    """Whether the clocks are put forward over this local time."""
    return to_local(from_local(moment, zone), zone).replace(tzinfo=None, fold=0) != moment.replace(fold=0)


def start_of_day(day: date, zone: tzinfo | None) -> float:
    return from_local(datetime.combine(day, time()), zone)


# Durations as Prometheus reads and writes them: `1m30s`, `1d`, `2w`.
#
# The only parser and the only formatter of this notation; settings, configuration files, rules, PromQL and
# the API use them. Units stand in the order y, w, d, h, m, s, ms, each once, with whole numbers; a year has
# 365 days. What differs between those places, such as a bare number of seconds, is decided there. The unit is
# milliseconds, Prometheus' resolution.

MAX_MILLISECONDS = (1 << 63) // 1_000_000
"""Go's durations are nanoseconds in 64 bits: 292 years."""

OUT_OF_RANGE = "duration out of range"
_UNITS = {
    "y": 31_536_000_000,
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,20}}){unit})?" for unit in _UNITS))
_FIRST_UNIT = re.compile(r"[0-9]+([^0-9]+)")
_EXACT_ONLY = ("y", "w")
"""Written only if nothing is left over: ten days are 10d, not 1w3d."""


def parse_prometheus_duration(text: str) -> int:
    """Milliseconds; 0 needs no unit. The texts of a ValueError are Prometheus' own."""
    if text == "0":
        return 0
    if not text:
        raise ValueError("empty duration string")
    match = _DURATION.fullmatch(text)
    if match is None:
        unit = _FIRST_UNIT.match(text)
        if unit and unit[1] not in _UNITS:
            raise ValueError(f'unknown unit "{unit[1]}" in duration "{text}"')
        raise ValueError(f'not a valid duration string: "{text}"')
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    milliseconds = sum(int(count) * size for count, size in parts if count)
    if milliseconds > MAX_MILLISECONDS:
        raise ValueError(OUT_OF_RANGE)
    return milliseconds


def duration_text(milliseconds: int) -> str:
    for unit in _EXACT_ONLY:
        if milliseconds and milliseconds % _UNITS[unit] == 0:
            return f"{milliseconds // _UNITS[unit]}{unit}"
    text = ""
    for unit, size in _UNITS.items():
        if unit not in _EXACT_ONLY:
            count, milliseconds = divmod(milliseconds, size)
            text += f"{count}{unit}" if count else ""
    return text or "0s"
