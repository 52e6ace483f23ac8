"""Which connections a listener takes: so many in all, so many per client address.

A connection counts from the moment it is accepted, before its TLS handshake. Trusted proxies carry many
clients: they are exempt from the count per address, and their requests are counted by client instead
(`login.access`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.http.addresses import Network, is_within, limit_key

L = TypeVar("L", bound=Limits)

MIN_RESERVED_FILES = 32
"""Files that are no client's connection: the store, scrapes, the log, the event loop."""


@dataclass(slots=True)
class Admission:
    limits: Limits
    proxies: Sequence[Network] = ()
    total: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.total >= self.limits.max_connections

    def enter(self, peer: str) -> str | None:
        """The key to leave with; None if there are too many already."""
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
        """Counts one request of a client behind a proxy while the block runs; False if it has too many."""
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
    """Lets the process open as many files as the administrator allows: the soft limit is for old programs that
    use select(), which breaks above 1,024; nothing here does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fit_to_files(limits: L, listeners: int = 1) -> L:
    """The limits with no more connections than this process may open files, less a reserve of a quarter."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    free = (soft - max(MIN_RESERVED_FILES, soft // 4)) // max(listeners, 1)
    return replace(limits, max_connections=max(1, min(limits.max_connections, free)))
