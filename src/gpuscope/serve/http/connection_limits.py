"""What one client may take: connections in total and per address, memory, time, turns and log lines.

A connection counts from the moment it is accepted, before its TLS handshake. Trusted proxies serve many
clients: they are exempt from the limit per address, and their requests are counted by client instead
(`login.access`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, TypeVar

from gpuscope.base.limits import LIMITS_REACHED, Limits

# Client addresses: parsed once, compared with networks, and grouped for limits.
#
# An address comes from a socket or, behind a trusted proxy, from a header, which is untrusted text. Text that
# is not an address parses to None. An IPv4 address mapped into IPv6 counts as IPv4.

MAX_ADDRESS_LENGTH = 45  # IPv6 text that ends in a dotted IPv4 address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_within(address: str, networks: Sequence[Network]) -> bool:
    parsed = parse_address(address) if networks else None
    return parsed is not None and any(parsed in network for network in networks)


def parse_address(text: str) -> Address | None:
    bare = text.partition("%")[0]
    return parse_short_address(bare) if len(bare) <= MAX_ADDRESS_LENGTH else None


@lru_cache(maxsize=1024)
def parse_short_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:10.0.0.1 on a dual-stack socket
    return mapped or address


def limit_key(address: str) -> str:
    """The key under which limits count an address: IPv4 by address, IPv6 by /64, which one customer owns."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed) if parsed else address[:64]


L = TypeVar("L", bound=Limits)

MIN_RESERVED_FILES = 32
"""File descriptors for the store, scrapes, the log and the event loop."""


@dataclass(slots=True)
class ConnectionLimit:
    limits: Limits
    proxies: Sequence[Network] = ()
    total: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.total >= self.limits.max_connections

    def enter(self, peer: str) -> str | None:
        """Counts a connection. Returns the key for `leave`, or None if a limit is reached."""
        key = "" if is_within(peer, self.proxies) else limit_key(peer)
        if self.is_full:
            LIMITS_REACHED.count("max_connections")
            return None
        if key and not self._count(key):
            return None
        self.total += 1
        return key

    def leave(self, key: str) -> None:
        self.total -= 1
        if key:
            self._uncount(key)

    @contextlib.contextmanager
    def request_of(self, client: str) -> Iterator[bool]:
        """Counts one request of a client behind a proxy while the block runs; yields False at the limit."""
        key = limit_key(client)
        if not self._count(key):
            yield False
            return
        try:
            yield True
        finally:
            self._uncount(key)

    def _count(self, key: str) -> bool:
        held = self.by_address.get(key, 0)
        if held >= self.limits.max_connections_per_address:
            LIMITS_REACHED.count("max_connections_per_address")
            return False
        self.by_address[key] = held + 1
        return True

    def _uncount(self, key: str) -> None:
        left = self.by_address[key] - 1
        if left:
            self.by_address[key] = left
        else:
            del self.by_address[key]


