"""Go's `time.Time` and `time.Duration`: layouts, printing, and the methods that templates call.

Times are nanoseconds since the epoch in a zone. Layouts are Go's reference time (`2006-01-02 15:04:05 MST`).
Years outside 1 to 9999 are an error, because Python's calendar ends there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import re2

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoValue,
    Int64,
    Month,
    Stringer,
    Weekday,
)

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZERO_TIME_SECONDS = -62135596800
"""0001-01-01T00:00:00Z, Go's zero time."""
_LAYOUT = re.compile(
    r"January|Jan|Monday|Mon|MST|2006|-07:00:00|-070000|-07:00|-0700|-07|Z07:00:00|Z070000|Z07:00|Z0700|Z07"
    r"|002|01|02|03|04|05|06|15|PM|pm|__2|_2006|_2|[.,]0+(?!\d)|[.,]9+(?!\d)|1|2|3|4|5"
)


def parse_zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    if name == "Local":
        local = datetime.now().astimezone().tzinfo
        return local if local is not None else UTC
    try:
        # ZoneInfo refuses absolute paths and `..` itself.
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise FunctionFailed(f"unknown time zone {name}") from None


@dataclass(frozen=True, slots=True)
class GoDuration(Stringer):
    nanoseconds: int
    GO_TYPE: str = "time.Duration"

    def go_string(self) -> str:
        return duration_string(self.nanoseconds)

    def go_methods(self) -> Mapping[str, GoFunction]:
        ns = self.nanoseconds
        values: dict[str, GoValue] = {
            "Hours": ns / (3600 * SECOND),
            "Minutes": ns / (60 * SECOND),
            "Seconds": ns / SECOND,
            "Milliseconds": Int64(_towards_zero(ns, 1_000_000)),
            "Microseconds": Int64(_towards_zero(ns, 1000)),
            "Nanoseconds": Int64(ns),
            "String": duration_string(ns),
            "Abs": GoDuration(abs(ns)),
        }
        methods = {name: GoFunction((), _constant(value)) for name, value in values.items()}
        methods["Truncate"] = GoFunction(("time.Duration",), lambda step: GoDuration(_truncate(ns, step)))
        methods["Round"] = GoFunction(("time.Duration",), lambda step: GoDuration(_round(ns, step)))
        return methods


def _constant(value: GoValue) -> Callable[[], GoValue]:
    return lambda: value


def _towards_zero(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)


def nanoseconds_of(value: GoValue) -> int:
    return value.nanoseconds if isinstance(value, GoDuration) else int(value)


def _truncate(ns: int, step: GoValue) -> int:
    unit = nanoseconds_of(step)
    return ns if unit <= 0 else _towards_zero(ns, unit) * unit


def _round(ns: int, step: GoValue) -> int:
    unit = nanoseconds_of(step)
    if unit <= 0:
        return ns
    rest = abs(ns) % unit
    rounded = abs(ns) - rest + (unit if rest * 2 >= unit else 0)
    return rounded if ns >= 0 else -rounded


def duration_string(ns: int) -> str:
    if ns == 0:
        return "0s"
    sign, left = ("-" if ns < 0 else ""), abs(ns)
    if left < SECOND:
        unit, size = ("ns", 1) if left < 1000 else ("µs", 1000) if left < 1_000_000 else ("ms", 1_000_000)
        return f"{sign}{_decimal(left, size)}{unit}"
    minutes, rest = divmod(left, 60 * SECOND)
    text = f"{_decimal(rest, SECOND)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        text = f"{hours}h{text}" if hours else text
    return sign + text


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)


