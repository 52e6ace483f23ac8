"""Alerts to several receivers: one that fails takes nothing from the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuscope.judge.rules.alert import Alert, AlertSink

log = logging.getLogger("gpuscope")


class AlertFanOut:
    def __init__(self, sinks: Sequence[AlertSink]) -> None:
        self._sinks = tuple(sinks)

    def take(self, alerts: Sequence[Alert]) -> None:
        for sink in self._sinks:
            try:
                sink.take(alerts)
            except Exception:
                log.exception("alerts were not taken by %s", type(sink).__name__)
