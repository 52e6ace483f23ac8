"""The route tree: which receivers an alert goes to, when it is muted, and how it is grouped and inhibited.

A child inherits what it does not set, except matchers, `continue` and time intervals. The first child that
matches takes the alert, unless it says `continue`; a node takes it itself only if no child did.
"""

from __future__ import annotations

import calendar
import heapq
import itertools
import logging
import re
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.alert_matchers import AlertMatcher, match_all, matchers_text
from gpuscope.judge.notify.alert_store import StoredAlert, fingerprint, for_clients, label_set_text

log = logging.getLogger("gpuscope.notify")

# Named time intervals of an `alertmanager.yml`: when a route is muted, or when it is active.
#
# Fields of one interval must all hold, entries of one field are alternatives. A field that is not given
# always holds; an empty list, which has no alternative, never does. Times are [start, end) in minutes of the
# day in the interval's own time zone, UTC if it has none.

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


@dataclass(frozen=True, slots=True)
class AlertRoute:
    receiver: str
    matchers: tuple[AlertMatcher, ...] = ()
    group_by: frozenset[str] = frozenset()
    groups_by_all: bool = False
    """`group_by: ['...']`: each alert is a group of its own."""
    group_wait: float = 30.0
    group_interval: float = 300.0
    repeat_interval: float = 14400.0
    continues: bool = False
    mute_time_intervals: tuple[str, ...] = ()
    active_time_intervals: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    routes: tuple[AlertRoute, ...] = ()
    key: str = "{}"
    """The matchers from the root to here; the first part of a group's key."""
    id: str = "{}"
    """As `key`, with each route's position: unique in the tree."""

    def match(self, labels: Mapping[str, str]) -> list[AlertRoute]:
        if not match_all(self.matchers, labels):
            return []
        routes: list[AlertRoute] = []
        for child in self.routes:
            matched = child.match(labels)
            routes += matched
            if matched and not child.continues:
                break
        return routes or [self]

    def group_labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in labels.items() if self.groups_by_all or name in self.group_by}

    def walk(self) -> Iterator[AlertRoute]:
        yield self
        for child in self.routes:
            yield from child.walk()


def child_key(parent_key: str, matchers: tuple[AlertMatcher, ...]) -> str:
    return f"{parent_key}/{matchers_text(matchers)}"


