"""One client connection: parses bytes into requests, runs the handler for one at a time, writes responses.

The handler runs eagerly: a response that waits for nothing is written before the event loop's next iteration.
Only a handler that waits becomes a task.

Clients are untrusted. A request head has a size and a time limit, a body a time limit and a shared byte budget,
and the client must receive responses at a minimum rate (`Limits`, group http). Body bytes are read from the
socket only as fast as the handler consumes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http.connection_limits import ClientLog, FairQueue, RequestBodyBudget, ResponseRate
from gpuscope.serve.http.eager_task import run_eagerly
from gpuscope.serve.http.messages import (
    BodyRefused,
    Handler,
    Request,
    Response,
    ResponseAborted,
    encode_head,
    has_body,
    text,
)
from gpuscope.serve.http.request_parser import MalformedRequest, RequestParser

MAX_UNREAD_BYTES = 256 * 1024
"""Buffered body bytes above which reading from the socket pauses."""
MAX_COPIED_BYTES = 64 * 1024
"""Largest response body that is copied into one write with its head."""
LINGER_SECONDS = 5.0
"""Time to read and drop input after the last response. Closing at once would send a TCP reset, and the client
might lose the response."""
NEVER = float("inf")


class ServerContext(Protocol):
    """The part of the server that a connection uses."""

    handler: Handler
    limits: Limits
    budget: RequestBodyBudget
    log: ClientLog
    queue: FairQueue
    connections: set[Connection]
    is_stopping: bool
    accepts_peer: Callable[[asyncio.BaseTransport], bool] | None

    def leave(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, server: ServerContext, loop: asyncio.AbstractEventLoop, limit_key: str = "") -> None:
        self._server = server
        self._loop = loop
        self._limits = server.limits
        self.limit_key = limit_key
        self._transport: asyncio.Transport
        self._requests: RequestParser
        self._secure = False
        self._current: Request | None = None
        self._keep_alive = True  # after the current response
        self._task: asyncio.Task[None] | None = None
        self._accepts_input = True  # False: further input is dropped
        self._must_linger = False  # True: the client may still be sending input that is dropped
        self._refusal: Response | None = None  # sent after the responses to earlier pipelined requests
        self._is_finished = False
        self._is_paused = False
        self._is_endless = False  # the current response
        self._drained: asyncio.Future[None] | None = None  # done when the write buffer has drained
        self._rate = ResponseRate()
        self._body_deadline = NEVER
        self._timed_head = 0  # number of the head that `_head_deadline` belongs to
        self._head_deadline = NEVER
        self.expires_at = loop.time() + self._limits.request_head_timeout

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # always so for stream servers
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._requests = RequestParser(
            peer, self._secure, self._on_body_wanted, self._limits, self._server.budget, self.limit_key
        )
        self._server.connections.add(self)
        if self._server.accepts_peer is not None and not self._server.accepts_peer(transport):
            self._accepts_input = False
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.leave(self)
        self._server.queue.leave(self)
        self._accepts_input = False
        self._discard_pipelined()
        self._notify_disconnect()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._accepts_input:
            self._feed(data)
            self._advance()

    def _feed(self, data: bytes) -> None:
        try:
            self._accepts_input = self._requests.feed(data) and self._accepts_input
        except MalformedRequest as error:
            self._refusal = text(str(error), error.status)
            self._requests.refuse(self._refusal)
            self._must_linger, self._accepts_input = True, False

    def eof_received(self) -> bool:
        """After EOF the client may be gone or may still read: cancel the running work, send what is ready."""
        self._accepts_input = False
        self._notify_disconnect()
        is_pending = self._current is not None or self._has_pending()
        return is_pending and not self._secure  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self.expires_at = self._rate.begin_wait(self._loop.time(), self._limits)

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._rate.end_wait(self._loop.time())
            if not self._drained.done():  # cancelled together with the task that awaited it
                self._drained.set_result(None)
            self._drained = None
            self._advance()

    # ---- called by the server

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    @property
    def is_waiting(self) -> bool:
        """True between requests: closing the connection then loses no request."""
        return self._current is None and self._requests.receiving is None and self._drained is None

    @property
    def has_sent_request(self) -> bool:
        """True once the client has sent one complete request head."""
        return self._requests.heads_started > self._requests.is_in_head

    def close(self) -> None:
        """Closes the connection after the current response, if there is one."""
        self._keep_alive = False
        self._discard_pipelined()
        if self._current is None:
            self._finish()
        elif self._is_endless:
            self._current.on_disconnect()

    def expire(self, now: float) -> None:
        """Ends a connection whose deadline has passed, unless its client receives data fast enough."""
        receiving = self._requests.receiving
        if receiving is not None and receiving is self._current and receiving.body.is_read:
            self._refuse_slow_body(receiving, now)
            return
        left = self._transport.get_write_buffer_size()
        if left and self._rate.is_fast_enough(left, now, self._limits):
            self.expires_at = now + self._limits.client_stall_timeout
            return
        LIMITS_REACHED.count(self._expired_limit(left))
        self.abort()

    def _refuse_slow_body(self, request: Request, now: float) -> None:
        """Responds 408 instead of closing: the client sees the reason and can retry."""
        is_over = now >= self._body_deadline
        LIMITS_REACHED.count("request_body_timeout" if is_over else "client_stall_timeout")
        self._must_linger, self._accepts_input = True, False
        self.expires_at = now + LINGER_SECONDS
        request.body.refuse(text("the request's body took too long", 408))

    def _expired_limit(self, left: int) -> str:
        """The name of the limit whose deadline has passed."""
        if left:
            return "min_response_rate"
        if self._requests.is_in_head or not self._requests.heads_started:
            return "request_head_timeout"
        return "keep_alive_timeout"

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # ---- responding

    def serve_one(self) -> None:
        self._respond_next()
        self._update_flow()

    def _respond_or_queue(self) -> None:
        """Responds at once unless other connections are queued; then this one joins the queue."""
        if self._server.queue.must_queue():
            if self._can_respond():
                self._server.queue.join(self)
        else:
            self._respond_next()

    def _can_respond(self) -> bool:
        """True if a request is pending and no earlier response is in progress."""
        return self._current is None and self._drained is None and self._has_pending()

    def _has_pending(self) -> bool:
        return bool(self._requests.parsed or self._requests.unparsed or self._refusal)

    def _respond_next(self) -> None:
        if not self._can_respond():
            return
        requests = self._requests
        if not requests.parsed and requests.unparsed:
            self._feed(b"")
        if not requests.parsed:
            if self._refusal is not None and not self._is_finished:
                self._refuse(self._refusal)
            return
        self._current, self._keep_alive = requests.parsed.popleft()
        self._task = run_eagerly(self._handle(self._current), self._loop)
        if self._task is not None:
            self._task.add_done_callback(self.on_task_done)
        self._server.queue.answered()
        if self._can_respond():
            self._server.queue.join(self)

    def on_task_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._advance()

    def _advance(self) -> None:
        self._respond_or_queue()
        self._update_flow()

    async def _handle(self, request: Request) -> None:
        self._rate.begin_response()
        try:
            response = await self._server.handler(request)
        except BodyRefused as refused:
            response = refused.response
        except Exception as error:
            self._server.log.error("failed requests", "serving %a failed", request.path[:200], error=error)
            response = text("internal error; the server's log has the details", 500)
        try:
            if response.pieces is None:
                self._send(request, response)
            else:
                await self._stream(request, response)
        except ResponseAborted:
            self._transport.abort()
        except Exception as error:
            # The head may have been sent: only an aborted connection can still signal the error.
            self._server.log.error(
                "failed responses", "sending the response to %a failed", request.path[:200], error=error
            )
            self._transport.abort()
        finally:
            self._current = None
            request.body.release()
            if not self._keep_alive or not self._may_receive_more():
                self._finish()

    def _send(self, request: Request, response: Response) -> None:
        head = encode_head(response, length=len(response.body), close=self._closes_after(request))
        body = response.body if request.method != "HEAD" and has_body(response.status) else b""
        if len(body) <= MAX_COPIED_BYTES:
            self._write(head + body)  # one packet, so the client wakes up once
        else:
            self._write(head)
            self._write(body)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # asyncio logs a line for each write to a lost connection
            self._rate.written += len(data)
            self._transport.write(data)

    async def _stream(self, request: Request, response: Response) -> None:
        """Uses chunked coding unless content-length or the end of the connection delimits the body."""
        self._is_endless = response.is_endless
        close = self._closes_after(request)
        chunked = not close and all(name != "content-length" for name, _ in response.headers)
        try:
            self._write(encode_head(response, chunked=chunked, close=close))
            if request.method != "HEAD" and has_body(response.status) and response.pieces is not None:
                async for piece in response.pieces:
                    if self._transport.is_closing():
                        return
                    if piece:  # an empty chunk would end the body
                        self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    if self._drained is not None:
                        await self._drained
                if chunked:
                    self._write(b"0\r\n\r\n")
        finally:
            self._is_endless = False
            if response.close is not None:
                await response.close()

    def _closes_after(self, request: Request) -> bool:
        if not request.body.is_complete or self._server.is_stopping or not self._may_receive_more():
            self._keep_alive = False
        return not self._keep_alive

    def _may_receive_more(self) -> bool:
        return self._accepts_input or self._has_pending()

    # ---- ending

    def _refuse(self, response: Response) -> None:
        """Sends the last response on a connection whose further input cannot be parsed."""
        if not self._transport.is_closing():
            self._write(encode_head(response, length=len(response.body), close=True) + response.body)
        self._finish()

    def _finish(self) -> None:
        """Closes the connection; lingers first if the client may still be sending."""
        self._discard_pipelined()
        self._is_finished = True
        if self._transport.is_closing():
            return
        now = self._loop.time()
        if self._must_linger or (self._accepts_input and self._requests.receiving is not None):
            self._requests.receiving = None
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._set_reading(True)
            self.expires_at = now + LINGER_SECONDS
        else:
            self._transport.close()
            self.expires_at = now + self._limits.client_stall_timeout
        self._accepts_input = False

    def _discard_pipelined(self) -> None:
        self._requests.parsed.clear()
        self._requests.unparsed = b""
        self._refusal = None

    def _notify_disconnect(self) -> None:
        self._requests.abort()
        if self._current is not None:
            self._current.on_disconnect()

    # ---- flow control and deadlines

    def _update_flow(self) -> None:
        if self._transport.is_closing() or not (self._accepts_input or self._current):
            return
        receiving = self._requests.receiving
        body = receiving.body if receiving is not None else None
        is_unread = body is not None and body.size > MAX_UNREAD_BYTES and not body.is_read
        self._set_reading(not is_unread and not self._requests.parsed and not self._requests.unparsed)
        now = self._loop.time()
        if self._drained is not None:
            return  # `pause_writing` has set the deadline
        if body is not None and not self._is_paused:
            self.expires_at = min(now + self._limits.client_stall_timeout, self._body_deadline)
        elif self._current is not None:
            self.expires_at = NEVER
        elif self._requests.is_in_head:
            if self._timed_head != self._requests.heads_started:
                self._timed_head, self._head_deadline = (
                    self._requests.heads_started,
                    now + self._limits.request_head_timeout,
                )
            self.expires_at = self._head_deadline
        else:
            self.expires_at = now + self._limits.keep_alive_timeout

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading is self._is_paused:
            self._is_paused = not is_reading
            (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def _on_body_wanted(self) -> None:
        self._body_deadline = self._loop.time() + self._limits.request_body_timeout
        request = self._current
        if request is not None and not request.body.size and request.header("expect").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._update_flow()
