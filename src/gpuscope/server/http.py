"""A small HTTP/1.1 server for the agent: asyncio for the sockets, h11 for the protocol.

Requests are hostile: h11 bounds and checks the head, a body is refused, a connection that says nothing is
closed, and there are only so many connections. Handlers are plain functions from `Request` to `Response`;
what they answer is ready bytes, so that a scrape costs a dictionary look-up and a write.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import h11

log = logging.getLogger("gpuscope.http")

IDLE_SECONDS = 60.0
MOST_CONNECTIONS = 256

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: Mapping[str, str]  # names in lower case; of repeated ones the last


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = field(default=())


Handler = Callable[[Request], Response]
Guard = Callable[[Request], Awaitable[Response | None]]
"""Answers instead of the handler, or lets the request through with None."""


class Server:
    """One listening address with its routes. Must be started and stopped inside a running event loop."""

    def __init__(
        self, routes: Mapping[str, Handler], *, guard: Guard | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.routes = routes
        self.guard = guard
        self.connections: set[_Connection] = set()
        self._tls = tls
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port: a new one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: _Connection(self), host or None, port, ssl=self._tls, reuse_address=True
        )
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            for connection in list(self.connections):
                connection.abort()
            await self._listening.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport
        self._idle: asyncio.TimerHandle | None = None
        self._busy: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio promises it for stream servers
        self._transport = transport
        if len(self._server.connections) >= MOST_CONNECTIONS:
            transport.abort()
            return
        self._server.connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._stop_waiting()
        if self._busy is not None:
            self._busy.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._busy is None:
            self._advance()

    def eof_received(self) -> bool:
        self._http.receive_data(b"")
        if self._busy is None:
            self._advance()
        return True  # an answer may still be on its way; we close when it is out

    def _advance(self) -> None:
        """Answers every whole request that has arrived."""
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    self._transport.close()
                    return
                if isinstance(event, h11.Data):
                    self._refuse(Response(b"no request body is taken here\n", 413))
                    return
                if isinstance(event, h11.Request) and not self._answer(event):
                    return
                if self._http.our_state is h11.MUST_CLOSE:
                    self._transport.close()
                    return
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                    self._wait_for_request()
        except h11.RemoteProtocolError as error:
            self._refuse(Response(b"not an HTTP request\n", error.error_status_hint or 400))

    def _answer(self, event: h11.Request) -> bool:
        """True if the answer is out; False if it comes later, from a task."""
        self._stop_waiting()
        request = _to_request(event)
        if event.method not in (b"GET", b"HEAD"):
            self._send(Response(b"only GET is served here\n", 405, headers=(("allow", "GET, HEAD"),)), event)
            return True
        if self._server.guard is None:
            self._send(self._handle(request), event)
            return True
        self._busy = asyncio.get_running_loop().create_task(self._answer_guarded(request, event))
        return False

    async def _answer_guarded(self, request: Request, event: h11.Request) -> None:
        assert self._server.guard is not None  # noqa: S101 - only called when there is one
        refusal = await self._server.guard(request)
        self._busy = None
        self._send(refusal or self._handle(request), event)
        self._advance()

    def _handle(self, request: Request) -> Response:
        handler = self._server.routes.get(request.path)
        if handler is None:
            known = ", ".join(sorted(self._server.routes))
            return Response(f"nothing here; there are {known}\n".encode(), 404)
        try:
            return handler(request)
        except Exception:
            log.exception("serving %s failed", request.path)
            return Response(b"this page failed; the log says why\n", 500)

    def _send(self, response: Response, event: h11.Request) -> None:
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            ("x-content-type-options", "nosniff"),
            *response.headers,
        ]
        head = h11.Response(
            status_code=response.status, headers=headers, reason=_REASONS.get(response.status, b"")
        )
        parts = [self._http.send(head) or b""]
        if event.method != b"HEAD":
            parts.append(self._http.send(h11.Data(data=response.body)) or b"")
        parts.append(self._http.send(h11.EndOfMessage()) or b"")
        self._transport.write(b"".join(parts))

    def _refuse(self, response: Response) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(response, h11.Request(method=b"GET", target=b"/", headers=[("host", "-")]))
        self._transport.close()

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._transport.close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _to_request(event: h11.Request) -> Request:
    path = event.target.decode("ascii", "replace").split("?", 1)[0]
    return Request(path, {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers})
