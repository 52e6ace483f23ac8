"""Values over time, as a situation writes them: `0.9 until 1h, 0`, `1 for 1m every 5m`, `10 to 70`.

A schedule is a list of segments, separated by commas; each but the last ends at a time: `VALUE until 2h`.
`A to B` grows evenly within its segment. `for 1m every 5m` is the value in the first minute of every five, else
0; `pausing 4m every 1h` is 0 in the last four minutes of every hour. Times are from the start; `-30s` is before
the end of the situation. A mean over an interval is exact, as a counter of the driver is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(d|h|m|s)")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SEGMENT = re.compile(
    r"(?P<value>-?[\d.]+)(?:\s+to\s+(?P<last>-?[\d.]+))?"
    r"(?:\s+(?P<rhythm>for|pausing)\s+(?P<length>\S+)\s+every\s+(?P<period>\S+))?"
    r"(?:\s+until\s+(?P<until>\S+))?"
)


def parse_duration(text: str | float) -> float:
    """Seconds of `90m`, `1h30m`, `-30s`, `0`."""
    if isinstance(text, (int, float)):
        if text:
            raise ValueError(f"{text!r} is a duration without a unit")
        return 0.0
    bare = text.removeprefix("-")
    parts = _DURATION.findall(bare)
    if "".join(number + unit for number, unit in parts) != bare or not bare:
        raise ValueError(f"{text!r} is not a duration such as 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return -seconds if text.startswith("-") else seconds


def parse_time(text: str | float, lasts: float) -> float:
    """Seconds from the start of a situation that `lasts` so long."""
    if text == "end":
        return lasts
    seconds = parse_duration(text)
    return seconds + lasts if isinstance(text, str) and text.startswith("-") else seconds


@dataclass(frozen=True, slots=True)
class _Segment:
    begin: float
    end: float
    value: float
    last: float
    on_seconds: float
    """In each period, from its beginning."""
    period: float

    def mean(self, begin: float, end: float) -> float:
        """Of a part of the segment, times its seconds."""
        if self.value != self.last:
            slope = (self.last - self.value) / (self.end - self.begin)
            middle = self.value + slope * ((begin + end) / 2 - self.begin)
            return middle * (end - begin)
        return self.value * (self._on_until(end) - self._on_until(begin))

    def _on_until(self, at: float) -> float:
        if not self.period:
            return at
        periods, rest = divmod(at, self.period)
        return periods * self.on_seconds + min(rest, self.on_seconds)


@dataclass(frozen=True, slots=True)
class Schedule:
    segments: tuple[_Segment, ...]

    def mean(self, begin: float, end: float) -> float:
        """Over the interval; the value just before `end` if it has no length."""
        if end <= begin:
            begin = end - 1e-3
        total = 0.0
        for segment in self.segments:
            low, high = max(begin, segment.begin), min(end, segment.end)
            if low < high:
                total += segment.mean(low, high)
        return total / (end - begin)

    def at(self, moment: float) -> float:
        """The value just after a moment, for facts that are states and not means."""
        return round(self.mean(moment, moment + 1e-3), 6)

    def changes(self) -> list[float]:
        """Where one segment ends and the next begins."""
        return [segment.begin for segment in self.segments[1:]]


def parse_schedule(text: str | float, lasts: float) -> Schedule:
    segments: list[_Segment] = []
    begin = float("-inf")
    parts = [part.strip() for part in str(text).split(",")]
    for number, part in enumerate(parts):
        found = _SEGMENT.fullmatch(part)
        if found is None or (found["until"] is None) != (number == len(parts) - 1):
            raise ValueError(f"{text!r} is not a schedule such as `0.9 until 1h, 0`")
        end = parse_time(found["until"], lasts) if found["until"] else float("inf")
        value = float(found["value"])
        period = parse_duration(found["period"]) if found["period"] else 0.0
        length = parse_duration(found["length"]) if found["length"] else 0.0
        on_seconds = period - length if found["rhythm"] == "pausing" else length
        if found["last"] is None:
            segments.append(_Segment(begin, end, value, value, on_seconds, period))
        else:
            first, final = max(begin, 0.0), min(end, lasts)
            segments.append(_Segment(first, final, value, float(found["last"]), 0.0, 0.0))
            if end > lasts:
                segments.append(_Segment(final, end, float(found["last"]), float(found["last"]), 0.0, 0.0))
        begin = end
    return Schedule(tuple(segments))