@dataclass(frozen=True, slots=True)
class GoTime(Stringer):
    nanoseconds: int
    """Since 1970-01-01T00:00:00Z."""
    zone: tzinfo = UTC
    GO_TYPE: str = "time.Time"

    @staticmethod
    def from_datetime(moment: datetime) -> GoTime:
        span = moment - _EPOCH
        ns = (span.days * 86400 + span.seconds) * SECOND + span.microseconds * 1000
        return GoTime(ns, moment.tzinfo or UTC)

    def moment(self) -> datetime:
        try:
            return (_EPOCH + timedelta(seconds=self.nanoseconds // SECOND)).astimezone(self.zone)
        except OverflowError:
            raise FunctionFailed("year outside of range [1,9999]") from None

    @property
    def fraction(self) -> int:
        return self.nanoseconds % SECOND

    def go_string(self) -> str:
        return self.format("2006-01-02 15:04:05.999999999 -0700 MST")

    def format(self, layout: str) -> str:
        moment = self.moment()
        return _scan_layout(layout, lambda token: _format_token(token, moment, self.fraction))

    def in_zone(self, zone: tzinfo) -> GoTime:
        return GoTime(self.nanoseconds, zone)

    def go_methods(self) -> Mapping[str, GoFunction]:
        moment, ns = self.moment(), self.nanoseconds
        values: dict[str, GoValue] = {
            "Year": moment.year, "Month": Month(moment.month), "Day": moment.day, "Hour": moment.hour,
            "Minute": moment.minute, "Second": moment.second, "Nanosecond": self.fraction,
            "Weekday": Weekday(moment.isoweekday() % 7), "YearDay": moment.timetuple().tm_yday,
            "Unix": Int64(ns // SECOND), "UnixMilli": Int64(ns // 1_000_000), "UnixMicro": Int64(ns // 1000),
            "UnixNano": Int64(ns), "UTC": self.in_zone(UTC), "String": self.go_string(),
            "IsZero": ns == ZERO_TIME_SECONDS * SECOND,
        }  # fmt: skip
        methods = {name: GoFunction((), _constant(value)) for name, value in values.items()}
        zone = self.zone
        return methods | {
            "Format": GoFunction(("string",), self.format),
            "Add": GoFunction(("time.Duration",), lambda d: GoTime(ns + nanoseconds_of(d), zone)),
            "Sub": GoFunction(("time.Time",), lambda other: GoDuration(ns - other.nanoseconds)),
            "Before": GoFunction(("time.Time",), lambda other: ns < other.nanoseconds),
            "After": GoFunction(("time.Time",), lambda other: ns > other.nanoseconds),
            "Equal": GoFunction(("time.Time",), lambda other: ns == other.nanoseconds),
            "Local": GoFunction((), lambda: self.in_zone(parse_zone("Local"))),
        }


def _scan_layout(layout: str, replace: Callable[[str], str]) -> str:
    """Replace each element of the reference time; `Jan`, `Mon` inside of a longer word are not elements."""
    done, output = 0, []
    for match in _LAYOUT.finditer(layout):
        token, after = match[0], layout[match.end() : match.end() + 1]
        is_word = token in ("Jan", "Mon") and after.islower() and after.isascii()
        fraction_without_second = token[0] in ".," and not layout.endswith("05", 0, match.start())
        nines = token[0] in ".," and token[1] == "9"
        if is_word or (fraction_without_second and not nines and token[1] != "0"):
            continue
        output += [layout[done : match.start()], replace(token)]
        done = match.end()
    return "".join([*output, layout[done:]])


def _offset_text(token: str, moment: datetime) -> str:
    seconds = int((moment.utcoffset() or timedelta()).total_seconds())
    if token[0] == "Z" and seconds == 0:
        return "Z"
    sign, left = ("-" if seconds < 0 else "+"), abs(seconds)
    parts = [f"{left // 3600:02d}", f"{left // 60 % 60:02d}", f"{left % 60:02d}"]
    count = len(re.findall(r"\d\d", token))
    return sign + (":" if ":" in token else "").join(parts[:count])


def zone_name(moment: datetime) -> str:
    """The abbreviation; a zone that is only an offset prints as `-0700`."""
    name = moment.tzname() or ""
    if isinstance(moment.tzinfo, timezone) and moment.tzinfo is not UTC:
        return "UTC" if not moment.utcoffset() else _offset_text("-0700", moment)
    return name


def _fraction_text(token: str, fraction: int) -> str:
    digits = f"{fraction:09d}"[: len(token) - 1]
    if token[1] == "9":
        digits = digits.rstrip("0")
        return token[0] + digits if digits else ""
    return token[0] + digits


def _format_token(token: str, moment: datetime, fraction: int) -> str:
    if token[0] in ".,":
        return _fraction_text(token, fraction)
    if token[0] in "-Z":
        return _offset_text(token, moment)
    hour12 = moment.hour % 12 or 12
    day_of_year = moment.timetuple().tm_yday
    month, weekday = Month.NAMES[moment.month - 1], Weekday.NAMES[moment.isoweekday() % 7]
    texts = {
        "January": month, "Jan": month[:3], "Monday": weekday, "Mon": weekday[:3], "MST": zone_name(moment),
        "2006": f"{moment.year:04d}", "06": f"{moment.year % 100:02d}", "_2006": f"_{moment.year:04d}",
        "002": f"{day_of_year:03d}", "__2": f"{day_of_year:3d}", "01": f"{moment.month:02d}",
        "1": str(moment.month), "02": f"{moment.day:02d}", "_2": f"{moment.day:2d}", "2": str(moment.day),
        "15": f"{moment.hour:02d}", "03": f"{hour12:02d}", "3": str(hour12), "04": f"{moment.minute:02d}",
        "4": str(moment.minute), "05": f"{moment.second:02d}", "5": str(moment.second),
        "PM": "PM" if moment.hour >= 12 else "AM", "pm": "pm" if moment.hour >= 12 else "am",
    }  # fmt: skip
    return texts[token]


_PARSED_BY: dict[str, str] = {
    "2006": r"(?P<year>\d{4})", "06": r"(?P<short_year>\d\d)", "01": r"(?P<month>\d\d)",
    "1": r"(?P<month>\d\d?)", "Jan": r"(?P<month_name>[A-Za-z]{3})", "January": r"(?P<month_name>[A-Za-z]+)",
    "02": r"(?P<day>\d\d)", "2": r"(?P<day>\d\d?)", "_2": r" ?(?P<day>\d\d?)", "15": r"(?P<hour>\d\d)",
    "03": r"(?P<hour12>\d\d)", "3": r"(?P<hour12>\d\d?)", "04": r"(?P<minute>\d\d)",
    "4": r"(?P<minute>\d\d?)", "05": r"(?P<second>\d\d)(?P<fraction>[.,]\d+)?",
    "5": r"(?P<second>\d\d?)(?P<fraction>[.,]\d+)?", "PM": "(?P<half>AM|PM)", "pm": "(?P<half>am|pm)",
    "Mon": "[A-Za-z]{3}", "Monday": "[A-Za-z]+", "MST": "(?P<zone>UTC|GMT|[A-Z]{3,4})",
}  # fmt: skip


def parse_time(layout: str, text: str) -> GoTime:
    """A time in UTC by a layout; FunctionFailed where the text does not fit or the layout is not supported."""
    pattern, done = "", 0
    for match in _LAYOUT.finditer(layout):
        pattern += re2.escape(layout[done : match.start()])
        token = match[0]
        if token[0] in "-Z":
            pattern += r"(?P<offset>Z|[+-]\d\d:?\d\d)"
        elif token[0] not in ".,":
            pattern += _PARSED_BY.get(token, r"\d+")
        done = match.end()
    try:
        # RE2: the layout `Monday Monday Monday…` would take exponential time in Python's engine.
        parts = compile_anchored(pattern + re2.escape(layout[done:])).fullmatch(text)
        if parts is not None:
            return _from_parts({name: value for name, value in parts.groupdict().items() if value})
    except (ValueError, UnicodeEncodeError):
        pass
    raise FunctionFailed(f'parsing time "{text}" as "{layout}": cannot parse "{text}"')


def _from_parts(parts: dict[str, str]) -> GoTime:
    short = int(parts.get("short_year", 0))
    year = int(parts["year"]) if "year" in parts else (1900 + short if short >= 69 else 2000 + short)
    if "year" not in parts and "short_year" not in parts:
        year = 1  # Go's year 0; Python has none
    month = int(parts.get("month", 1))
    if "month_name" in parts:
        names = [name.lower()[: len(parts["month_name"])] for name in Month.NAMES]
        month = names.index(parts["month_name"].lower()) + 1
    hour = int(parts.get("hour", parts.get("hour12", 0)))
    if "half" in parts:
        hour = hour % 12 + (12 if parts["half"].upper() == "PM" else 0)
    offset = parts.get("offset", "Z").replace(":", "")
    zone: tzinfo = UTC
    if offset != "Z":
        minutes = int(offset[1:3]) * 60 + int(offset[3:5])
        zone = timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes)) if minutes else UTC
    moment = datetime(
        year, month, int(parts.get("day", 1)), hour, int(parts.get("minute", 0)), int(parts.get("second", 0)),
        tzinfo=zone,
    )  # fmt: skip
    fraction = int(parts.get("fraction", ".0")[1:].ljust(9, "0")[:9])
    return GoTime(GoTime.from_datetime(moment).nanoseconds + fraction, zone)
