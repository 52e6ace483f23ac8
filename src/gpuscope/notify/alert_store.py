"""Every alert the notifier knows, firing or resolved not long ago, by fingerprint."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.stored_alert import StoredAlert


class AlertStore:
    """Not for several threads at once."""

    def __init__(self, *, max_alerts: int) -> None:
        self._alerts: dict[str, StoredAlert] = {}
        self._max_alerts = max_alerts

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[StoredAlert]:
        return iter(self._alerts.values())

    def put(self, alert: StoredAlert, now: float) -> StoredAlert | None:
        """The alert as it is kept, merged with what was known of it; None if there is no room for a new one."""
        known = self._alerts.get(alert.fingerprint)
        if known is None and len(self._alerts) >= self._max_alerts:
            self.forget_resolved(now)
            if len(self._alerts) >= self._max_alerts:
                LIMITS_REACHED.count("max_alerts")
                return None
        if known is not None and known.overlaps(alert):
            alert = known.merged_into(alert, now)
        self._alerts[alert.fingerprint] = alert
        return alert

    def forget_resolved(self, now: float) -> None:
        self._alerts = {key: alert for key, alert in self._alerts.items() if not alert.is_resolved(now)}
