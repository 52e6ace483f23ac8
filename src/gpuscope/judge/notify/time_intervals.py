"""Named time intervals of an `alertmanager.yml`: when a route is muted, or when it is active.

Fields of one interval must all hold, entries of one field are alternatives. A field that is not given always
holds; an empty list, which has no alternative, never does. Times are [start, end) in minutes of the day in the
interval's own time zone, UTC if it has none.
"""

from __future__ import annotations

import calendar
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
)  # fmt: skip
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
Range = tuple[int, int]
"""First and last, both included."""
Ranges = tuple[Range, ...] | None


@dataclass(frozen=True, slots=True)
class TimeInterval:
    times: Ranges = None
    """Minutes of the day; the last is not included."""
    weekdays: Ranges = None
    """0 is Sunday."""
    days_of_month: Ranges = None
    """Negative ones count from the end of the month."""
    months: Ranges = None
    years: Ranges = None
    zone: tzinfo | None = UTC
    """None is the machine's own, with its changes between summer and winter time."""

    def contains(self, now: float) -> bool:
        moment = datetime.fromtimestamp(now, self.zone)
        minute = moment.hour * 60 + moment.minute
        return (
            (self.times is None or any(start <= minute < end for start, end in self.times))
            and _within(self.weekdays, moment.isoweekday() % 7)
            and (self.days_of_month is None or any(_has_day(days, moment) for days in self.days_of_month))
            and _within(self.months, moment.month)
            and _within(self.years, moment.year)
        )


def _within(ranges: Ranges, number: int) -> bool:
    return ranges is None or any(first <= number <= last for first, last in ranges)


def _has_day(days: Range, moment: datetime) -> bool:
    length = calendar.monthrange(moment.year, moment.month)[1]
    first, last = (length + day + 1 if day < 0 else day for day in days)
    return first <= length and first <= moment.day <= min(last, length)


def parse_clock_range(start: str, end: str) -> Range:
    if not start or not end:
        raise ValueError("both start_time and end_time must be given")
    first, last = _minute(start), _minute(end)
    if first >= last:
        raise ValueError(f"start_time {start} is not before end_time {end}; write two ranges to cross midnight")
    return first, last


def _minute(text: str) -> int:
    if _TIME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a time such as 09:30 or 24:00")
    return int(text[:2]) * 60 + int(text[3:])


def parse_weekdays(text: str) -> Range:
    return _parse_range(text, lambda word: _index(WEEKDAYS, word, "a weekday such as monday"))


def parse_months(text: str) -> Range:
    months = _parse_range(text, _month)
    if not 1 <= months[0] <= months[1] <= 12:
        raise ValueError(f"{text!r} is not a month such as may, 5 or may:august")
    return months


def _month(word: str) -> int:
    return _integer(word) if _NUMBER.fullmatch(word) else _index(MONTHS, word, "a month such as may") + 1


def parse_years(text: str) -> Range:
    return _parse_range(text, _integer)


def parse_days_of_month(text: str) -> Range:
    first, last = _parse_range(text, _integer, ordered=False)
    for day in (first, last):
        if day == 0 or not -31 <= day <= 31:
            raise ValueError(f"{day} is not a day of the month: 1 to 31, or -1 to -31 from its end")
    if first < 0 < last:
        raise ValueError("the last day must be negative if the first one is")
    # The shortest month has 28 days: what is never in order there is never in order.
    in_order = [28 + day if day < 0 else day for day in (first, last)]
    if in_order[0] > in_order[1]:
        raise ValueError(f"the last day, {last}, is always before the first one, {first}")
    return first, last


def parse_zone(text: str) -> tzinfo | None:
    if text in ("", "UTC"):
        return UTC
    if text == "Local":
        return None  # astimezone() would give the offset of today, which is wrong in the other half of the year
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{text!r} is not a time zone such as Europe/Berlin") from None


def _parse_range(text: str, parse: Callable[[str], int], *, ordered: bool = True) -> Range:
    words = text.lower().split(":")
    if len(words) > 2:
        raise ValueError(f"{text!r} is not a range such as first:last")
    first, last = parse(words[0]), parse(words[-1])  # Alertmanager refuses spaces too
    if ordered and first > last:
        raise ValueError(f"{text!r} ends before it starts; write two ranges")
    return first, last


def _integer(word: str) -> int:
    if _NUMBER.fullmatch(word) is None:
        raise ValueError(f"{word!r} is not a whole number")
    return int(word)


def _index(names: tuple[str, ...], word: str, wanted: str) -> int:
    if word not in names:
        raise ValueError(f"{word!r} is not {wanted}")
    return names.index(word)
