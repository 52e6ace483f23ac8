"""Requests out of the bytes of a connection: httptools parses, this keeps what it finds.

A request is there as soon as its head is; its body follows. What could be read in two ways is refused by the
parser, what is too long for a head by the count here. Bytes go to the parser in slices, so that one read full
of pipelined requests does not become thousands of request objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import httptools

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.http.body_budget import BodyBudget
from gpuscope.server.http.messages import Body, Header, Request, Response

SLICE_BYTES = 4096
MAX_READ_AHEAD = 16
"""Pipelined requests that are parsed before the first of them is answered; the rest stays bytes."""


class NotUnderstood(Exception):
    """Nothing that comes after it on this connection can be read either."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class RequestReader:
    def __init__(
        self,
        peer: str,
        secure: bool,
        on_body_wanted: Callable[[], None],
        limits: Limits,
        budget: BodyBudget | None = None,
        limit_key: str = "",
    ) -> None:
        self.whole: deque[tuple[Request, bool]] = deque()
        """Requests whose head is complete; with each, whether the connection is kept after it."""
        self.arriving: Request | None = None
        """The one whose body is not complete."""
        self.begun = 0
        """Counts the heads, also the one that is coming."""
        self.is_in_head = False
        self.unfed = b""
        """Pipelined requests that were not parsed yet."""
        self._peer = peer
        self._secure = secure
        self._on_body_wanted = on_body_wanted
        self._max_head_bytes = limits.max_request_head_bytes
        self._budget = budget
        self._limit_key = limit_key
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[Header] = []
        self._head_bytes: int | None = 0  # since the last request, or None while a body comes
        self._is_head_too_large = False
        self._is_coding_unknown = False
        self._without_body = 0  # bytes of chunk extensions and trailers

    def feed(self, data: bytes) -> bool:
        """False if nothing more can come: another protocol is asked for, and we speak no other."""
        if len(data) <= SLICE_BYTES and not self.unfed:
            return self._feed_slice(data)
        data, self.unfed = self.unfed + data, b""
        for begin in range(0, len(data), SLICE_BYTES):
            if len(self.whole) >= MAX_READ_AHEAD:
                self.unfed = data[begin:]
                return True
            if not self._feed_slice(data[begin : begin + SLICE_BYTES]):
                return False
        return True

    def _feed_slice(self, data: bytes) -> bool:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        else:
            self._without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.whole:
                self.whole.append((self.whole.pop()[0], False))
            self.break_off()
            return False
        except httptools.HttpParserError:
            if self._is_coding_unknown:
                raise NotUnderstood("the only transfer coding understood is chunked", 501) from None
            if not self._is_head_too_large:
                raise NotUnderstood("not an HTTP request", 400) from None
        counted = self._without_body if self._head_bytes is None else self._head_bytes
        if counted > self._max_head_bytes or self._is_head_too_large:
            LIMITS_REACHED.count("max_request_head_bytes")
            raise NotUnderstood("the request's head is too large", 431)
        return True

    def refuse_rest(self, response: Response) -> None:
        """Nothing more is read; whoever waits for the body that was coming is given `response` to answer."""
        self.unfed = b""
        if self.arriving is not None:
            self.arriving.body.refuse(response)

    def break_off(self) -> None:
        if self.arriving is not None:
            self.arriving.body.break_off()
            self.arriving = None

    # What the parser calls; whatever is raised here is a mistake of the client's.

    def on_message_begin(self) -> None:
        self.begun += 1
        self.is_in_head = True
        self._target, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers after a chunked body are dropped (RFC 9110, 6.5.1): a proxy that removes a header such as
        # X-Forwarded-User lets a trailer of that name pass.
        if self.is_in_head:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def _check_exact_size(self) -> None:
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._max_head_bytes:
            self._is_head_too_large = True
            raise ValueError("the request's head is too large")

    def _check_transfer_coding(self) -> None:
        # The parser is content if chunked is the last of several: the body would be taken for what it is not,
        # and be read in another way than by a proxy (RFC 9112, 6.1).
        codings = [value.strip().lower() for name, value in self._headers if name == "transfer-encoding"]
        if codings and codings != ["chunked"]:
            self._is_coding_unknown = True
            raise ValueError("a transfer coding other than chunked")

    def on_headers_complete(self) -> None:
        self._check_transfer_coding()
        if (self._head_bytes or 0) + SLICE_BYTES > self._max_head_bytes:
            self._check_exact_size()  # the count of slices is right to one slice
        self.is_in_head = False
        self._head_bytes, self._without_body = None, 0
        raw_path, _, query = _origin_form(self._target).partition(b"?")
        path = (unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path).decode("utf-8", "replace")
        method, body = self._parser.get_method().decode("latin-1"), self._new_body()
        request = Request(method, path, self._headers, query, raw_path, self._peer, self._secure, body)
        self.arriving = request
        keeps = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        self.whole.append((request, keeps))

    def _new_body(self) -> Body:
        return Body(self._on_body_wanted, self._budget, self._limit_key)

    def on_body(self, part: bytes) -> None:
        self._without_body = 0
        if self.arriving is not None:
            self.arriving.body.add(part)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self.arriving is not None:
            self.arriving.body.end()
            self.arriving = None


def _origin_form(target: bytes) -> bytes:
    """The path and query of a request's target, which a client of a proxy may send with a host before it."""
    if target.startswith(b"/"):
        return target.partition(b"#")[0] if b"#" in target else target
    try:
        parts = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return target
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
