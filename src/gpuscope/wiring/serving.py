"""What `up` and `server` share: the store in its folder, and an HTTP server that stops when it is told to."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gpuscope.errors import UsageError
from gpuscope.server.bounded_http import BoundedHttp
from gpuscope.settings import Settings
from gpuscope.store import Store, StoreError, StoreOptions
from gpuscope.wiring.login import address_text

log = logging.getLogger("gpuscope")

DEFAULT_LISTEN = ("127.0.0.1", 9470)
GRACE_SECONDS = 3
"""How long a running query may keep a server from stopping."""
KEPT_SECONDS = 120
"""A connection that nobody uses; longer than dashboards and scrapers pause, who else begin anew each time."""
MOST_CONNECTIONS = 512
"""As Prometheus; well below the 1,024 files that a process may commonly have open."""


def open_store(settings: Settings) -> Store:
    folder = Path(settings.data).expanduser()
    options = StoreOptions(
        retention_ms=int(settings.retention * 1000), retention_bytes=settings.retention_bytes
    )
    try:
        return Store(folder, options)
    except StoreError as error:
        raise UsageError(f"--data {folder}: {error}") from None
    except OSError as error:
        raise UsageError(f"--data {folder}: {error.strerror}; choose another folder") from None


def serve(
    app: ASGIApp,
    listen: tuple[str, int],
    tls: ssl.SSLContext | None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; SIGHUP calls `on_hangup`, one after the other."""
    host, port = listen
    # Whose forwarded headers are believed is the door's to judge; uvicorn would believe all of this machine.
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedHttp,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEPT_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=MOST_CONNECTIONS,
    )
    if tls is not None:
        config.load()
        config.ssl = tls
    server = _Server(config)
    server.on_hangup = on_hangup
    asyncio.run(server.run_until_stopped("https" if tls else "http", host))


class _Server(uvicorn.Server):
    """uvicorn, with our own signals and our own word on where it listens."""

    on_hangup: Callable[[], None] | None = None

    async def run_until_stopped(self, scheme: str, host: str) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._leave)
        if self.on_hangup is not None:
            # Through the loop: a plain handler could be interrupted by the next signal and finish after it.
            loop.add_signal_handler(signal.SIGHUP, self.on_hangup)
        serving = loop.create_task(self._serve())
        while not self.started and not serving.done():
            await asyncio.sleep(0.01)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            log.info("gpuscope is at %s://%s", scheme, address_text((host, port)))
        await serving

    def _leave(self) -> None:
        self.should_exit = True
