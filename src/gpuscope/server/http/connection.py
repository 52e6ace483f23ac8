"""One client's connection: bytes in, requests to the handler one after the other, answers out.

A handler is a coroutine that is run at once as far as it goes without waiting: an answer that needs nobody else
is out before the event loop turns. Only a handler that waits becomes a task.

Clients are hostile. Heads have a size and a time limit, bodies a time limit and a shared budget of bytes, and
an answer must be taken at a minimum rate (`Limits`, group http). A body comes in only as far as it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.http.body_budget import BodyBudget
from gpuscope.server.http.client_log import ClientLog
from gpuscope.server.http.eager import run_eagerly
from gpuscope.server.http.fair_queue import FairQueue
from gpuscope.server.http.messages import AnswerBroken, BodyRefused, Handler, Request, Response, text
from gpuscope.server.http.pace import Pace
from gpuscope.server.http.request_parser import NotUnderstood, RequestReader
from gpuscope.server.http.response_head import encode_head, has_body

MAX_UNREAD_BYTES = 256 * 1024
"""Of a body that comes faster than it is read: the client is made to wait."""
MAX_COPIED_BYTES = 64 * 1024
"""Of an answer that goes out together with its head."""
LINGER_SECONDS = 5.0
"""For a client to stop sending what is not wanted: closed at once, it might never see the answer."""
NEVER = float("inf")


class Host(Protocol):
    """What a connection needs of the server it belongs to."""

    handler: Handler
    limits: Limits
    budget: BodyBudget
    log: ClientLog
    queue: FairQueue
    connections: set[Connection]
    is_stopping: bool
    accepts_peer: Callable[[asyncio.BaseTransport], bool] | None

    def leave(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, limit_key: str = "") -> None:
        self._host = host
        self._loop = loop
        self._limits = host.limits
        self.limit_key = limit_key
        self._transport: asyncio.Transport
        self._requests: RequestReader
        self._secure = False
        self._answering: Request | None = None
        self._keeps = True  # the connection, after this answer
        self._task: asyncio.Task[None] | None = None
        self._hears = True  # False: whatever still comes is not looked at
        self._lingers = False  # True: the client may be sending what is not looked at
        self._refusal: Response | None = None  # of what came last, after the answers to what came before
        self._is_finished = False
        self._is_paused = False
        self._taken: asyncio.Future[None] | None = None  # done when the client has taken what was sent
        self._pace = Pace()
        self._body_until = NEVER
        self._timed_head = 0  # the head that `_head_until` is for
        self._head_until = NEVER
        self.expires_at = loop.time() + self._limits.request_head_timeout

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio promises it for stream servers
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._requests = RequestReader(
            peer, self._secure, self._body_is_wanted, self._limits, self._host.budget, self.limit_key
        )
        self._host.connections.add(self)
        if self._host.accepts_peer is not None and not self._host.accepts_peer(transport):
            self._hears = False
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._host.leave(self)
        self._host.queue.leave(self)
        self._hears = False
        self._forget_read_ahead()
        self._client_left()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._hears:
            self._feed(data)
            self._go_on()

    def _feed(self, data: bytes) -> None:
        try:
            self._hears = self._requests.feed(data) and self._hears
        except NotUnderstood as error:
            self._refusal = text(str(error), error.status)
            self._requests.refuse_rest(self._refusal)
            self._lingers, self._hears = True, False

    def eof_received(self) -> bool:
        """Who stops sending may be gone, or still listen: what runs for it is told, and answers if it can."""
        self._hears = False
        self._client_left()
        is_owed = self._answering is not None or self._has_more()
        return is_owed and not self._secure  # TLS knows no half of a connection

    def pause_writing(self) -> None:
        self._taken = self._loop.create_future()
        self.expires_at = self._pace.begin_to_wait(self._loop.time(), self._limits)

    def resume_writing(self) -> None:
        if self._taken is not None:
            self._pace.end_to_wait(self._loop.time())
            if not self._taken.done():  # it was cancelled with the task that waited for it
                self._taken.set_result(None)
            self._taken = None
            self._go_on()

    # ---- what the server calls

    @property
    def is_busy(self) -> bool:
        return self._answering is not None

    @property
    def is_waiting(self) -> bool:
        """For the client to send a request: it can be closed with little harm."""
        return self._answering is None and self._requests.arriving is None and self._taken is None

    @property
    def has_asked(self) -> bool:
        """That the client has sent the whole head of a request, some time."""
        return self._requests.begun > self._requests.is_in_head

    def close(self) -> None:
        """After the answer that is being made, if there is one."""
        self._keeps = False
        self._forget_read_ahead()
        if self._answering is None:
            self._finish()

    def expire(self, now: float) -> None:
        """Ends a connection whose time is over; not while its client takes what was sent, fast enough."""
        arriving = self._requests.arriving
        if arriving is not None and arriving is self._answering and arriving.body.is_read:
            self._refuse_slow_body(arriving, now)
            return
        left = self._transport.get_write_buffer_size()
        if left and self._pace.is_fast_enough(left, now, self._limits):
            self.expires_at = now + self._limits.client_stall_timeout
            return
        LIMITS_REACHED.count(self._reached(left))
        self.abort()

    def _refuse_slow_body(self, request: Request, now: float) -> None:
        """An answer, where the client could still take it: it says why, and a sender tries again."""
        is_over = now >= self._body_until
        LIMITS_REACHED.count("request_body_timeout" if is_over else "client_stall_timeout")
        self._lingers, self._hears = True, False
        self.expires_at = now + LINGER_SECONDS
        request.body.refuse(text("the request's body took too long", 408))

    def _reached(self, left: int) -> str:
        """The limit that ends the connection: which of its clocks ran."""
        if left:
            return "min_answer_rate"
        if self._requests.is_in_head or not self._requests.begun:
            return "request_head_timeout"
        return "keep_alive_timeout"

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # ---- answering

    def take_turn(self) -> None:
        self._answer_next()
        self._settle()

    def _answer_what_came(self) -> None:
        """The first request at once, unless others have waited longer; pipelined ones in turn with others'."""
        if self._host.queue.must_queue():
            if self._can_answer():
                self._host.queue.join(self)
        else:
            self._answer_next()

    def _can_answer(self) -> bool:
        """That a request is there, and no answer is on its way before it."""
        return self._answering is None and self._taken is None and self._has_more()

    def _has_more(self) -> bool:
        return bool(self._requests.whole or self._requests.unfed or self._refusal)

    def _answer_next(self) -> None:
        if not self._can_answer():
            return
        requests = self._requests
        if not requests.whole and requests.unfed:
            self._feed(b"")
        if not requests.whole:
            if self._refusal is not None and not self._is_finished:
                self._refuse(self._refusal)
            return
        self._answering, self._keeps = requests.whole.popleft()
        self._task = run_eagerly(self._exchange(self._answering), self._loop)
        if self._task is not None:
            self._task.add_done_callback(self._task_is_done)
        self._host.queue.answered()
        if self._can_answer():
            self._host.queue.join(self)

    def _task_is_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._go_on()

    def _go_on(self) -> None:
        self._answer_what_came()
        self._settle()

    async def _exchange(self, request: Request) -> None:
        self._pace.begin_answer()
        try:
            response = await self._host.handler(request)
        except BodyRefused as refused:
            response = refused.response
        except Exception as error:
            self._host.log.error("failed requests", "serving %a failed", request.path[:200], error=error)
            response = text("this page failed; the log says why", 500)
        try:
            if response.pieces is None:
                self._send(request, response)
            else:
                await self._stream(request, response)
        except AnswerBroken:
            self._transport.abort()
        except Exception as error:
            # The head may be out: that the answer breaks off is all that can still be said.
            self._host.log.error("failed answers", "answering %a failed", request.path[:200], error=error)
            self._transport.abort()
        finally:
            self._answering = None
            request.body.release()
            if not self._keeps or not self._expects_more():
                self._finish()

    def _send(self, request: Request, response: Response) -> None:
        head = encode_head(response, length=len(response.body), close=self._closes_after(request))
        body = response.body if request.method != "HEAD" and has_body(response.status) else b""
        if len(body) <= MAX_COPIED_BYTES:
            self._write(head + body)  # one packet, and a client that wakes up once
        else:
            self._write(head)
            self._write(body)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # asyncio logs a line for each write to a lost connection
            self._pace.written += len(data)
            self._transport.write(data)

    async def _stream(self, request: Request, response: Response) -> None:
        """In chunks, unless the answer says its length or the connection's end will say it."""
        close = self._closes_after(request)
        chunked = not close and all(name != "content-length" for name, _ in response.headers)
        try:
            self._write(encode_head(response, chunked=chunked, close=close))
            if request.method != "HEAD" and has_body(response.status) and response.pieces is not None:
                async for piece in response.pieces:
                    if self._transport.is_closing():
                        return
                    if piece:  # an empty chunk would be the last one
                        self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    if self._taken is not None:
                        await self._taken
                if chunked:
                    self._write(b"0\r\n\r\n")
        finally:
            if response.close is not None:
                await response.close()

    def _closes_after(self, request: Request) -> bool:
        if not request.body.is_complete or self._host.is_stopping or not self._expects_more():
            self._keeps = False
        return not self._keeps

    def _expects_more(self) -> bool:
        return self._hears or self._has_more()

    # ---- ending

    def _refuse(self, response: Response) -> None:
        """The last word on a connection that cannot be understood."""
        if not self._transport.is_closing():
            self._write(encode_head(response, length=len(response.body), close=True) + response.body)
        self._finish()

    def _finish(self) -> None:
        """Closes; not before the client has seen that nobody listens, if it still has something to say."""
        self._forget_read_ahead()
        self._is_finished = True
        if self._transport.is_closing():
            return
        now = self._loop.time()
        if self._lingers or (self._hears and self._requests.arriving is not None):
            self._requests.arriving = None
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._read(True)
            self.expires_at = now + LINGER_SECONDS
        else:
            self._transport.close()
            self.expires_at = now + self._limits.client_stall_timeout
        self._hears = False

    def _forget_read_ahead(self) -> None:
        self._requests.whole.clear()
        self._requests.unfed = b""
        self._refusal = None

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
        is_behind = body is not None and body.size > MAX_UNREAD_BYTES and not body.is_read
        self._read(not is_behind and not self._requests.whole and not self._requests.unfed)
        now = self._loop.time()
        if self._taken is not None:
            return  # the clock of `pause_writing` runs
        if body is not None and not self._is_paused:
            self.expires_at = min(now + self._limits.client_stall_timeout, self._body_until)
        elif self._answering is not None:
            self.expires_at = NEVER
        elif self._requests.is_in_head:
            if self._timed_head != self._requests.begun:
                self._timed_head, self._head_until = (
                    self._requests.begun,
                    now + self._limits.request_head_timeout,
                )
            self.expires_at = self._head_until
        else:
            self.expires_at = now + self._limits.keep_alive_timeout

    def _read(self, wanted: bool) -> None:
        if wanted is self._is_paused:
            self._is_paused = not wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _body_is_wanted(self) -> None:
        self._body_until = self._loop.time() + self._limits.request_body_timeout
        request = self._answering
        if request is not None and not request.body.size and request.header("expect").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._settle()
