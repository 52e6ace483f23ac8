"""One client's connection: bytes in, requests to the handler one after the other, answers out.

A handler is a coroutine that is run at once as far as it goes without waiting: an answer that needs nobody else
is out before the event loop turns. Only a handler that waits becomes a task.

Clients are hostile. A head has a largest size and a longest time; a body comes in only as far as it is read;
who neither sends nor reads is cut off; of requests sent ahead only as many are taken as one read holds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from gpuscope.server.http.eager import run_eagerly
from gpuscope.server.http.heads import encode_head, has_body
from gpuscope.server.http.messages import AnswerBroken, Handler, Request, Response, text
from gpuscope.server.http.reading import NotUnderstood, RequestReader

log = logging.getLogger("gpuscope.http")

MOST_UNREAD_BYTES = 256 * 1024
"""Of a body that comes faster than it is read."""
MOST_COPIED_BYTES = 64 * 1024
"""Of an answer that goes out together with its head."""
MOST_IN_A_ROW = 16
"""Requests sent ahead that are answered before others have their turn."""
HEAD_SECONDS = 30.0
"""From a head's first byte to its last; also how long a new connection may say nothing."""
STALLED_SECONDS = 60.0
"""Of a body that does not go on, and of an answer that is not taken."""
LINGER_SECONDS = 5.0
"""For a client to stop sending what is not wanted: closed at once, it might never see the answer."""
NEVER = float("inf")


class Host(Protocol):
    """What a connection needs of the server it belongs to."""

    handler: Handler
    connections: set[Connection]
    kept_seconds: float
    most_connections: int
    is_stopping: bool


