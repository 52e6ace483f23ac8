"""Encodes a response's status line and headers."""

from __future__ import annotations

import time
from http import HTTPStatus

from gpuscope.serve.http.messages import Response

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
