"""A listening address and the connections made to it.

Connections are accepted here and not by asyncio's server: that one calls nobody before a TLS handshake is
over, so that nothing could be counted, and writes a traceback for each accept that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence

from gpuscope.errors import UsageError
from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.http.addresses import Network, limit_key
from gpuscope.server.http.body_budget import BodyBudget
from gpuscope.server.http.client_log import ClientLog
from gpuscope.server.http.connection import Connection
from gpuscope.server.http.connection_limit import Admission
from gpuscope.server.http.fair_queue import FairQueue
from gpuscope.server.http.messages import Handler, text
from gpuscope.server.http.response_head import encode_head

BACKLOG = 512
MAX_ACCEPTS_IN_A_ROW = 64
"""Before connections that are open have their turn."""
LOOK_SECONDS = 1.0
"""One look at all connections' clocks, instead of a timer for each of their requests."""
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_SECONDS = 0.5
"""Without accepting, when the process can open no more files; clients wait in the backlog meanwhile."""
MAX_TLS_GOODBYE_SECONDS = 5.0

log = logging.getLogger("gpuscope.http")

PeerCheck = Callable[[asyncio.BaseTransport], bool]


class Server:
    """Must be started and stopped inside a running event loop."""

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        proxies: Sequence[Network] = (),
        accepts_peer: PeerCheck | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.budget = BodyBudget(self.limits.max_request_bodies_bytes)
        self.log = ClientLog(log, self.limits.max_client_log_lines)
        self.accepts_peer = accepts_peer
        self.connections: set[Connection] = set()
        self.queue: FairQueue  # needs the running loop
        self.is_stopping = False
        self.scheme = "https" if tls else "http"
        self._tls = tls
        self._admission = Admission(self.limits, proxies)
        self._admitted: dict[Connection, asyncio.Task[None]] = {}  # with the task that opens it; oldest first
        self._sockets: list[socket.socket] = []
        self._looking: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port: a new one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        self.queue = FairQueue(loop)
        try:
            self._sockets = await _listen(host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {_reason(error)}; choose another with --listen"
            ) from None
        for one in self._sockets:
            loop.add_reader(one, self._accept, one)
        self._looking = loop.create_task(self._look())
        bound: int = self._sockets[0].getsockname()[1]
        return bound

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._admitted.pop(connection, None) is not None:
            self._admission.leave(connection.limit_key)

    # ---- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(MAX_ACCEPTS_IN_A_ROW):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_RESOURCES:
                    self.log.error("failed accepts", "accepting a connection failed: %s", error)
                    return
                self._pause_accepting(listening, error)
                return
            accepted.setblocking(False)
            if not self._admit(accepted, str(address[0])):
                return  # what made room is closed when the loop turns: until then its file is open

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        self.log.warning("pauses in accepting", "cannot accept connections now: %s", error.strerror)
        loop.remove_reader(listening)
        loop.call_later(PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if not self.is_stopping:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, peer: str) -> bool:
        """False if another connection had to make room."""
        key = self._admission.enter(peer)
        is_full = key is None
        if is_full and self._make_room("" if self._admission.is_full else limit_key(peer)):
            key = self._admission.enter(peer)
        if key is None:
            self.log.warning("refused connections", "too many connections; one of %s was refused", peer)
            if self._tls is None:
                _say_too_many(accepted)
            accepted.close()
            return not is_full
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop, key)
        opening = loop.create_task(self._open(connection, accepted))
        # Cancelled before its first step, it has closed nothing.
        opening.add_done_callback(lambda task: accepted.close() if task.cancelled() else None)
        self._admitted[connection] = opening
        return not is_full

    def _make_room(self, key: str) -> bool:
        """Closes the oldest connection that has not asked anything yet, else one that waits between requests:
        of the address with this key, or of any if it is empty.

        Without this, slow clients on many addresses would shut out everybody for as long as a head may take,
        and a client that opens a connection for each request, and closes none, would shut itself out.
        """
        waiting = [
            one
            for one in self._admitted
            if (not key or one.limit_key == key) and (one not in self.connections or one.is_waiting)
        ]
        if not waiting:
            return False
        has_not_asked = (one for one in waiting if one not in self.connections or not one.has_asked)
        chosen = next(has_not_asked, None) or min(waiting, key=lambda one: one.expires_at)
        opening = self._admitted[chosen]
        if chosen in self.connections:
            chosen.abort()
        else:
            opening.cancel()
        self.leave(chosen)
        return True

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        """Through the TLS handshake, if there is one."""
        loop = asyncio.get_running_loop()
        patience = self.limits.tls_handshake_timeout if self._tls else None
        goodbye = MAX_TLS_GOODBYE_SECONDS if self._tls else None
        try:
            if patience is not None:
                await _first_byte(accepted, patience)
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=patience,
                ssl_shutdown_timeout=goodbye,
            )
        except BaseException as error:
            if connection not in self.connections:  # else it leaves when it is lost
                self.leave(connection)
            if isinstance(error, (TimeoutError, ConnectionAbortedError)):
                LIMITS_REACHED.count("tls_handshake_timeout")
            # ssl.SSLError and time-outs are OSErrors and the client's doing; cancelled is who made room.
            if not isinstance(error, (OSError, asyncio.CancelledError)):
                self.log.error("failed handshakes", "opening a connection failed", error=error)

    # ---- clocks

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = loop.time()
            for connection in [one for one in self.connections if one.expires_at < now]:
                connection.expire(now)
            self.log.summarise()

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Takes no more requests; those that are being answered have so long to be."""
        if self._looking is None:
            return
        self.is_stopping = True
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
            one.close()
        ends_at = loop.time() + grace_seconds
        for connection in list(self.connections):
            connection.close()
        while any(one.is_busy for one in self.connections) and loop.time() < ends_at:
            await asyncio.sleep(0.01)
        self._looking.cancel()
        opening = [task for task in self._admitted.values() if not task.done()]
        for task in opening:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(self._looking, *opening, return_exceptions=True)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, all on one port."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:  # this machine has no IPv6, say
                continue
            undo.callback(one.close)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = opened[0].getsockname()[1] if opened else port
            try:
                one.bind((address[0], chosen, *address[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                continue  # IPv6 is switched off by sysctl
            one.listen(BACKLOG)
            one.setblocking(False)
            opened.append(one)
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        undo.pop_all()
    return opened


async def _first_byte(accepted: socket.socket, patience: float) -> None:
    """Waits until there is something to read; closes the connection of a client that is silent for too long.

    asyncio's TLS takes 300 KiB for a connection from the start, which a silent one must not cost.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted, lambda: None if came.done() else came.set_result(None))
    try:
        await asyncio.wait_for(came, patience)
    except BaseException:
        loop.remove_reader(accepted)
        accepted.close()
        raise
    loop.remove_reader(accepted)


def _say_too_many(accepted: socket.socket) -> None:
    response = text("too many connections; try again", 503, (("retry-after", "5"),))
    with contextlib.suppress(OSError):
        accepted.recv(1 << 16)  # closed with something unread, the client would not see the answer
    with contextlib.suppress(OSError):
        accepted.send(encode_head(response, length=len(response.body), close=True) + response.body)


def _reason(error: OSError) -> str:
    """Without asyncio's own words around it."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return str(error.strerror or error)
    return os.strerror(error.errno)
