"""Requests and responses, the arguments and results of handlers; and which handler a request goes to."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.serve.http.connection_limits import FREE_BYTES, RequestBodyBudget

TEXT = "text/plain; charset=utf-8"

Header = tuple[str, str]


def _do_nothing() -> None:
    pass


class BodyTooLarge(Exception):
    """The body exceeds the handler's `max_bytes`; the rest was not read."""


class ClientDisconnected(Exception):
    """The connection ended before the request's body did."""


class BodyRefused(Exception):
    """The body is malformed, too slow, or over the shared budget. The connection sends `response`."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class ResponseAborted(Exception):
    """The response's pieces end early; the producer has logged why. The connection is aborted."""


class RequestBody:
    """A request's body, buffered as it arrives. `on_read` is called when a handler starts to read it: until
    then only the beginning is read from the socket. Buffered bytes count against `budget`, under `address`,
    until `release`."""

    __slots__ = (
        "_address",
        "_budget",
        "_content",
        "_counted",
        "_is_aborted",
        "_on_read",
        "_refusal",
        "_waiter",
        "is_complete",
        "is_read",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        on_read: Callable[[], None] = _do_nothing,
        budget: RequestBodyBudget | None = None,
        address: str = "",
    ) -> None:
        self.size = 0
        self.is_complete = False
        self.is_read = False
        self._is_aborted = False
        self._refusal: Response | None = None
        self._on_read = on_read
        self._budget = budget
        self._address = address
        self._counted = 0
        self._content = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._refusal is not None:
            return
        if self._budget is not None and self.size > FREE_BYTES:
            count = min(len(part), self.size - FREE_BYTES)
            if not self._budget.take(self._address, count):
                LIMITS_REACHED.count("max_request_bodies_bytes")
                self.refuse(text("too many large requests at once; try again", 503, (("retry-after", "5"),)))
                return
            self._counted += count
        self._content += part  # not a list: for a body sent byte by byte that takes forty times the memory
        self._wake()

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def abort(self) -> None:
        self._is_aborted = True
        self._wake()

    def refuse(self, response: Response) -> None:
        """Makes `read` raise BodyRefused and drops the buffered bytes."""
        self._refusal = self._refusal or response
        self.release()
        self._wake()

    def release(self) -> None:
        """Drops the buffered bytes and returns them to the budget."""
        self._content = bytearray()
        if self._budget is not None and self._counted:
            self._budget.release(self._address, self._counted)
            self._counted = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, max_bytes: int) -> bytes:
        """Returns the whole body, once; raises BodyTooLarge or, for a truncated body, ClientDisconnected."""
        while not self.is_complete and self.size <= max_bytes and self._refusal is None:
            if self._is_aborted:
                raise ClientDisconnected
            self._waiter = asyncio.get_running_loop().create_future()
            if not self.is_read:
                self.is_read = True
                self._on_read()
            await self._waiter
        self.is_read = False
        if self._refusal is not None:
            raise BodyRefused(self._refusal)
        content, self._content = self._content, bytearray()
        if self.size > max_bytes:
            raise BodyTooLarge
        return bytes(content)


@dataclass(slots=True, eq=False)
class Request:
    method: str
    path: str  # unquoted
    headers: Sequence[Header] = ()  # names in lower case, in the order received
    query: bytes = b""  # not decoded
    raw_path: bytes = b""
    peer: str = ""  # the address at the other end of the connection
    secure: bool = False
    body: RequestBody = field(default_factory=RequestBody)
    on_disconnect: Callable[[], None] = _do_nothing
    """Called if the client disconnects before the response is complete."""
    state: dict[str, Any] = field(default_factory=dict)
    """Values that one handler passes to the next."""
    received_at: float = field(default_factory=time.monotonic)
    """When its head was complete; it may have waited since."""

    def header(self, name: str, default: str = "") -> str:
        """The first value of this header."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


@dataclass(slots=True, eq=False)
class Response:
    """The response to one request; wrapping handlers may add headers. With `pieces` the body is streamed, and
    `close` is called when streaming ends for any reason."""

    body: bytes = b""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[Header, ...] = ()
    pieces: AsyncIterator[bytes] | None = None
    close: Callable[[], Awaitable[None]] | None = None
    is_endless: bool = False
    """A stream of events: a server that stops calls the request's `on_disconnect` to end it."""


