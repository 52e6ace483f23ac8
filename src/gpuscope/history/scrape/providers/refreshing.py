"""The refresh loop of providers that ask again at a fixed interval, as Prometheus' `refresh_interval`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


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
