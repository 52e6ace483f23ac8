"""Runs look-ups in the history beside the live picture, one at a time.

A picture waits for a look-up, but not for long: over a slow engine, or with thousands of nodes to look up, the
pictures go on with what is found and a later one has the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gpuscope.base.episode_log import EpisodeLog

log = logging.getLogger("gpuscope.live")

MAX_WAIT_SECONDS: Final = 2.0
MAX_INSTANCES: Final = 100
"""Of one look-up: as many as one query names."""


class HistoryLookup:
    """`look_up` keeps what it finds; `failure` begins the log line when it raises."""

    def __init__(
        self, look_up: Callable[[], Awaitable[None]], failure: str, wait_seconds: float = MAX_WAIT_SECONDS
    ) -> None:
        self._look_up = look_up
        self._wait_seconds = wait_seconds
        self._episode = EpisodeLog(log, failure)
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Returns when the look-up has ended, also if it has failed, or after `wait_seconds`."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await asyncio.wait({self._running}, timeout=self._wait_seconds)

    async def _run(self) -> None:
        try:
            await self._look_up()
        except Exception as error:  # the live numbers themselves go on
            self._episode.failed(str(error))
        else:
            self._episode.succeeded()
