"""Whether the last reload of configuration, rule files and idle policy worked, and why not.

Shown by `/api/v1/status/runtimeinfo` and as `prometheus_config_last_reload_*`, which alerts watch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample


@dataclass(slots=True)
class ReloadStatus:
    """Times are those of the last success; None: the start."""

    error: str = ""
    at: float | None = None
    policy_error: str = ""
    """Of the idle policy's file."""
    policy_at: float | None = None

    @property
    def is_successful(self) -> bool:
        return not self.error and not self.policy_error

    def failed(self, reason: str) -> None:
        self.error = reason

    def succeeded(self) -> None:
        self.error, self.at = "", time.time()

    def policy_failed(self, reason: str) -> None:
        self.policy_error = reason

    def policy_succeeded(self) -> None:
        self.policy_error, self.policy_at = "", time.time()

    def families(self, started_at: float) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "prometheus_config_last_reload_successful",
            "gauge",
            "1 if the last reload of configuration, rules and idle policy worked, 0 if an older one is in use.",
            [Sample(NO_LABELS, int(self.is_successful))],
        )
        yield MetricFamily(
            "prometheus_config_last_reload_success_timestamp_seconds",
            "gauge",
            "Time of the last successful load of the configuration.",
            [Sample(NO_LABELS, started_at if self.at is None else self.at)],
        )
