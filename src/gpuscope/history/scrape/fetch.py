"""Fetches a target's metrics over its HTTP client: the body, or a `ScrapeError` with one sentence.

The body is decompressed piece by piece and refused as soon as it exceeds the limit, so that neither a large
body nor a compression bomb is ever in memory. The caller applies the scrape timeout.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import httpx2

from gpuscope import __version__
from gpuscope.base.http_config import HttpConfig
from gpuscope.history.scrape.job_options import is_openmetrics
from gpuscope.history.scrape.plain_http import PlainHttpClient, PlainHttpError

# The HTTP client of one target: `PlainHttpClient` for `http://`, httpx2 for TLS and for targets that
# redirect.
#
# Both send the same request, which httpx2 builds, and return the same kind of response. httpx2's client is
# made when it is first needed: one takes about 50 kB.

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


SMALL_BODY_BYTES = 1 << 20


class ScrapeError(Exception):
    """A failed scrape; the message is the target's `lastError`."""

    def __init__(self, message: str, limit: str = "") -> None:
        """`limit` is the name in `limits.Limits` of the limit that was reached, or ""."""
        super().__init__(message)
        self.limit = limit


class ScrapeBodyBudget:
    """A budget of bytes for the response bodies of all targets in memory.

    When it is used up, only bodies larger than SMALL_BODY_BYTES are refused: targets with small responses are
    always scraped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """The share of one scrape, released at the end of the `with` block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self._held -= share.held

    def add(self, size: int, held: int) -> None:
        if self._held + size > self._max_bytes and held + size > SMALL_BODY_BYTES:
            why = f"large response refused: {self._max_bytes} bytes are in memory (scrape_max_pending_bytes)"
            raise ScrapeError(why, "scrape_max_pending_bytes")
        self._held += size


class BodyShare:
    def __init__(self, budget: ScrapeBodyBudget) -> None:
        self._budget = budget
        self.held = 0

    def add(self, size: int) -> None:
        """Raises ScrapeError if the budget is used up."""
        self._budget.add(size, self.held)
        self.held += size


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    openmetrics: bool


async def fetch(
    client: TargetClient, *, max_bytes: int, share: BodyShare, fallback_protocol: str = ""
) -> Fetched:
    try:
        async with client.get() as response:
            if response.status != 200:
                raise ScrapeError(f"server returned HTTP status {response.status} {response.reason}".rstrip())
            try:
                openmetrics = is_openmetrics(response.header("content-type"), fallback_protocol)
            except ValueError as error:
                async for _ in response.pieces():
                    raise ScrapeError(str(error)) from None
                return Fetched(b"", False)  # an empty body: Prometheus ignores its type
            encoding = response.header("content-encoding")
            return Fetched(await read_body(response.pieces(), encoding, max_bytes, share), openmetrics)
    except CLIENT_ERRORS as error:
        raise ScrapeError(_error_text(error, client.url)) from None


async def read_body(
    raw_pieces: AsyncIterator[bytes], content_encoding: str, max_bytes: int, share: BodyShare
) -> bytes:
    encoding = content_encoding.strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise ScrapeError(f"the body is encoded as {encoding[:40]!r}, which was not requested")
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for raw in raw_pieces:
        pending = raw
        while pending:
            piece = pending if unpack is None else _unpack(unpack, pending)
            pending = b"" if unpack is None else unpack.unconsumed_tail
            size += len(piece)
            if max_bytes and size > max_bytes:
                why = f"body size limit exceeded: more than {max_bytes} bytes (body_size_limit)"
                raise ScrapeError(why, "scrape_max_body_bytes")
            share.add(len(piece))
            parts.append(piece)
            if pending:
                await asyncio.sleep(0)  # a compressed piece can expand a thousandfold
    if unpack is not None and not unpack.eof:
        raise ScrapeError("the compressed body ends too early")
    return b"".join(parts)


def _unpack(unpack: zlib._Decompress, packed: bytes) -> bytes:
    try:
        return unpack.decompress(packed, 1 << 20)
    except zlib.error as error:
        raise ScrapeError(f"the body is not valid gzip: {error}") from None


def _error_text(error: Exception, url: str) -> str:
    if isinstance(error, httpx2.TooManyRedirects):
        return "stopped after 10 redirects"
    return f"Get {url!r}: {root_cause(error)}"


def root_cause(error: BaseException) -> str:
    """The innermost error's text: "connection refused", not "all attempts failed"."""
    for _ in range(10):
        cause = error.__cause__ or error.__context__
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if cause is None:
            break
        error = cause
    # asyncio's text has an address instead of the reason; errno has the reason.
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    message = error.strerror if isinstance(error, OSError) else ""
    return message or str(error) or type(error).__name__
