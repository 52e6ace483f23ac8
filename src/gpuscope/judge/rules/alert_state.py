"""The state of one alert, its transitions at an evaluation, and what is sent of it; no queries, no clock.

Times are nanoseconds since the epoch; None is Go's zero time. `AlertTable` has the alerts of one rule by their
labels. It follows Prometheus 3.14, with one addition: alerts restored from our own state file that the first
evaluations do not return are held as they are, because the data may not be complete yet after a start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import Labels

# An alert on its way to an Alertmanager, and what takes it.
#
# Times are seconds since the epoch. `ends_at` is None while the alert fires; the sender then writes
# `valid_until` as `endsAt`, which moves on with each resend: a receiver that hears nothing more resolves the
# alert at that time.

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class Alert:
    """A firing or resolved alert; `labels` and `annotations` are sorted by name."""

    labels: Labels
    annotations: Labels
    starts_at: float
    ends_at: float | None
    generator_url: str = ""
    valid_until: float = 0.0
    """Evaluation time + 4 × max(evaluation interval, resend delay), as in Prometheus."""


class AlertSink(Protocol):
    def take(self, alerts: Sequence[Alert]) -> None:
        """Take alerts of one evaluation. Called on the evaluation thread: it must not wait."""
        ...


class AlertFanOut:
    """To several receivers: one that fails takes nothing from the others."""

    def __init__(self, sinks: Sequence[AlertSink]) -> None:
        self._sinks = tuple(sinks)

    def take(self, alerts: Sequence[Alert]) -> None:
        for sink in self._sinks:
            try:
                sink.take(alerts)
            except Exception:
                log.exception("alerts were not taken by %s", type(sink).__name__)


RESOLVED_RETENTION_NS = 15 * 60 * SECOND_NS
"""How long a resolved alert is kept and sent again."""
HELD_EVALUATIONS = 2
"""Evaluations after a restart in which a restored alert may be absent."""


class AlertState(IntEnum):
    UNKNOWN = 0
    INACTIVE = 1
    PENDING = 2
    FIRING = 3

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class ActiveAlert:
    labels: Labels
    annotations: Labels
    value: float
    active_at_ns: int
    state: AlertState = AlertState.PENDING
    fired_at_ns: int | None = None
    resolved_at_ns: int | None = None
    last_sent_at_ns: int | None = None
    keep_firing_since_ns: int | None = None
    is_restored: bool = False
    """From the state file, and not returned by an evaluation since."""
    looked_up_at_ns: int = 0
    """When the annotations with queries were expanded; 0 if never."""

    def needs_sending(self, at_ns: int, resend_delay_ns: int) -> bool:
        if self.state is AlertState.PENDING:
            return False
        sent = self.last_sent_at_ns
        if sent is None or (self.resolved_at_ns is not None and self.resolved_at_ns > sent):
            return True
        return sent + resend_delay_ns < at_ns


class TooManyAlerts(Exception):
    """More alerts than the group's `limit`; the rule has lost all its state, as in Prometheus."""


class AlertTable:
    """The alerts of one rule, resolved ones included for a while."""

    def __init__(self, for_ns: int, keep_firing_for_ns: int) -> None:
        self._for_ns = for_ns
        self._keep_ns = keep_firing_for_ns
        self._alerts: dict[Labels, ActiveAlert] = {}
        self._held_evaluations = 0
        self.has_changed = False
        """An alert came, went or changed its state since this was last set to False."""

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[ActiveAlert]:
        return iter(self._alerts.values())

    def get(self, labels: Labels) -> ActiveAlert | None:
        return self._alerts.get(labels)

    def copy_from(self, other: AlertTable) -> None:
        """At a reload: state goes on although the rule has changed."""
        self._alerts.update(other._alerts)
        self._held_evaluations = other._held_evaluations

    def restore(self, alerts: Iterator[ActiveAlert]) -> None:
        """From the state file, before the first evaluation."""
        for alert in alerts:
            alert.is_restored = True
            self._alerts[alert.labels] = alert
        self._held_evaluations = HELD_EVALUATIONS

    def update(self, returned: Mapping[Labels, ActiveAlert], at_ns: int, limit: int) -> list[ActiveAlert]:
        """Take the alerts that the expression gives at `at_ns`; return those that are pending or firing."""
        for labels, new in returned.items():
            known = self._alerts.get(labels)
            if known is None or known.state is AlertState.INACTIVE:
                self._alerts[labels] = new
                self.has_changed = True
            else:
                known.value, known.annotations, known.is_restored = new.value, new.annotations, False
                known.looked_up_at_ns = new.looked_up_at_ns
        active = [alert for alert in list(self) if self._advance(alert, alert.labels in returned, at_ns)]
        if self._held_evaluations:
            self._held_evaluations -= 1
        if 0 < limit < len(active):
            self._alerts.clear()
            self.has_changed = True
            raise TooManyAlerts(f"exceeded limit of {limit} with {len(active)} alerts")
        return active

    def take_to_send(self, at_ns: int, resend_delay_ns: int) -> list[ActiveAlert]:
        """Those that a receiver has to hear of now; they count as sent."""
        alerts = [alert for alert in self if alert.needs_sending(at_ns, resend_delay_ns)]
        for alert in alerts:
            alert.last_sent_at_ns = at_ns
        return alerts

    def _advance(self, alert: ActiveAlert, is_present: bool, at_ns: int) -> bool:
        """Move one alert to its state at `at_ns`; return whether it is pending or firing."""
        before = alert.state
        if not is_present and self._is_held(alert):
            return True
        if is_present:
            alert.keep_firing_since_ns = None
        elif not self._stays(alert, at_ns):
            self._end(alert, at_ns)
            return False
        if alert.state is AlertState.PENDING and at_ns - alert.active_at_ns >= self._for_ns:
            alert.state, alert.fired_at_ns = AlertState.FIRING, at_ns
        if alert.state is AlertState.FIRING and at_ns - alert.active_at_ns < self._for_ns:
            # A reload has raised `for`.
            alert.state, alert.fired_at_ns = AlertState.PENDING, None
            alert.last_sent_at_ns = alert.keep_firing_since_ns = None
        self.has_changed |= alert.state is not before
        return True

    def _is_held(self, alert: ActiveAlert) -> bool:
        return alert.is_restored and self._held_evaluations > 0 and alert.state is not AlertState.INACTIVE

    def _stays(self, alert: ActiveAlert, at_ns: int) -> bool:
        """Whether an absent alert keeps firing."""
        if alert.state is not AlertState.FIRING or self._keep_ns <= 0:
            return False
        if alert.keep_firing_since_ns is None:
            alert.keep_firing_since_ns = at_ns
            self.has_changed = True
        return at_ns - alert.keep_firing_since_ns < self._keep_ns

    def _end(self, alert: ActiveAlert, at_ns: int) -> None:
        resolved = alert.resolved_at_ns
        if alert.state is AlertState.PENDING or (
            resolved is not None and at_ns - resolved > RESOLVED_RETENTION_NS
        ):
            del self._alerts[alert.labels]
            self.has_changed = True
        if alert.state is not AlertState.INACTIVE:
            alert.state, alert.resolved_at_ns = AlertState.INACTIVE, at_ns
            self.has_changed = True
