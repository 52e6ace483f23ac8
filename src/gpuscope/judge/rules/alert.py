"""An alert on its way to an Alertmanager, and what takes it.

Times are seconds since the epoch. `ends_at` is None while the alert fires; the sender then writes
`valid_until` as `endsAt`, which moves on with each resend: a receiver that hears nothing more resolves the
alert at that time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscope.model.series import Labels

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
