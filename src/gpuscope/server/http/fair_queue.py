"""Whose request is answered next when there are more than the event loop can answer at once.

As long as answering takes little time, requests are answered as they come, in no queue. Once the loop has been
answering for `BUSY_SECONDS` without a pause, further requests queue, one queue per client address, and these
take turns: a client with 100 connections, or with 1,000 pipelined requests on one, delays another client by one
of its requests and not by all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

BUSY_SECONDS = 0.005
PAUSE_SECONDS = 0.0005
"""Between two answers: more than that and the loop had nothing to answer."""


class Queued(Protocol):
    limit_key: str

    def take_turn(self) -> None:
        """Answers one request; joins the queue again if there are more."""


class FairQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[str, deque[Queued]] = {}  # by address; the first is next
        self._queued: set[Queued] = set()
        self._busy_since = 0.0
        self._answered_at = 0.0
        self._is_scheduled = False

    def must_queue(self) -> bool:
        """Asked before a request is answered as it comes."""
        now = self._loop.time()
        if now - self._answered_at > PAUSE_SECONDS:
            self._busy_since = now
        return bool(self._queues) or now - self._busy_since > BUSY_SECONDS

    def answered(self) -> None:
        self._answered_at = self._loop.time()

    def join(self, connection: Queued) -> None:
        if connection in self._queued:
            return
        self._queued.add(connection)
        self._queues.setdefault(connection.limit_key, deque()).append(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take)

    def leave(self, connection: Queued) -> None:
        self._queued.discard(connection)  # its place in the queue is skipped

    def _take(self) -> None:
        """For a moment; then the loop reads sockets, where others may have asked meanwhile."""
        until = self._loop.time() + BUSY_SECONDS
        while self._queues and self._loop.time() < until:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            connection = queue.popleft()
            if queue:
                self._queues[key] = queue  # behind all others
            if connection in self._queued:
                self._queued.remove(connection)
                connection.take_turn()
        self._is_scheduled = bool(self._queues)
        if self._is_scheduled:
            self._loop.call_soon(self._take)
