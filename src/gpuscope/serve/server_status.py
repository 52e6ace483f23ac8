"""`GET /api/server`: version, history and disk, as the page's settings show them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from gpuscope import __version__
from gpuscope.history.store import Store
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.session_json import ServerAnswer
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.http.routing import Route


def server_route(read: Callable[[], ServerAnswer]) -> Route:
    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(await asyncio.to_thread(read)), 200, JSON)

    return Route("/api/server", answer)


def engine_status(url: str, *, has_login: bool) -> Callable[[], ServerAnswer]:
    """Of a server over another engine, which keeps the history."""
    started_at = time.time()
    return lambda: {
        "version": __version__,
        "started_at": started_at,
        "has_login": has_login,
        "engine": url,
    }


def store_status(
    store: Store, folder: Path, retention_seconds: float, retention_bytes: int | None, *, has_login: bool
) -> Callable[[], ServerAnswer]:
    """Of a server with a store of its own."""
    started_at = time.time()

    def read() -> ServerAnswer:
        stats = store.stats()
        answer: ServerAnswer = {
            "version": __version__,
            "started_at": started_at,
            "has_login": has_login,
            "data_folder": str(folder),
            "retention_seconds": retention_seconds,
            "disk_bytes": stats.disk_bytes,
            "series": stats.series,
            "counted_series": stats.counted_series,
        }
        if stats.max_series is not None:
            answer["max_series"] = stats.max_series
        if retention_bytes:
            answer["retention_bytes"] = retention_bytes
        if stats.oldest_ms is not None:
            answer["oldest_at"] = stats.oldest_ms / 1000
        try:
            disk = os.statvfs(folder)
        except OSError:  # the folder is gone; `disk_bytes` says so elsewhere
            return answer
        answer["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        return answer

    return read
