"""The connection of a remote-write sender to its receiver: a POST, and the part of the response that the sender
needs.

Only the beginning of the response's text is kept. Every failure is an OSError.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.base.blocking_http import open_url
from gpuscope.base.http_config import HttpConfig

MAX_TEXT_BYTES = 512
MAX_BODY_BYTES = 1 << 20
TIMEOUT_SECONDS = 30.0
"""Prometheus' own `remote_timeout`."""


@dataclass(frozen=True, slots=True)
class WriteResponse:
    status: int
    text: str = ""
    retry_after: str = ""


class PostClient:
    """Not for several threads at once."""

    def __init__(self, url: str, http: HttpConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._http, self._target = open_url(
            url, http, timeout_seconds=timeout_seconds, max_body_bytes=MAX_BODY_BYTES
        )

    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> WriteResponse:
        response = self._http.request("POST", self._target, headers, body)
        text = " ".join(response.body[:MAX_TEXT_BYTES].decode("utf-8", "replace").split())
        return WriteResponse(response.status, text, response.header("retry-after"))

    def close(self) -> None:
        self._http.close()