Handler = Callable[[Request], Awaitable[Response]]
RequestGuard = Callable[[Request, str], Awaitable[Response | None]]
"""Checks a request from a client address: returns a refusal, or None to pass it to the handler."""


def with_guard(handler: Handler, guard: RequestGuard) -> Handler:
    async def answer(request: Request) -> Response:
        return await guard(request, request.peer) or await handler(request)

    return answer


def text(line: str, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    """A response of one line of plain text; characters that UTF-8 cannot encode are replaced."""
    return Response(f"{line}\n".encode("utf-8", "replace"), status, TEXT, headers)


# Encodes a response's status line and headers.

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_STATUS_LINES[499] = "HTTP/1.1 499 Client Closed Request"  # Prometheus' status for a cancelled query
_DATE = "date: %a, %d %b %Y %H:%M:%S GMT"  # in English: the program sets no locale
_NO_SNIFF = "x-content-type-options: nosniff"
"""Browsers must not guess another content type than the declared one."""


class _Date:
    """The `date` line, rendered once per second."""

    second = 0
    line = ""

    def now(self) -> str:
        second = int(time.time())
        if second != self.second:
            self.second, self.line = second, time.strftime(_DATE, time.gmtime(second))
        return self.line


_date = _Date()


def has_body(status: int) -> bool:
    return status >= 200 and status not in (204, 304)


def encode_head(response: Response, *, close: bool, length: int | None = None, chunked: bool = False) -> bytes:
    lines = [_STATUS_LINES.get(response.status) or f"HTTP/1.1 {response.status} ", _date.now(), _NO_SNIFF]
    if has_body(response.status):
        lines.append(f"content-type: {response.content_type}")
        if length is not None:
            lines.append(f"content-length: {length}")
        if chunked:
            lines.append("transfer-encoding: chunked")
    lines += [f"{name}: {value}" for name, value in response.headers]
    if close:
        lines.append("connection: close")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a line break in a header")
    return f"{text}\r\n\r\n".encode("latin-1", "replace")


# Selects the handler for a request by path and method.
#
# A path is exact, or contains `{name}` for one segment, or ends in `{name...}` for all remaining segments.
# Exact paths match before patterns; among patterns the first match wins. Unmatched paths go to the fallback
# handler.

READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    handler: Handler
    methods: Sequence[str] = READS


def not_allowed(methods: Iterable[str]) -> Response:
    """The 405 response for a path that accepts only these methods."""
    return text("Method Not Allowed", 405, (("allow", ", ".join(sorted(methods))),))


async def not_found(request: Request) -> Response:
    return text("404 page not found", 404)


class Router:
    """A handler that dispatches to routes, and to `fallback` for paths that no route matches."""

    def __init__(self, routes: Sequence[Route], fallback: Handler = not_found) -> None:
        self._fallback = fallback
        self._exact: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        for route in routes:
            if "{" in route.path:
                self._patterns.append((path_pattern(route.path), route))
                continue
            for method in route.methods:
                self._exact.setdefault((route.path, method), route.handler)

    async def __call__(self, request: Request) -> Response:
        handler = self._exact.get((request.path, request.method)) or self._by_pattern(request)
        return await handler(request)

    def _by_pattern(self, request: Request) -> Handler:
        for pattern, route in self._patterns:
            if request.method in route.methods and pattern.fullmatch(request.path):
                return route.handler
        methods = self._methods(request.path)
        if not methods:
            return self._fallback

        async def refuse(request: Request) -> Response:
            return not_allowed(methods)

        return refuse

    def _methods(self, path: str) -> set[str]:
        exact = {method for known, method in self._exact if known == path}
        return exact.union(*(route.methods for pattern, route in self._patterns if pattern.fullmatch(path)))


def path_pattern(path: str) -> re.Pattern[str]:
    segments = re.split(r"(\{\w+(?:\.\.\.)?\})", path)
    return re.compile("".join(map(_segment, segments)), re.DOTALL)


def _segment(text: str) -> str:
    if not text.startswith("{"):
        return re.escape(text)
    return ".*" if text.endswith("...}") else "[^/]+"
