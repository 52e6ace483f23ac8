"""What a handler is given, and what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscope.limits import LIMITS_REACHED
from gpuscope.server.http.body_budget import FREE_BYTES, BodyBudget

TEXT = "text/plain; charset=utf-8"

Header = tuple[str, str]


def _nothing() -> None:
    pass


class BodyTooLarge(Exception):
    """More than the handler said it would take; the rest was not read."""


class ClientLeft(Exception):
    """The connection ended before the request's body did."""


class BodyRefused(Exception):
    """The body is malformed, too slow, or one too many. The connection answers instead of the handler."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class AnswerBroken(Exception):
    """The pieces of an answer end too early, and who makes them has said why; the client's connection ends."""


class Body:
    """What comes after a request's head, kept as it arrives. `on_read` is called when somebody begins to want
    it: of a body that nobody reads only the beginning is taken from the client. What is kept counts against
    `budget`, in the name of `address`, until `release`."""

    __slots__ = (
        "_address", "_broken_off", "_budget", "_content", "_counted", "_on_read", "_refusal", "_waiter",
        "is_complete", "is_read", "size",
    )  # fmt: skip

    def __init__(
        self, on_read: Callable[[], None] = _nothing, budget: BodyBudget | None = None, address: str = ""
    ) -> None:
        self.size = 0
        self.is_complete = False
        self.is_read = False
        self._broken_off = False
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
        self._content += part  # not a list: of a body sent byte by byte that would take forty times as much
        self._wake()

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def break_off(self) -> None:
        self._broken_off = True
        self._wake()

    def refuse(self, response: Response) -> None:
        """Whoever reads it gets BodyRefused; what came is dropped."""
        self._refusal = self._refusal or response
        self.release()
        self._wake()

    def release(self) -> None:
        """Nobody needs it any more."""
        self._content = bytearray()
        if self._budget is not None and self._counted:
            self._budget.give_back(self._address, self._counted)
            self._counted = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, most: int) -> bytes:
        """All of it, once; BodyTooLarge as soon as there is more than `most`, ClientLeft if it breaks off."""
        while not self.is_complete and self.size <= most and self._refusal is None:
            if self._broken_off:
                raise ClientLeft
            self._waiter = asyncio.get_running_loop().create_future()
            if not self.is_read:
                self.is_read = True
                self._on_read()
            await self._waiter
        self.is_read = False
        if self._refusal is not None:
            raise BodyRefused(self._refusal)
        content, self._content = self._content, bytearray()
        if self.size > most:
            raise BodyTooLarge
        return bytes(content)


@dataclass(slots=True, eq=False)
class Request:
    method: str
    path: str  # unquoted
    headers: Sequence[Header] = ()  # names in lower case, in their order
    query: bytes = b""  # as it came
    raw_path: bytes = b""
    peer: str = ""  # the address at the other end of the connection
    secure: bool = False
    body: Body = field(default_factory=Body)
    on_leave: Callable[[], None] = _nothing
    """Called if the client goes away while it waits for its answer."""
    state: dict[str, Any] = field(default_factory=dict)
    """What one handler leaves for the next."""

    def header(self, name: str, default: str = "") -> str:
        """The first of that name."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


@dataclass(slots=True, eq=False)
class Response:
    """The answer to one request; who passes it on may add headers. With `pieces` it goes out as they come, and
    `close` is called when they are out or nobody wants them."""

    body: bytes = b""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[Header, ...] = ()
    pieces: AsyncIterator[bytes] | None = None
    close: Callable[[], Awaitable[None]] | None = None


Handler = Callable[[Request], Awaitable[Response]]
Guard = Callable[[Request, str], Awaitable[Response | None]]
"""Answers instead of the handler, or lets the request through with None; the text is the client's address."""


def guarded(handler: Handler, guard: Guard) -> Handler:
    async def answer(request: Request) -> Response:
        return await guard(request, request.peer) or await handler(request)

    return answer


def text(words: str, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    """A line of plain text; what cannot be written as UTF-8 is replaced."""
    return Response(f"{words}\n".encode("utf-8", "replace"), status, TEXT, headers)
