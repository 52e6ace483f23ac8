"""Every alert the notifier knows, firing or resolved not long ago, by fingerprint."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.stored_alert import StoredAlert

SWEEP_SECONDS = 1.0


class AlertStore:
    """Not for several threads at once."""

    def __init__(self, *, max_alerts: int) -> None:
        self._alerts: dict[str, StoredAlert] = {}
        self._max_alerts = max_alerts
        self._weight = 0
        self._swept_at = float("-inf")

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[StoredAlert]:
        return iter(self._alerts.values())

    def put(self, alert: StoredAlert, now: float) -> StoredAlert | None:
        """The alert as it is kept, merged with what was known of it; None if there is no room for a new one."""
        known = self._alerts.get(alert.fingerprint)
        more = alert.weight - (0 if known is None else known.weight)
        if more > 0 and self._weight + more > self._max_alerts:
            if (
                not self._swept_at <= now < self._swept_at + SWEEP_SECONDS
            ):  # not for each of 10,000 in a request
                self.forget_resolved(now)
            known = self._alerts.get(alert.fingerprint)
            more = alert.weight - (0 if known is None else known.weight)
            if more > 0 and self._weight + more > self._max_alerts:
                LIMITS_REACHED.count("max_alerts")
                return None
        self._weight += more
        if known is not None and known.overlaps(alert):
            alert = known.merged_into(alert, now)
        self._alerts[alert.fingerprint] = alert
        return alert

    def forget_resolved(self, now: float) -> None:
        self._alerts = {key: alert for key, alert in self._alerts.items() if not alert.is_resolved(now)}
        self._swept_at = now
        self._weight = sum(alert.weight for alert in self._alerts.values())
