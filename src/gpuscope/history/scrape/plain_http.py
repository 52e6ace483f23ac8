"""A lean HTTP/1.1 client for one plain `http://` target: one GET at a time over one kept connection.

httpx2 takes three times the CPU time of this for a scrape. The response is parsed by httptools; at most
`FLOW_BYTES` and one read of the body wait here while the reader is slow. TLS and redirects are not for this
client. The caller limits time and body size. Every failure is an OSError or a `PlainHttpError`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httptools

MAX_HEAD_BYTES = 100 << 10
"""Status line and headers; h11, which reads the responses of TLS targets, allows as much."""
FLOW_BYTES = 64 << 10
MAX_IDLE_SECONDS = 300.0
_CONNECT_ATTEMPT_SECONDS = 0.25
"""After so long without an answer the next address of the host is tried too."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class PlainHttpError(Exception):
    """The target's response is not a complete HTTP response."""


class PlainResponse:
    """One response: status and headers first, then `pieces` of the body. Callbacks are those of httptools."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.status = 0
        self.reason = ""
        self.is_begun = False
        """Whether anything was received."""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        """Received without the end of the headers."""
        self._header_bytes = 0
        """Names and values."""
        self._has_head = self._is_complete = self._has_more = self._keep_alive = False
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    @property
    def can_reuse_connection(self) -> bool:
        return self._keep_alive and self._is_complete and self._error is None and not self._has_more

    def header(self, name: str) -> str:
        return self._headers.get(name.encode(), b"").decode("latin-1")

    async def wait_for_head(self) -> None:
        """Wait for status and headers, and usually for the whole body: one wait for a small response."""
        while not (self._has_head or self._error):
            await self._wait()
        if self._error is not None:
            raise self._error

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.pop(0)
                self._buffered -= len(piece)
                yield piece
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return
            self._transport.resume_reading()
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # From the connection

    def feed(self, data: bytes) -> None:
        self.is_begun = True
        try:
            self._parser.feed_data(data)
            if not self._has_head:
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise PlainHttpError(f"the response has more than {MAX_HEAD_BYTES} bytes of headers")
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ if isinstance(error.__context__, PlainHttpError) else error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(PlainHttpError(f"not a valid HTTP response: {error}"))
        except PlainHttpError as error:
            self._fail(error)
        # Not after the end: nobody would resume reading, and the next response on this connection never arrive.
        if self._buffered > FLOW_BYTES and not self._is_complete:
            self._transport.pause_reading()
        if self._is_complete or self._buffered > FLOW_BYTES or (self._has_head and self.status != 200):
            self._wake()

    def end(self, error: Exception | None) -> None:
        """The connection has ended."""
        if self._is_complete or self._error is not None:
            return
        by_end = not ({b"content-length", b"transfer-encoding"} & self._headers.keys())
        if self._has_head and by_end and error is None:
            self._is_complete = self._has_more = True
            self._wake()
        elif self.is_begun:
            self._fail(error or PlainHttpError("the connection was closed before the end of the response"))
        else:
            self._fail(error or ConnectionResetError("the server closed the connection without a response"))

    def _fail(self, error: BaseException) -> None:
        self._error = error if isinstance(error, Exception) else PlainHttpError(str(error))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # From httptools

    def on_message_begin(self) -> None:
        self._has_more = self._is_complete

    def on_status(self, reason: bytes) -> None:
        if not self._is_complete:
            self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEAD_BYTES:
            raise PlainHttpError(f"the response has more than {MAX_HEAD_BYTES} bytes of headers")
        if not self._is_complete:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        self.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()
        self._has_head = not 100 <= self.status < 200 or self.status == 101

    def on_body(self, piece: bytes) -> None:
        if not self._is_complete:
            self._pieces.append(piece)
            self._buffered += len(piece)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
        else:  # 100 Continue and the like come before the response
            self._headers, self.reason = {}, ""


class _Connection(asyncio.Protocol):
    """Passes received bytes to the pending response."""

    _transport: asyncio.Transport  # from `connection_made` on, before anybody has the connection

    def __init__(self) -> None:
        self.is_open = False
        self._response: PlainResponse | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def send(self, request: bytes) -> PlainResponse:
        self._response = PlainResponse(self._transport)
        self._transport.write(request)
        return self._response

    def finish(self) -> None:
        """The response has been read, or is not wanted any more."""
        response, self._response = self._response, None
        if response is None or not response.can_reuse_connection:
            self.close()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nothing was requested
            self.close()
        else:
            self._response.feed(data)

    def eof_received(self) -> None:
        self.is_open = False
        if self._response is not None:
            self._response.end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._response is not None:
            self._response.end(error)


class PlainHttpClient:
    """Repeats one request. Not for concurrent use."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self._host, self._port, self._request = host, port, request
        self._connection: _Connection | None = None
        self._used_at = 0.0

    @asynccontextmanager
    async def get(self) -> AsyncIterator[PlainResponse]:
        """The response; the connection is closed if it is not read to its end."""
        connection, response = await self._send()
        try:
            yield response
        finally:
            connection.finish()

    async def _send(self) -> tuple[_Connection, PlainResponse]:
        loop = asyncio.get_running_loop()
        known = self._connection
        if known is not None and known.is_open:
            if loop.time() - self._used_at < MAX_IDLE_SECONDS:
                self._used_at = loop.time()
                response = known.send(self._request)
                try:
                    await response.wait_for_head()
                    return known, response
                except OSError:
                    known.close()
                    if response.is_begun:
                        raise
                    # The server closed an idle connection when the request was on its way: try a new one.
                except BaseException:
                    known.close()
                    raise
            else:
                known.close()
        self._connection = connection = await self._connect(loop)
        self._used_at = loop.time()
        response = connection.send(self._request)
        try:
            await response.wait_for_head()
        except BaseException:
            connection.close()
            raise
        return connection, response

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        try:
            _, connection = await loop.create_connection(
                _Connection, self._host, self._port, happy_eyeballs_delay=_CONNECT_ATTEMPT_SECONDS
            )
        except OSError as error:
            errno_text = _ERRNO.search(str(error))
            if error.errno is None and errno_text is not None:  # of several addresses: the first reason
                number = int(errno_text[1])
                raise OSError(number, os.strerror(number)) from None
            raise
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
