"""Aggregation groups: alerts of one route with equal group labels, and when each group is flushed next.

A new group is flushed after `group_wait`, or at once if its first alert is older than that; then every
`group_interval`. A group whose last flush is still being sent is not due; one without alerts is removed. If the
clock is set back, so are these times: otherwise every group would be silent until the old time comes again.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Iterator, Mapping

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.alert_routes import AlertRoute
from gpuscope.judge.notify.alert_store import StoredAlert, fingerprint, for_clients, label_set_text

log = logging.getLogger("gpuscope.notify")
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
