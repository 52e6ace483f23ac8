"""uvicorn's HTTP/1.1 on httptools, with an end to how much and how long a client may send before it asks, and
with answers that go out in one piece.

httptools parses a request in a third of h11's time, but neither it nor uvicorn bounds a request's head: without
this, one connection could fill the memory with headers, and many could stay open for ever without a question.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
_LARGE_BYTES = 64 * 1024
_GO_ON = b"HTTP/1.1 100 "
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _HeadWithBody:
    """A transport that sends an answer's head together with its body. uvicorn writes one after the other: two
    system calls, two packets, and a client that wakes up twice."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/1.1 ") and not data.startswith(_GO_ON):
            self._head = data
            return
        if len(data) > _LARGE_BYTES:  # a copy would cost more than it saves
            self.flush()
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _head_bytes: int | None = 0
    """Received of a request's head so far; None while its body comes."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _HeadWithBody(transport)))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes:
            self._expect_head()  # of a head that came whole, as most do, no clock is ever set
            if self._head_bytes > MOST_HEAD_BYTES:
                if not self.transport.is_closing():
                    self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_clock()
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        cast(_HeadWithBody, self.transport).flush()  # an answer without a body
        super().on_response_complete()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()
