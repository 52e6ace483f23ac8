"""One GET of a target's metrics: bytes out, or one sentence why not.

Whatever a target sends is bounded: the body is unpacked piece by piece and given up once it is too large, so
that neither 100 MB nor a compression bomb ever is in memory. The time-out is the caller's.
"""

from __future__ import annotations

import logging
import os
import ssl
import zlib
from dataclasses import dataclass

import httpx2

from gpuscope import __version__
from gpuscope.scrape.http_config import HttpConfig

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
_PIECE = 1 << 16
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would tell of every single scrape


class ScrapeError(Exception):
    """A scrape that did not succeed, in one sentence for the list of targets."""


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    openmetrics: bool


def new_client(http: HttpConfig) -> httpx2.AsyncClient:
    """A client for one job's targets. The environment's proxies are not for metrics."""
    return httpx2.AsyncClient(
        verify=http.tls or _default_tls(),
        follow_redirects=http.follow_redirects,
        max_redirects=10,
        trust_env=False,
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
    client: httpx2.AsyncClient, url: str, *, timeout_seconds: float, most_bytes: int, server_name: str = ""
) -> Fetched:
    headers = {
        "accept": ACCEPT,
        "accept-encoding": "gzip",
        "x-prometheus-scrape-timeout-seconds": f"{timeout_seconds:g}",
    }
    extensions = {"sni_hostname": server_name} if server_name else {}
    try:
        async with client.stream("GET", url, headers=headers, extensions=extensions) as answer:
            if answer.status_code != 200:
                raise ScrapeError(
                    f"server returned HTTP status {answer.status_code} {answer.reason_phrase}".rstrip()
                )
            body = await _read(answer, most_bytes)
            kind = answer.headers.get("content-type", "")
            return Fetched(body, kind.lower().startswith("application/openmetrics-text"))
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError, OSError) as error:
        raise ScrapeError(_sentence(error, url)) from None


async def _read(answer: httpx2.Response, most_bytes: int) -> bytes:
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise ScrapeError(f"the body is encoded as {encoding!r}, which was not asked for")
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for raw in answer.aiter_raw(_PIECE):
        pending = raw
        while pending:
            piece = pending if unpack is None else _unpack(unpack, pending)
            pending = b"" if unpack is None else unpack.unconsumed_tail
            size += len(piece)
            if most_bytes and size > most_bytes:
                raise ScrapeError(f"body size limit exceeded: more than {most_bytes} bytes (body_size_limit)")
            parts.append(piece)
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
