"""The head of an answer, as bytes."""

from __future__ import annotations

import time
from http import HTTPStatus

from gpuscope.server.http.messages import Response

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}" for one in HTTPStatus}
_STATUS_LINES[499] = "HTTP/1.1 499 Client Closed Request"  # Prometheus' status for a query that was left
_DATE = "date: %a, %d %b %Y %H:%M:%S GMT"  # in English: nothing here sets a locale for times
_AS_IT_IS = "x-content-type-options: nosniff"
"""No browser shall take an answer for something else than it says it is."""


class _Date:
    """The `date` line, made anew when the second is another."""

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
    lines = [_STATUS_LINES.get(response.status) or f"HTTP/1.1 {response.status} ", _date.now(), _AS_IT_IS]
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