class Connection(asyncio.Protocol):
    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._transport: asyncio.Transport
        self._requests: RequestReader
        self._secure = False
        self._answering: Request | None = None
        self._keeps = True  # the connection, after this answer
        self._task: asyncio.Task[None] | None = None
        self._hears = True  # False: whatever still comes is not looked at
        self._is_paused = False
        self._taken: asyncio.Future[None] | None = None  # done when the client has taken what was sent
        self._unsent = 0
        self._timed_head = 0  # the head that `_head_until` is for
        self._head_until = NEVER
        self.expires_at = loop.time() + HEAD_SECONDS

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio promises it for stream servers
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._requests = RequestReader(peer, self._secure, self._body_is_wanted)
        self._host.connections.add(self)
        if len(self._host.connections) > self._host.most_connections:
            self._refuse(text("too many connections; try again", 503), lingers=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._host.connections.discard(self)
        self._hears = False
        self._requests.whole.clear()
        self._client_left()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if not self._hears:
            return
        try:
            self._hears = self._requests.feed(data)
        except NotUnderstood as error:
            self._answer_what_came()
            self._refuse(text(str(error), error.status))
        else:
            self._go_on()

    def eof_received(self) -> bool:
        """Who stops sending may be gone, or still listen: what runs for it is told, and answers if it can."""
        self._hears = False
        self._client_left()
        is_owed = self._answering is not None or bool(self._requests.whole)
        return is_owed and not self._secure  # TLS knows no half of a connection

    def pause_writing(self) -> None:
        self._taken = self._loop.create_future()
        self._unsent = 0
        self.expires_at = self._loop.time() + STALLED_SECONDS

    def resume_writing(self) -> None:
        if self._taken is not None:
            if not self._taken.done():  # it was cancelled with the task that waited for it
                self._taken.set_result(None)
            self._taken = None
            self._go_on()

    # ---- what the server calls

    @property
    def is_busy(self) -> bool:
        return self._answering is not None

    def close(self) -> None:
        """After the answer that is being made, if there is one."""
        self._keeps = False
        self._requests.whole.clear()
        if self._answering is None:
            self._finish()

    def expire(self, now: float) -> None:
        """Ends a connection whose time is over; not while its client still takes what was sent."""
        left = self._transport.get_write_buffer_size()
        if left and left != self._unsent:
            self._unsent = left
            self.expires_at = now + STALLED_SECONDS
        else:
            self.abort()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # ---- answering

    def _answer_what_came(self) -> None:
        """One after the other; not too many in a row, and none while the client has answers to take."""
        for _ in range(MOST_IN_A_ROW):
            if not self._requests.whole or self._answering is not None or self._taken is not None:
                return
            self._answering, self._keeps = self._requests.whole.popleft()
            self._task = run_eagerly(self._exchange(self._answering), self._loop)
            if self._task is not None:
                self._task.add_done_callback(self._task_is_done)
        if self._requests.whole:
            self._loop.call_soon(self._go_on)

    def _task_is_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._go_on()

    def _go_on(self) -> None:
        self._answer_what_came()
        self._settle()

    async def _exchange(self, request: Request) -> None:
        try:
            response = await self._host.handler(request)
        except Exception:
            log.exception("serving %s failed", request.path)
            response = text("this page failed; the log says why", 500)
        try:
            if response.pieces is None:
                self._send(request, response)
            else:
                await self._stream(request, response)
        except AnswerBroken:
            self._transport.abort()
        except Exception:
            # The head may be out: that the answer breaks off is all that can still be said.
            log.exception("answering %s failed", request.path)
            self._transport.abort()
        finally:
            self._answering = None
            if not self._keeps or not self._expects_more():
                self._finish()

    def _send(self, request: Request, response: Response) -> None:
        head = encode_head(response, length=len(response.body), close=self._closes_after(request))
        body = response.body if request.method != "HEAD" and has_body(response.status) else b""
        if len(body) <= MOST_COPIED_BYTES:
            self._transport.write(head + body)  # one packet, and a client that wakes up once
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def _stream(self, request: Request, response: Response) -> None:
        """In chunks, unless the answer says its length or the connection's end will say it."""
        close = self._closes_after(request)
        chunked = not close and all(name != "content-length" for name, _ in response.headers)
        try:
            self._transport.write(encode_head(response, chunked=chunked, close=close))
            if request.method != "HEAD" and has_body(response.status) and response.pieces is not None:
                async for piece in response.pieces:
                    if self._transport.is_closing():
                        return
                    if piece:  # an empty chunk would be the last one
                        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    if self._taken is not None:
                        await self._taken
                if chunked:
                    self._transport.write(b"0\r\n\r\n")
        finally:
            if response.close is not None:
                await response.close()

    def _closes_after(self, request: Request) -> bool:
        if not request.body.is_complete or self._host.is_stopping or not self._expects_more():
            self._keeps = False
        return not self._keeps

    def _expects_more(self) -> bool:
        return self._hears or bool(self._requests.whole)

    # ---- ending

    def _refuse(self, response: Response, *, lingers: bool = True) -> None:
        """The last word on a connection that cannot be understood, unless it would get into another answer."""
        self._keeps = self._hears = False
        self._requests.whole.clear()
        if self._answering is None and not self._transport.is_closing():
            self._transport.write(encode_head(response, length=len(response.body), close=True) + response.body)
            self._finish(lingers=lingers)

    def _finish(self, *, lingers: bool = False) -> None:
        """Closes; not before the client has seen that nobody listens, if it still has something to say."""
        self._requests.whole.clear()
        if self._transport.is_closing():
            return
        now = self._loop.time()
        if lingers or (self._hears and self._requests.arriving is not None):
            self._requests.arriving = None
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._read(True)
            self.expires_at = now + LINGER_SECONDS
        else:
            self._transport.close()
            self.expires_at = now + STALLED_SECONDS
        self._hears = False

    def _client_left(self) -> None:
        self._requests.break_off()
        if self._answering is not None:
            self._answering.on_leave()

    # ---- reading no more than is wanted, waiting no longer than is due

    def _settle(self) -> None:
        if self._transport.is_closing() or not (self._hears or self._answering):
            return
        arriving = self._requests.arriving
        body = arriving.body if arriving is not None else None
        is_behind = body is not None and body.size > MOST_UNREAD_BYTES and not body.is_read
        self._read(not is_behind and not self._requests.whole)
        now = self._loop.time()
        if self._taken is not None:
            return  # the clock of `pause_writing` runs
        if body is not None and not self._is_paused:
            self.expires_at = now + STALLED_SECONDS
        elif self._answering is not None:
            self.expires_at = NEVER
        elif self._requests.is_in_head:
            if self._timed_head != self._requests.begun:
                self._timed_head, self._head_until = self._requests.begun, now + HEAD_SECONDS
            self.expires_at = self._head_until
        else:
            self.expires_at = now + self._host.kept_seconds

    def _read(self, wanted: bool) -> None:
        if wanted is self._is_paused:
            self._is_paused = not wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _body_is_wanted(self) -> None:
        request = self._answering
        if request is not None and not request.body.size and request.header("expect").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._settle()
