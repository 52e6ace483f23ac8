"""The HTTP client of one target: `PlainHttpClient` for `http://`, httpx2 for TLS and for targets that redirect.

Both send the same request, which httpx2 builds, and return the same kind of response. httpx2's client is made
when it is first needed: one takes about 50 kB.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import httpx2

from gpuscope import __version__
from gpuscope.base.http_config import HttpConfig
from gpuscope.history.scrape.plain_http import PlainHttpClient, PlainHttpError

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
READ_BYTES = 1 << 16
CLIENT_ERRORS = (
    PlainHttpError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
    ValueError,
    OSError,
)
"""What `TargetClient.get` raises for a target that cannot be fetched."""
_REDIRECTS = (301, 302, 303, 307, 308)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request


class ScrapeResponse(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str: ...

    def header(self, name: str) -> str:
        """The value, "" if there is none; `name` is in lower case."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it was sent, not decompressed."""
        ...


def new_client(http: HttpConfig, *, trust_env: bool = False) -> httpx2.AsyncClient:
    """An HTTP client for one job's targets or one engine. Scrapes ignore the environment's proxy settings."""
    return httpx2.AsyncClient(
        verify=http.tls or _default_tls(),
        follow_redirects=http.follow_redirects,
        max_redirects=10,
        trust_env=trust_env,
        timeout=None,  # the caller limits the whole scrape
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=300),
        headers={"user-agent": f"gpuscope/{__version__}", **dict(http.headers)},
    )


_shared_tls: list[ssl.SSLContext] = []


def _default_tls() -> ssl.SSLContext:
    # A context with the system's certificates takes megabytes, so all targets share one.
    if not _shared_tls:
        _shared_tls.append(ssl.create_default_context())
    return _shared_tls[0]


class TargetClient:
    """Requests one URL. Not for concurrent use."""

    def __init__(
        self, url: str, http: HttpConfig, *, timeout_seconds: float, server_name: str = "", plain: bool = True
    ) -> None:
        """`plain=False` uses httpx2 also for an `http://` URL."""
        self.url = url
        self._http = http
        self._server_name = server_name
        self._headers = {
            "accept": ACCEPT,
            "accept-encoding": "gzip",
            "x-prometheus-scrape-timeout-seconds": f"{timeout_seconds:g}",
        }
        self._use_plain = plain and url.startswith("http://")
        self._plain: PlainHttpClient | None = None
        self._full: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def get(self) -> AsyncIterator[ScrapeResponse]:
        """Raises one of `CLIENT_ERRORS`. The caller limits the time."""
        if self._use_plain:
            if self._plain is None:
                self._plain = self._plain_client()
            async with self._plain.get() as response:
                if response.status not in _REDIRECTS or not self._http.follow_redirects:
                    yield response
                    return
            self._use_plain = False  # it will redirect the next time, too
            self._plain.close()
        async with self._stream() as full:
            yield _FullResponse(full)

    def _plain_client(self) -> PlainHttpClient:
        headers = httpx2.Headers({"connection": "keep-alive", "user-agent": f"gpuscope/{__version__}"})
        headers.update(dict(self._http.headers))
        headers.update(self._headers)
        request = httpx2.Request("GET", self.url, headers=headers)
        lines = [b"GET %b HTTP/1.1" % request.url.raw_path]
        lines += [b"%b: %b" % header for header in request.headers.raw]
        return PlainHttpClient(
            request.url.raw_host.decode("ascii"), request.url.port or 80, b"\r\n".join((*lines, b"", b""))
        )

    def _stream(self) -> AbstractAsyncContextManager[httpx2.Response]:
        if self._full is None:
            self._full = new_client(self._http)
        self._full.cookies.clear()  # cookies would accumulate; Prometheus keeps none
        extensions = {"sni_hostname": self._server_name} if self._server_name else {}
        return self._full.stream("GET", self.url, headers=self._headers, extensions=extensions)

    async def aclose(self) -> None:
        if self._plain is not None:
            self._plain.close()
        if self._full is not None:
            await self._full.aclose()


class _FullResponse:
    """A response of httpx2."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def reason(self) -> str:
        return self._response.reason_phrase

    def header(self, name: str) -> str:
        return str(self._response.headers.get(name, ""))

    def pieces(self) -> AsyncIterator[bytes]:
        return self._response.aiter_raw(READ_BYTES)
