"""The route tree: which receivers an alert goes to, and how it is grouped; and which alerts others inhibit.

A child inherits what it does not set, except matchers, `continue` and time intervals. The first child that
matches takes the alert, unless it says `continue`; a node takes it itself only if no child did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuscope.judge.notify.alert_matchers import AlertMatcher, match_all, matchers_text
from gpuscope.judge.notify.alert_store import StoredAlert


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
