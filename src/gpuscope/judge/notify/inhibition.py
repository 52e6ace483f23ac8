"""Which alerts are inhibited now, and by which other alert.

Sources are indexed by their values of the `equal` labels, one per rule and value combination: the one that ends
last, as in Alertmanager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuscope.judge.notify.alert_matchers import match_all
from gpuscope.judge.notify.alert_routes import InhibitRule
from gpuscope.judge.notify.stored_alert import StoredAlert


class Inhibitor:
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