@dataclass(frozen=True, slots=True)
class InhibitRule:
    """While a source alert fires, target alerts with equal values of `equal` are not notified."""

    source_matchers: tuple[AlertMatcher, ...]
    target_matchers: tuple[AlertMatcher, ...]
    equal: tuple[str, ...] = ()
    name: str = field(default="")

    def equal_values(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """A missing label counts as an empty one."""
        return tuple(labels.get(name, "") for name in self.equal)


class Inhibitor:
    """Which alerts are inhibited now, and by which other alert. Sources are indexed by their values of the
    `equal` labels, one per rule and value combination: the one that ends last, as in Alertmanager."""

    def __init__(self, rules: Sequence[InhibitRule]) -> None:
        self._rules = [(rule, dict[tuple[str, ...], StoredAlert]()) for rule in rules]

    def update(self, alert: StoredAlert) -> None:
        """A new or changed alert."""
        for rule, sources in self._rules:
            if not match_all(rule.source_matchers, alert.labels):
                continue
            values = rule.equal_values(alert.labels)
            known = sources.get(values)
            if known is None or known.fingerprint == alert.fingerprint or known.ends_at <= alert.ends_at:
                sources[values] = alert

    def rebuild(self, alerts: Iterable[StoredAlert]) -> None:
        """Forget every source, also resolved ones, and take these instead."""
        for _, sources in self._rules:
            sources.clear()
        for alert in alerts:
            self.update(alert)

    def inhibited_by(self, labels: Mapping[str, str], now: float) -> str:
        """The fingerprint of the source alert, or nothing."""
        for rule, sources in self._rules:
            if not sources or not match_all(rule.target_matchers, labels):
                continue
            source = sources.get(rule.equal_values(labels))
            if source is None or source.is_resolved(now):
                continue
            # Alerts that match both sides do not inhibit each other, or all of them would be silent.
            matches_both = match_all(rule.source_matchers, labels)
            if matches_both and match_all(rule.target_matchers, source.labels):
                continue
            return source.fingerprint
        return ""


# Aggregation groups: alerts of one route with equal group labels, and when each group is flushed next.
#
# A new group is flushed after `group_wait`, or at once if its first alert is older than that; then every
# `group_interval`. A group whose last flush is still being sent is not due; one without alerts is removed. If
# the clock is set back, so are these times: otherwise every group would be silent until the old time comes
# again.

MAX_TIMER_DELAY_SECONDS = 1.0


class AggregationGroup:
    def __init__(self, route: AlertRoute, labels: Mapping[str, str]) -> None:
        self.route = route
        self.labels = labels
        self.key = f"{route.key}:{label_set_text(labels)}"
        self.alerts: dict[str, StoredAlert] = {}
        self.next_flush_at = 0.0
        self.flush_number = 0
        self.waiting_for = 0
        """Deliveries of the last flush that are not finished."""
        self.has_failed = False
        """One of those failed: resolved alerts stay for the next flush."""
        self.resolved_in_flush: list[StoredAlert] = []
        self.muted_by: tuple[str, ...] = ()
        """Names of the time intervals that muted the last flush."""

    def finish_flush(self) -> None:
        """Remove alerts whose resolution was just sent, unless they changed meanwhile."""
        if not self.has_failed:
            for alert in self.resolved_in_flush:
                if self.alerts.get(alert.fingerprint) is alert:
                    del self.alerts[alert.fingerprint]
        self.resolved_in_flush = []


class AlertGroups:
    """All groups of a route tree. Not for several threads at once."""

    def __init__(self, root: AlertRoute, *, max_groups: int) -> None:
        self._root = root
        self._max_groups = max_groups
        self._groups: dict[tuple[str, str], AggregationGroup] = {}
        self._due: list[tuple[float, int, AggregationGroup]] = []
        self._order = itertools.count()
        self._waiting: dict[bool, dict[str, StoredAlert]] = {True: {}, False: {}}
        """Alerts without a group, by `is_own`."""
        self._refusals = EpisodeLog(log, "groups of alerts")
        self._seen_at = float("-inf")

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[AggregationGroup]:
        return iter(self._groups.values())

    def insert(self, alert: StoredAlert, now: float) -> None:
        self._follow_clock(now)
        for route in self._root.match(alert.labels):
            labels = route.group_labels(alert.labels)
            place = (route.id, fingerprint(labels))
            group = self._groups.get(place)
            if group is None:
                if len(self._groups) >= self._limit(alert.is_own):
                    LIMITS_REACHED.count("max_alert_groups")
                    self._refusals.failed(
                        f"there are {len(self._groups)}; alerts that need another one wait (max_alert_groups)",
                        "max_alert_groups",
                    )
                    self._waiting[alert.is_own][alert.fingerprint] = alert
                    continue
                group = self._groups[place] = AggregationGroup(route, labels)
                is_old = alert.starts_at + route.group_wait < now
                group.next_flush_at = now if is_old else now + route.group_wait
                self._schedule(group)
            group.alerts[alert.fingerprint] = alert

    def take_due(self, now: float) -> list[AggregationGroup]:
        """Groups to flush now; each must be given to `finished` afterwards."""
        self._follow_clock(now)
        groups = []
        while self._due and self._due[0][0] <= now:
            at, _, group = heapq.heappop(self._due)
            # The interval starts when the flush was due: a timer thread's small delays must not add up.
            started_at = at if now - at < MAX_TIMER_DELAY_SECONDS else now
            group.next_flush_at = started_at + group.route.group_interval
            group.flush_number += 1
            groups.append(group)
        return groups

    def finished(self, group: AggregationGroup, now: float) -> None:
        group.finish_flush()
        place = (group.route.id, fingerprint(group.labels))
        if self._groups.get(place) is not group:
            return  # a group of a configuration that was replaced meanwhile
        if group.alerts:
            self._schedule(group)
        else:
            del self._groups[place]
            self._place_waiting(now)

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def _schedule(self, group: AggregationGroup) -> None:
        heapq.heappush(self._due, (group.next_flush_at, next(self._order), group))

    def _follow_clock(self, now: float) -> None:
        if now < self._seen_at:
            back = self._seen_at - now
            for group in self._groups.values():
                group.next_flush_at -= back
            self._due = [(at - back, order, group) for at, order, group in self._due]  # still a heap
        self._seen_at = now

    def _limit(self, is_own: bool) -> int:
        """A quarter of the groups is for the alerts of this server's own rules."""
        return self._max_groups if is_own else for_clients(self._max_groups)

    def _place_waiting(self, now: float) -> None:
        """Alerts that found no room get it as soon as a group is gone, if they still fire."""
        for is_own, waiting in self._waiting.items():
            while waiting and len(self._groups) < self._limit(is_own):
                alert = waiting.pop(next(iter(waiting)))
                if not alert.is_resolved(now):
                    self.insert(alert, now)
        if not any(self._waiting.values()):
            self._refusals.succeeded()
