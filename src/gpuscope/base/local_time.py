"""The calendar of a time zone: from local dates and times to seconds since the epoch, and back.

A zone of None is this machine's: its offset of today would be wrong in the other half of the year. A local time
that the clocks show twice is the first of the two; one that they skip counts on from before the change, so a
day without a midnight begins at the change.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, time, tzinfo


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
