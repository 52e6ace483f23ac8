"""Every alert the notifier knows, firing or resolved not long ago, by fingerprint.

A quarter of the room is for the alerts of this server's own rules: clients that send many must not shut them
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.stored_alert import StoredAlert

SWEEP_SECONDS = 1.0


def for_clients(limit: int) -> int:
    """What is left of a limit for the alerts that clients send."""
    return limit - limit // 4


class AlertStore:
    """Not for several threads at once."""

    def __init__(self, *, max_alerts: int) -> None:
        self._alerts: dict[str, StoredAlert] = {}
        self._max_alerts = max_alerts
        self._weight = 0
        self._client_weight = 0
        """Of the alerts that clients sent."""
        self._swept_at = float("-inf")

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[StoredAlert]:
        return iter(self._alerts.values())

    def put(self, alert: StoredAlert, now: float) -> StoredAlert | None:
        """The alert as it is kept, merged with what was known of it; None if there is no room for a new one."""
        if not self._has_room(alert):
            if (
                not self._swept_at <= now < self._swept_at + SWEEP_SECONDS
            ):  # not for each of 10,000 in a request
                self.forget_resolved(now)
            if not self._has_room(alert):
                LIMITS_REACHED.count("max_alerts")
                return None
        known = self._alerts.get(alert.fingerprint)
        if known is not None:
            self._count(known, -1)
            # An alert of our own stays one when a client sends it too.
            alert = replace(alert, is_own=alert.is_own or known.is_own)
        self._count(alert, 1)
        if known is not None and known.overlaps(alert):
            alert = known.merged_into(alert, now)
        self._alerts[alert.fingerprint] = alert
        return alert

    def _has_room(self, alert: StoredAlert) -> bool:
        known = self._alerts.get(alert.fingerprint)
        more = alert.weight - (0 if known is None else known.weight)
        is_own = alert.is_own or (known is not None and known.is_own)
        is_within = self._weight + more <= self._max_alerts
        return more <= 0 or (
            is_within and (is_own or self._client_weight + more <= for_clients(self._max_alerts))
        )

    def _count(self, alert: StoredAlert, sign: int) -> None:
        self._weight += sign * alert.weight
        self._client_weight += 0 if alert.is_own else sign * alert.weight

    def forget_resolved(self, now: float) -> None:
        self._alerts = {key: alert for key, alert in self._alerts.items() if not alert.is_resolved(now)}
        self._swept_at = now
        self._weight = self._client_weight = 0
        for alert in self._alerts.values():
            self._count(alert, 1)
