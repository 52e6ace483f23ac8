"""The connection of a remote-write sender to its receiver: a POST, and the part of the response that the sender
needs.

Only the beginning of the response's text is kept. Every failure is an OSError.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuscope import __version__
from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
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
        parts = urlsplit(url)
        tls = (http.tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._http = BlockingHttp(
            HttpAddress(
                host=parts.hostname or "",
                port=parts.port or (443 if tls else 80),
                tls=tls,
                server_name=http.server_name,
                host_header=parts.netloc,
            ),
            timeout_seconds=timeout_seconds,
            max_body_bytes=MAX_BODY_BYTES,
            headers=[("user-agent", f"gpuscope/{__version__}"), *http.headers],
        )

    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> WriteResponse:
        response = self._http.request("POST", self._target, headers, body)
        text = " ".join(response.body[:MAX_TEXT_BYTES].decode("utf-8", "replace").split())
        return WriteResponse(response.status, text, response.header("retry-after"))

    def close(self) -> None:
        self._http.close()
