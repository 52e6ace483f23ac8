"""When a usage report is mailed, and for which time: each day, week or month at 06:00 local time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

HOUR: Final = 6


def last_due(now: datetime, every: str) -> datetime:
    """The last time at which a digest was due; `now` has a time zone. A week begins on Monday."""
    due = now.replace(hour=HOUR, minute=0, second=0, microsecond=0)
    if due > now:
        due -= timedelta(days=1)
    if every == "week":
        due -= timedelta(days=due.weekday())
    elif every == "month":
        due = due.replace(day=1)
    return due


def digest_range(due: datetime, every: str) -> tuple[datetime, datetime]:
    """The day, week or month before, from midnight to midnight."""
    end = due.replace(hour=0)
    if every == "day":
        return end - timedelta(days=1), end
    if every == "week":
        return end - timedelta(days=7), end
    return (end - timedelta(days=1)).replace(day=1), end
