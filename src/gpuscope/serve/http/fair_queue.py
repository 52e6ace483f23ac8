"""A fair queue of connections with pending requests, round-robin by client address.

While the event loop is not busy, requests are handled in the order they arrive, without a queue. After
`BUSY_SECONDS` of handling requests without a pause, further requests go to one queue per client address, served
in turn: a client with 100 connections, or 1,000 pipelined requests, delays another client by one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

BUSY_SECONDS = 0.005
PAUSE_SECONDS = 0.0005
"""A longer gap between two responses means that the loop was idle."""


class QueuedConnection(Protocol):
    limit_key: str

    def serve_one(self) -> None:
        """Handles one request; joins the queue again if more are pending."""


class FairQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[str, deque[QueuedConnection]] = {}  # by address; the first is next
        self._queued: set[QueuedConnection] = set()
        self._busy_since = 0.0
        self._answered_at = 0.0
        self._is_scheduled = False

    def must_queue(self) -> bool:
        """True if a new request must wait in the queue."""
        now = self._loop.time()
        if now - self._answered_at > PAUSE_SECONDS:
            self._busy_since = now
        return bool(self._queues) or now - self._busy_since > BUSY_SECONDS

    def answered(self) -> None:
        self._answered_at = self._loop.time()

    def join(self, connection: QueuedConnection) -> None:
        if connection in self._queued:
            return
        self._queued.add(connection)
        self._queues.setdefault(connection.limit_key, deque()).append(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve_queue)

    def leave(self, connection: QueuedConnection) -> None:
        self._queued.discard(connection)  # `_serve_queue` skips its entry

    def _serve_queue(self) -> None:
        """Serves the queue for at most BUSY_SECONDS, then lets the loop read new requests."""
        until = self._loop.time() + BUSY_SECONDS
        while self._queues and self._loop.time() < until:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            connection = queue.popleft()
            if queue:
                self._queues[key] = queue  # last in turn
            if connection in self._queued:
                self._queued.remove(connection)
                connection.serve_one()
        self._is_scheduled = bool(self._queues)
        if self._is_scheduled:
            self._loop.call_soon(self._serve_queue)
