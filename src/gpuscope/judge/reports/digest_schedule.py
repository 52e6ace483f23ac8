"""Which usage report is mailed next: one for each day, week or month, due at 06:00 of the day after it.

A period is named by the day after its end, in the calendar of a time zone: an instant would move when the
clocks or the zone change, and its report would be mailed again. The days are kept, so that neither a restart
nor a clock that goes back repeats a report.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

from gpuscope.base.time_text import from_local, start_of_day, to_local

HOUR: Final = 6
MAX_LATE: Final = 7
"""Reports that are sent late, after a downtime or while the mail server did not answer: the newest."""


def last_due(now: float, every: str, zone: tzinfo | None) -> date:
    """The day after the last period whose report is due. A week begins on Monday."""
    today = to_local(now, zone).date()
    due = period_end(today, every)
    if from_local(datetime.combine(due, time(HOUR)), zone) > now:
        due = period_end(due - timedelta(1), every)
    return due


def next_digest(now: float, every: str, zone: tzinfo | None, sent: Collection[date]) -> date | None:
    """The oldest report that is due and not sent; None if there is none, or if the clock is before all sent."""
    due = last_due(now, every, zone)
    waiting: list[date] = []
    while due not in sent and len(waiting) < MAX_LATE and any(day < due for day in sent):
        waiting.append(due)
        due = period_end(due - timedelta(1), every)
    return waiting[-1] if waiting else None


def digest_range(due: date, every: str, zone: tzinfo | None) -> tuple[float, float]:
    """The day, week or month before, from midnight to midnight, in seconds since the epoch."""
    return start_of_day(period_end(due - timedelta(1), every), zone), start_of_day(due, zone)


def period_end(day: date, every: str) -> date:
    """The last day on which a period ended, at its beginning; `day` may be it."""
    if every == "week":
        return day - timedelta(day.weekday())
    return day.replace(day=1) if every == "month" else day
