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
