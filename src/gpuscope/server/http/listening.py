"""A listening address and the connections made to it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

from gpuscope.errors import UsageError
from gpuscope.server.http.connection import Connection
from gpuscope.server.http.messages import Handler

KEPT_SECONDS = 120.0
"""A connection that nobody uses; longer than dashboards and scrapers pause, who else begin anew each time."""
MOST_CONNECTIONS = 512
"""As Prometheus; well below the 1,024 files that a process may commonly have open."""
LOOK_SECONDS = 1.0
"""One look at all connections' clocks, instead of a timer for each of their requests."""


class Server:
    """Must be started and stopped inside a running event loop."""

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        kept_seconds: float = KEPT_SECONDS,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.handler = handler
        self.connections: set[Connection] = set()
        self.kept_seconds = kept_seconds
        self.most_connections = most_connections
        self.is_stopping = False
        self._tls = tls
        self._listening: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port: a new one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                lambda: Connection(self, loop),
                host or None,
                port,
                ssl=self._tls,
                reuse_address=True,
                backlog=MOST_CONNECTIONS,
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {_reason(error)}; choose another with --listen"
            ) from None
        self._looking = loop.create_task(self._look())
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = loop.time()
            for connection in [one for one in self.connections if one.expires_at < now]:
                connection.expire(now)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Takes no more requests; those that are being answered have so long to be."""
        if self._listening is None or self._looking is None:
            return
        self.is_stopping = True
        self._listening.close()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace_seconds
        for connection in list(self.connections):
            connection.close()
        while any(one.is_busy for one in self.connections) and loop.time() < ends_at:
            await asyncio.sleep(0.01)
        self._looking.cancel()
        for connection in list(self.connections):
            connection.abort()
        await self._listening.wait_closed()


def _reason(error: OSError) -> str:
    """Without asyncio's own words around it."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return str(error.strerror or error)
    return os.strerror(error.errno)
