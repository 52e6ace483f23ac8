"""The head of an answer, as bytes."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

from gpuscope.server.http.messages import Header, Response

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n" for one in HTTPStatus}
_STATUS_LINES[499] = "HTTP/1.1 499 Client Closed Request\r\n"  # Prometheus' status for a query that was left


_AS_IT_IS = "x-content-type-options: nosniff\r\n"
"""No browser shall take an answer for something else than it says it is."""


class _Date:
    """The `date` line, made anew when the second is another."""

    second = 0
    line = ""

    def now(self) -> str:
        second = int(time.time())
        if second != self.second:
            self.second, self.line = second, f"date: {formatdate(second, usegmt=True)}\r\n"
        return self.line


_date = _Date()


def has_body(status: int) -> bool:
    return status >= 200 and status not in (204, 304)


def encode_head(response: Response, *, close: bool, length: int | None = None, chunked: bool = False) -> bytes:
    status = _STATUS_LINES.get(response.status) or f"HTTP/1.1 {response.status} \r\n"
    lines = [status, _date.now(), _AS_IT_IS]
    if has_body(response.status):
        lines.append(f"content-type: {response.content_type}\r\n")
        if length is not None:
            lines.append(f"content-length: {length}\r\n")
        if chunked:
            lines.append("transfer-encoding: chunked\r\n")
    lines += [_line(header) for header in response.headers]
    lines.append("connection: close\r\n\r\n" if close else "\r\n")
    return "".join(lines).encode("latin-1", "replace")


def _line(header: Header) -> str:
    name, value = header
    if "\n" in value or "\r" in value:
        raise ValueError(f"a line break in the header {name}")
    return f"{name}: {value}\r\n"
