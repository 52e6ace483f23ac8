"""Target providers: `dns_sd_configs`, `http_sd_configs` and `kubernetes_sd_configs`, as in Prometheus.

A provider asks another server for targets and keeps the last valid answer: while that server fails, its targets
stay. `groups` may be called from other threads; `run` belongs to the scraper's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.job_options import ProviderConfig

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


# Host and port as one address, with brackets around IPv6, as Go's `net.JoinHostPort` does.


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# The refresh loop of providers that ask again at a fixed interval, as Prometheus' `refresh_interval`.


async def refresh_forever(
    refresh: Callable[[], Awaitable[bool]], interval_seconds: float, on_change: Callable[[], None]
) -> None:
    """`refresh` says whether the targets changed; it handles its own failures."""
    loop = asyncio.get_running_loop()
    due_at = loop.time()
    while True:
        if await refresh():
            on_change()
        due_at += interval_seconds
        # A refresh that took longer than the interval is followed by the next one, not by several at once.
        due_at = max(due_at, loop.time())
        await asyncio.sleep(due_at - loop.time())
