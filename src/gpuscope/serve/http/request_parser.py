"""Parses the bytes of a connection into requests, with httptools.

A request is available as soon as its head is complete; its body follows. httptools rejects ambiguous framing;
this module enforces the size limit of heads. Bytes are parsed in slices, so that one read full of pipelined
requests does not become thousands of request objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import httptools

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http.connection_limits import RequestBodyBudget
from gpuscope.serve.http.messages import Header, Request, RequestBody, Response

SLICE_BYTES = 4096
MAX_READ_AHEAD = 16
"""Pipelined requests that are parsed ahead of the response to the first; the rest stays unparsed."""


class MalformedRequest(Exception):
    """The request cannot be parsed, and neither can anything after it on this connection."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class RequestParser:
    def __init__(
        self,
        peer: str,
        secure: bool,
        on_body_wanted: Callable[[], None],
        limits: Limits,
        budget: RequestBodyBudget | None = None,
        limit_key: str = "",
    ) -> None:
        self.parsed: deque[tuple[Request, bool]] = deque()
        """Requests whose head is complete, each with its keep-alive flag."""
        self.receiving: Request | None = None
        """The request whose body is not complete yet."""
        self.heads_started = 0
        """Number of request heads so far, including an incomplete one."""
        self.is_in_head = False
        self.unparsed = b""
        """Bytes of pipelined requests that are not parsed yet."""
        self._peer = peer
        self._secure = secure
        self._on_body_wanted = on_body_wanted
        self._max_head_bytes = limits.max_request_head_bytes
        self._budget = budget
        self._limit_key = limit_key
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[Header] = []
        self._head_bytes: int | None = 0  # of the current head; None while a body is received
        self._is_head_too_large = False
        self._has_unknown_coding = False
        self._framing_bytes = 0  # of chunk extensions and trailers

    def feed(self, data: bytes) -> bool:
        """Returns False if the client requests a protocol upgrade, which is not supported."""
        if len(data) <= SLICE_BYTES and not self.unparsed:
            return self._feed_slice(data)
        data, self.unparsed = self.unparsed + data, b""
        for begin in range(0, len(data), SLICE_BYTES):
            if len(self.parsed) >= MAX_READ_AHEAD:
                self.unparsed = data[begin:]
                return True
            if not self._feed_slice(data[begin : begin + SLICE_BYTES]):
                return False
        return True

    def _feed_slice(self, data: bytes) -> bool:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.parsed:
                self.parsed.append((self.parsed.pop()[0], False))
            self.abort()
            return False
        except httptools.HttpParserError:
            if self._has_unknown_coding:
                raise MalformedRequest("the only supported transfer coding is chunked", 501) from None
            if not self._is_head_too_large:
                raise MalformedRequest("not an HTTP request", 400) from None
        counted = self._framing_bytes if self._head_bytes is None else self._head_bytes
        if counted > self._max_head_bytes or self._is_head_too_large:
            LIMITS_REACHED.count("max_request_head_bytes")
            raise MalformedRequest("the request's head is too large", 431)
        return True

    def refuse(self, response: Response) -> None:
        """Stops parsing; reading the incomplete body raises BodyRefused with `response`."""
        self.unparsed = b""
        if self.receiving is not None:
            self.receiving.body.refuse(response)

    def abort(self) -> None:
        if self.receiving is not None:
            self.receiving.body.abort()
            self.receiving = None

    # Callbacks of httptools. An exception here becomes an HttpParserError: a mistake of the client.

    def on_message_begin(self) -> None:
        self.heads_started += 1
        self.is_in_head = True
        self._target, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers after a chunked body are dropped (RFC 9110, 6.5.1): a proxy that removes the header
        # X-Forwarded-User may forward a trailer of that name.
        if self.is_in_head:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def _check_exact_size(self) -> None:
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._max_head_bytes:
            self._is_head_too_large = True
            raise ValueError("the request's head is too large")

    def _check_transfer_coding(self) -> None:
        # httptools accepts several codings if chunked is the last: the body would be misread, and differently
        # from a proxy in front, which allows request smuggling (RFC 9112, 6.1).
        codings = [value.strip().lower() for name, value in self._headers if name == "transfer-encoding"]
        if codings and codings != ["chunked"]:
            self._has_unknown_coding = True
            raise ValueError("a transfer coding other than chunked")

    def on_headers_complete(self) -> None:
        self._check_transfer_coding()
        if (self._head_bytes or 0) + SLICE_BYTES > self._max_head_bytes:
            self._check_exact_size()  # `_head_bytes` counts whole slices
        self.is_in_head = False
        self._head_bytes, self._framing_bytes = None, 0
        raw_path, _, query = _origin_form(self._target).partition(b"?")
        path = (unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path).decode("utf-8", "replace")
        method, body = self._parser.get_method().decode("latin-1"), self._new_body()
        request = Request(method, path, self._headers, query, raw_path, self._peer, self._secure, body)
        self.receiving = request
        keeps = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        self.parsed.append((request, keeps))

    def _new_body(self) -> RequestBody:
        return RequestBody(self._on_body_wanted, self._budget, self._limit_key)

    def on_body(self, part: bytes) -> None:
        self._framing_bytes = 0
        if self.receiving is not None:
            self.receiving.body.add(part)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self.receiving is not None:
            self.receiving.body.end()
            self.receiving = None


def _origin_form(target: bytes) -> bytes:
    """The path and query of a request target, which may be in absolute form (RFC 9112, 3.2.2)."""
    if target.startswith(b"/"):
        return target.partition(b"#")[0] if b"#" in target else target
    try:
        parts = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return target
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
