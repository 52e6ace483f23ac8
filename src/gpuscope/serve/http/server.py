"""A listening address and its connections.

This module accepts connections itself instead of using asyncio's server, which reports a connection only after
its TLS handshake, so that handshakes could not be limited, and logs a traceback for each failed accept.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http.connection import Connection
from gpuscope.serve.http.connection_limits import (
    ClientLog,
    ConnectionLimit,
    FairQueue,
    Network,
    RequestBodyBudget,
    limit_key,
)
from gpuscope.serve.http.messages import Handler, encode_head, text

if TYPE_CHECKING:
    import ssl  # only its types: an agent without TLS does not load OpenSSL

BACKLOG = 512
MAX_ACCEPTS_IN_A_ROW = 64
"""New connections per loop iteration, so that open connections are served in between."""
EXPIRY_CHECK_SECONDS = 1.0
"""Interval of the check of all connections' deadlines; a timer per request would cost more."""
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_SECONDS = 0.5
"""Pause in accepting when the process has no free file descriptor; clients wait in the backlog."""
TLS_SHUTDOWN_SECONDS = 5.0

log = logging.getLogger("gpuscope.http")

PeerCheck = Callable[[asyncio.BaseTransport], bool]


class Server:
    """An HTTP server. Start and stop it inside a running event loop."""

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
        self.budget = RequestBodyBudget(self.limits.max_request_bodies_bytes)
        self.log = ClientLog(log, self.limits.max_client_log_lines)
        self.accepts_peer = accepts_peer
        self.connections: set[Connection] = set()
        self.queue: FairQueue  # needs the running loop
        self.is_stopping = False
        self.scheme = "https" if tls else "http"
        self._tls = tls
        self._connection_limit = ConnectionLimit(self.limits, proxies)
        self._admitted: dict[Connection, asyncio.Task[None]] = {}  # value: its opening task; oldest first
        self._sockets: list[socket.socket] = []
        self._timer: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port, which the kernel chooses if `port` is 0."""
        loop = asyncio.get_running_loop()
        self.queue = FairQueue(loop)
        try:
            self._sockets = await _listen(host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {_reason(error)}; choose another with --listen"
            ) from None
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)
        self._timer = loop.create_task(self._expire_connections())
        bound: int = self._sockets[0].getsockname()[1]
        return bound

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._admitted.pop(connection, None) is not None:
            self._connection_limit.leave(connection.limit_key)

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
            if _is_reset(accepted):
                accepted.close()
            elif not self._admit(accepted, str(address[0])):
                return  # the evicted connection keeps its file open until the loop's next iteration

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        self.log.warning("pauses in accepting", "cannot accept connections now: %s", error.strerror)
        loop.remove_reader(listening)
        loop.call_later(PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if not self.is_stopping:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, peer: str) -> bool:
        """Returns False if another connection was evicted for this one."""
        key = self._connection_limit.enter(peer)
        is_full = key is None
        if is_full and self._make_room("" if self._connection_limit.is_full else limit_key(peer)):
            key = self._connection_limit.enter(peer)
        if key is None:
            self.log.warning("refused connections", "too many connections; refused one from %s", peer)
            if self._tls is None:
                _send_too_many(accepted)
            accepted.close()
            return not is_full
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop, key)
        opening = loop.create_task(self._open(connection, accepted))
        # A task that is cancelled before its first step does not close the socket itself.
        opening.add_done_callback(lambda task: accepted.close() if task.cancelled() else None)
        self._admitted[connection] = opening
        return not is_full

    def _make_room(self, key: str) -> bool:
        """Closes the oldest connection without a complete request, or else one that is idle between requests.
        Considers only connections of the address with this key, or all if it is empty.

        Without this, slow clients on many addresses would block everybody for the head timeout, and a client
        that opens a connection per request and closes none would block itself. The oldest, not one of
        the address that has most: a page with two connections has most where an attack has one per address.
        """
        evictable = [
            known
            for known in self._admitted
            if (not key or known.limit_key == key) and (known not in self.connections or known.is_waiting)
        ]
        if not evictable:
            return False
        unused = (known for known in evictable if known not in self.connections or not known.has_sent_request)
        chosen = next(unused, None) or min(evictable, key=lambda known: known.expires_at)
        opening = self._admitted[chosen]
        if chosen in self.connections:
            chosen.abort()
        else:
            opening.cancel()
        self.leave(chosen)
        return True

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        """Performs the TLS handshake, if any, and attaches the connection to the socket."""
        loop = asyncio.get_running_loop()
        handshake_timeout = self.limits.tls_handshake_timeout if self._tls else None
        shutdown_timeout = TLS_SHUTDOWN_SECONDS if self._tls else None
        try:
            if handshake_timeout is not None:
                await _wait_for_first_byte(accepted, handshake_timeout)
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_timeout,
                ssl_shutdown_timeout=shutdown_timeout,
            )
        except BaseException as error:
            if connection not in self.connections:  # otherwise connection_lost calls leave
                self.leave(connection)
            if isinstance(error, (TimeoutError, ConnectionAbortedError)):
                LIMITS_REACHED.count("tls_handshake_timeout")
            # ssl.SSLError and timeouts are OSErrors caused by the client; an evicted connection is cancelled.
            if not isinstance(error, (OSError, asyncio.CancelledError)):
                self.log.error("failed handshakes", "opening a connection failed", error=error)

    # ---- deadlines

    async def _expire_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            now = loop.time()
            for connection in [connection for connection in self.connections if connection.expires_at < now]:
                connection.expire(now)
            self.log.summarise()

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Stops accepting requests; requests in progress have `grace_seconds` to finish."""
        if self._timer is None:
            return
        self.is_stopping = True
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        ends_at = loop.time() + grace_seconds
        for connection in list(self.connections):
            connection.close()
        while any(connection.is_busy for connection in self.connections) and loop.time() < ends_at:
            await asyncio.sleep(0.01)
        self._timer.cancel()
        opening = [task for task in self._admitted.values() if not task.done()]
        for task in opening:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(self._timer, *opening, return_exceptions=True)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Opens a socket for each address of the host, all on one port."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError:  # the kernel has no IPv6, for example
                continue
            undo.callback(listening.close)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound_port = opened[0].getsockname()[1] if opened else port
            try:
                listening.bind((address[0], bound_port, *address[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL or len(addresses) == 1:
                    raise
                continue  # IPv6 is switched off by sysctl
            listening.listen(BACKLOG)
            listening.setblocking(False)
            opened.append(listening)
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        undo.pop_all()
    return opened


async def _wait_for_first_byte(accepted: socket.socket, handshake_timeout: float) -> None:
    """Waits until the socket is readable; closes it after the timeout.

    asyncio's TLS allocates 300 KiB per connection, which a silent client must not cost.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted, lambda: None if readable.done() else readable.set_result(None))
    try:
        await asyncio.wait_for(readable, handshake_timeout)
    except BaseException:
        loop.remove_reader(accepted)
        accepted.close()
        raise
    loop.remove_reader(accepted)


def _is_reset(accepted: socket.socket) -> bool:
    """Whether the client has reset the connection: its request can be read, but not answered."""
    return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def _send_too_many(accepted: socket.socket) -> None:
    response = text("too many connections; try again", 503, (("retry-after", "5"),))
    with contextlib.suppress(OSError):
        accepted.recv(1 << 16)  # closing with unread input resets the connection
    with contextlib.suppress(OSError):
        accepted.send(encode_head(response, length=len(response.body), close=True) + response.body)


def _reason(error: OSError) -> str:
    """The error's text without asyncio's wording."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return str(error.strerror or error)
    return os.strerror(error.errno)
