"""Fetches a target's metrics: returns the body, or raises a `ScrapeError` with one sentence.

The body is decompressed piece by piece and refused as soon as it exceeds the limit, so that neither a large
body nor a compression bomb is ever in memory. The caller applies the scrape timeout.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from gpuscope.history.scrape.job_options import is_openmetrics
from gpuscope.history.scrape.target_client import CLIENT_ERRORS, TargetClient

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