def raise_file_limit() -> None:
    """Raises the soft limit on open files to the hard limit. The soft limit exists for programs that use
    select(), which fails above 1,024 descriptors; this program does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fit_to_files(limits: L, listeners: int = 1) -> L:
    """Lowers `max_connections` to three quarters of the files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    free = (soft - max(MIN_RESERVED_FILES, soft // 4)) // max(listeners, 1)
    return replace(limits, max_connections=max(1, min(limits.max_connections, free)))


# A shared budget of bytes for all request bodies in memory, held until the request ends.
#
# One client address gets at most half of it, so that one client cannot block all others. The first
# `FREE_BYTES` of each body are not counted: logins and queries succeed while large bodies use up the budget.

FREE_BYTES = 16 << 10


@dataclass(slots=True)
class RequestBodyBudget:
    max_bytes: int
    held: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def take(self, address: str, count: int) -> bool:
        own = self.by_address.get(address, 0) + count
        if self.held + count > self.max_bytes or (address and own > self.max_bytes // 2):
            return False
        self.held += count
        self.by_address[address] = own
        return True

    def release(self, address: str, count: int) -> None:
        self.held -= count
        left = self.by_address.get(address, 0) - count
        if left:
            self.by_address[address] = left
        else:
            self.by_address.pop(address, None)


# The rate at which a client receives a response, measured only while the write buffer is full.
#
# A window is `client_stall_timeout` of such waiting, possibly in many short waits: a client cannot extend the
# window by receiving a few bytes at a time. Each response starts a new window.


@dataclass(slots=True)
class ResponseRate:
    written: int = 0  # bytes passed to the transport, all responses of the connection
    _received_before: int = 0  # bytes received by the client before this window
    _waited: float = 0.0
    _waiting_since: float = 0.0

    def begin_response(self) -> None:
        self._received_before, self._waited = self.written, 0.0

    def begin_wait(self, now: float, limits: Limits) -> float:
        """Returns the time at which the window ends."""
        self._waiting_since = now
        return now + max(0.0, limits.client_stall_timeout - self._waited)

    def end_wait(self, now: float) -> None:
        self._waited += now - self._waiting_since

    def is_fast_enough(self, unsent: int, now: float, limits: Limits) -> bool:
        """Called at the end of a window; starts the next one if the client was fast enough."""
        received = self.written - unsent
        if received - self._received_before < limits.min_response_rate * limits.client_stall_timeout:
            return False
        self._received_before, self._waited, self._waiting_since = received, 0.0, now
        return True


# A fair queue of connections with pending requests, round-robin by client address.
#
# While the event loop is not busy, requests are handled in the order they arrive, without a queue. After
# `BUSY_SECONDS` of handling requests without a pause, further requests go to one queue per client address,
# served in turn: a client with 100 connections, or 1,000 pipelined requests, delays another client by one
# request.

BUSY_SECONDS = 0.005
PAUSE_SECONDS = 0.0005
"""A longer gap between two responses means that the loop was idle."""


class QueuedConnection(Protocol):
    limit_key: str

    def serve_one(self) -> None:
        """Handles one request; joins the queue again if more are pending."""


class FairQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[str, deque[QueuedConnection]] = {}  # by address; the first is next
        self._queued: set[QueuedConnection] = set()
        self._busy_since = 0.0
        self._answered_at = 0.0
        self._is_scheduled = False

    def must_queue(self) -> bool:
        """True if a new request must wait in the queue."""
        now = self._loop.time()
        if now - self._answered_at > PAUSE_SECONDS:
            self._busy_since = now
        return bool(self._queues) or now - self._busy_since > BUSY_SECONDS

    def answered(self) -> None:
        self._answered_at = self._loop.time()

    def join(self, connection: QueuedConnection) -> None:
        if connection in self._queued:
            return
        self._queued.add(connection)
        self._queues.setdefault(connection.limit_key, deque()).append(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve_queue)

    def leave(self, connection: QueuedConnection) -> None:
        self._queued.discard(connection)  # `_serve_queue` skips its entry

    def _serve_queue(self) -> None:
        """Serves the queue for at most BUSY_SECONDS, then lets the loop read new requests."""
        until = self._loop.time() + BUSY_SECONDS
        while self._queues and self._loop.time() < until:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            connection = queue.popleft()
            if queue:
                self._queues[key] = queue  # last in turn
            if connection in self._queued:
                self._queued.remove(connection)
                connection.serve_one()
        self._is_scheduled = bool(self._queues)
        if self._is_scheduled:
            self._loop.call_soon(self._serve_queue)


# A rate-limited log for lines that clients cause: `max_lines` per minute and kind, then one summary line.
#
# A kind is a constant of this program, never client text, so the number of kinds is bounded.

MINUTE = 60.0


@dataclass(slots=True)
class _Kind:
    until: float
    written: int = 0
    left_out: int = 0


class ClientLog:
    def __init__(
        self, log: logging.Logger, max_lines: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._max_lines = max_lines
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def info(self, kind: str, message: str, *arguments: object) -> None:
        if self._may_write(kind):
            self._log.info(message, *arguments)

    def warning(self, kind: str, message: str, *arguments: object) -> None:
        if self._may_write(kind):
            self._log.warning(message, *arguments)

    def error(self, kind: str, message: str, *arguments: object, error: BaseException | None = None) -> None:
        """Logs with the traceback of `error`."""
        if self._may_write(kind):
            self._log.error(message, *arguments, exc_info=error)

    def _may_write(self, kind: str) -> bool:
        now = self._clock()
        self.summarise(now)
        minute = self._kinds.setdefault(kind, _Kind(now + MINUTE))
        if minute.written >= self._max_lines:
            minute.left_out += 1
            LIMITS_REACHED.count("max_client_log_lines")
            return False
        minute.written += 1
        return True

    def summarise(self, now: float | None = None) -> None:
        """Logs the count of suppressed lines for each minute that is over. Called by the server's timer."""
        if not self._kinds:
            return
        now = self._clock() if now is None else now
        for kind, minute in [(kind, minute) for kind, minute in self._kinds.items() if minute.until <= now]:
            del self._kinds[kind]
            if minute.left_out:
                self._log.warning("%s: %d more in the last minute", kind, minute.left_out)
