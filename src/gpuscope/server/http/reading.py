"""Requests out of the bytes of a connection: httptools parses, this keeps what it finds.

A request is there as soon as its head is; its body follows. What could be read in two ways is refused by the
parser, what is too long for a head by the count here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import httptools

from gpuscope.server.http.messages import Body, Header, Request

MOST_HEAD_BYTES = 64 * 1024


class NotUnderstood(Exception):
    """Nothing that comes after it on this connection can be read either."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class RequestReader:
    def __init__(self, peer: str, secure: bool, on_body_wanted: Callable[[], None]) -> None:
        self.whole: deque[tuple[Request, bool]] = deque()
        """Requests whose head is complete; with each, whether the connection is kept after it."""
        self.arriving: Request | None = None
        """The one whose body is not complete."""
        self.begun = 0
        """Counts the heads, also the one that is coming."""
        self.is_in_head = False
        self._peer = peer
        self._secure = secure
        self._on_body_wanted = on_body_wanted
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[Header] = []
        self._head_bytes: int | None = 0  # since the last request, or None while a body comes

    def feed(self, data: bytes) -> bool:
        """False if nothing more can come: another protocol is asked for, and we speak no other."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.whole:
                self.whole.append((self.whole.pop()[0], False))
            self.break_off()
            return False
        except httptools.HttpParserError:
            raise NotUnderstood("not an HTTP request", 400) from None
        if self._head_bytes is not None and self._head_bytes > MOST_HEAD_BYTES:
            raise NotUnderstood("the request's head is too large", 431)
        return True

    def break_off(self) -> None:
        if self.arriving is not None:
            self.arriving.body.break_off()
            self.arriving = None

    # What the parser calls; whatever is raised here would be taken for a mistake of the client's.

    def on_message_begin(self) -> None:
        self.begun += 1
        self.is_in_head = True
        self._target, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self._head_bytes = None
        raw_path, _, query = _origin_form(self._target).partition(b"?")
        path = (unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path).decode("utf-8", "replace")
        method, body = self._parser.get_method().decode("latin-1"), Body(self._on_body_wanted)
        request = Request(method, path, self._headers, query, raw_path, self._peer, self._secure, body)
        self.arriving = request
        keeps = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        self.whole.append((request, keeps))

    def on_body(self, part: bytes) -> None:
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
