"""The limit on a listener's connections, in total and per client address.

A connection counts from the moment it is accepted, before its TLS handshake. Trusted proxies serve many
clients: they are exempt from the limit per address, and their requests are counted by client instead
(`login.access`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http.addresses import Network, is_within, limit_key

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
