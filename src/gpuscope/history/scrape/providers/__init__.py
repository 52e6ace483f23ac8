"""Target providers: `dns_sd_configs`, `http_sd_configs` and `kubernetes_sd_configs`, as in Prometheus.

A provider asks another server for targets and keeps the last valid answer: while that server fails, its targets
stay. `groups` may be called from other threads; `run` belongs to the scraper's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.provider_configs import ProviderConfig

__all__ = ["DiscoveryError", "TargetProvider"]


class DiscoveryError(Exception):
    """One failed refresh; the message is one sentence without the provider's name."""


class TargetProvider(Protocol):
    @property
    def config(self) -> ProviderConfig: ...

    @property
    def failures(self) -> int:
        """Failed refreshes since the start."""

    def groups(self) -> tuple[TargetGroup, ...]:
        """The last valid answer; empty before the first one."""

    def adopt(self, groups: tuple[TargetGroup, ...]) -> None:
        """The groups until the first answer: those of the same provider before a reload."""

    async def run(self, on_change: Callable[[], None]) -> None:
        """Refreshes until it is cancelled."""
