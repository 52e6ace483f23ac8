"""One GET of a target's metrics: bytes out, or one sentence why not.

Whatever a target sends is bounded: the body is unpacked piece by piece and given up once it is too large, so
that neither 100 MB nor a compression bomb ever is in memory. The time-out is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from gpuscope import __version__
from gpuscope.scrape.content_type import is_openmetrics
from gpuscope.scrape.http_config import HttpConfig

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
SMALL_BODY_BYTES = 1 << 20
_PIECE = 1 << 16
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would tell of every single scrape


class ScrapeError(Exception):
    """A scrape that did not succeed, in one sentence for the list of targets."""

    def __init__(self, message: str, limit: str = "") -> None:
        """`limit` is the row of `limits.Limits` that was reached, if one was."""
        super().__init__(message)
        self.limit = limit


class BodyBudget:
    """Bytes of answers that are in memory, of all targets of one event loop.

    Above the limit an answer is refused once it is larger than SMALL_BODY_BYTES: targets that send little are
    scraped however much others send."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """What one scrape holds, until the end of the `with` block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self._held -= share.held

    def add(self, size: int, held: int) -> None:
        if self._held + size > self._max_bytes and held + size > SMALL_BODY_BYTES:
            why = f"large answer refused: {self._max_bytes} bytes are in memory (scrape_max_pending_bytes)"
            raise ScrapeError(why, "scrape_max_pending_bytes")
        self._held += size


class BodyShare:
    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held = 0

    def add(self, size: int) -> None:
        """Raises ScrapeError if there is no room."""
        self._budget.add(size, self.held)
        self.held += size


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    openmetrics: bool


def new_client(http: HttpConfig, *, trust_env: bool = False) -> httpx2.AsyncClient:
    """A client for one job's targets, or one engine. The environment's proxies are not for metrics."""
    return httpx2.AsyncClient(
        verify=http.tls or _default_tls(),
        follow_redirects=http.follow_redirects,
        max_redirects=10,
        trust_env=trust_env,
        timeout=None,  # the whole scrape has one, at the caller's
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=300),
        headers={"user-agent": f"gpuscope/{__version__}", **dict(http.headers)},
    )


_shared_tls: list[ssl.SSLContext] = []


def _default_tls() -> ssl.SSLContext:
    # A context with the system's certificates costs megabytes: all jobs share one.
    if not _shared_tls:
        _shared_tls.append(ssl.create_default_context())
    return _shared_tls[0]


async def fetch(
    client: httpx2.AsyncClient,
    url: str,
    *,
    timeout_seconds: float,
    max_bytes: int,
    share: BodyShare,
    server_name: str = "",
    fallback_protocol: str = "",
) -> Fetched:
    headers = {
        "accept": ACCEPT,
        "accept-encoding": "gzip",
        "x-prometheus-scrape-timeout-seconds": f"{timeout_seconds:g}",
    }
    client.cookies.clear()  # a target's cookies would pile up; Prometheus keeps none
    extensions = {"sni_hostname": server_name} if server_name else {}
    try:
        async with client.stream("GET", url, headers=headers, extensions=extensions) as answer:
            if answer.status_code != 200:
                raise ScrapeError(
                    f"server returned HTTP status {answer.status_code} {answer.reason_phrase}".rstrip()
                )
            try:
                openmetrics = is_openmetrics(answer.headers.get("content-type", ""), fallback_protocol)
            except ValueError as error:
                async for _ in answer.aiter_raw(1):
                    raise ScrapeError(str(error)) from None
                return Fetched(b"", False)  # nothing to read: Prometheus does not look at its type
            return Fetched(await _read(answer, max_bytes, share), openmetrics)
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError, OSError) as error:
        raise ScrapeError(_sentence(error, url)) from None


async def _read(answer: httpx2.Response, max_bytes: int, share: BodyShare) -> bytes:
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise ScrapeError(f"the body is encoded as {encoding[:40]!r}, which was not asked for")
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for raw in answer.aiter_raw(_PIECE):
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
                await asyncio.sleep(0)  # a compressed piece can become a thousand times as large
    if unpack is not None and not unpack.eof:
        raise ScrapeError("the compressed body ends too early")
    return b"".join(parts)


def _unpack(unpack: zlib._Decompress, packed: bytes) -> bytes:
    try:
        return unpack.decompress(packed, 1 << 20)
    except zlib.error as error:
        raise ScrapeError(f"the body is not valid gzip: {error}") from None


def _sentence(error: Exception, url: str) -> str:
    if isinstance(error, httpx2.TooManyRedirects):
        return "stopped after 10 redirects"
    return f"Get {url!r}: {root_cause(error)}"


def root_cause(error: BaseException) -> str:
    """The reason below the layers: "connection refused", not "all attempts failed"."""
    for _ in range(10):
        below = error.__cause__ or error.__context__
        if isinstance(below, BaseExceptionGroup):
            below = below.exceptions[0]
        if below is None:
            break
        error = below
    # asyncio puts an address where the reason should be; the number still has it.
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    said = error.strerror if isinstance(error, OSError) else ""
    return said or str(error) or type(error).__name__
