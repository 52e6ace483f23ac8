"""Counters of the store's own work, for `Store.stats()` and the server's metrics."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class OwnStats:
    """Counters since the store was opened, and its current problems."""

    commits: int = 0
    ticks: int = 0
    samples: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed_commits: int = 0
    full_since_ms: int | None = None
    """Time of the first failed write; None while writing works."""
    full_reason: str | None = None
    """The error of the last failed commit since then."""
    last_error: str | None = None
    unwritable: str | None = None
    """SQLite's message if a write found the file damaged; the next start then rebuilds the file."""
    lost: str | None = None
    """Why the file is no longer in its folder (`lost_folder`); None while it is."""
    restarts: int = 0
    seals: int = 0
    merges: int = 0
    dropped_blocks: int = 0
    _damaged: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_damaged(self, chunk: int) -> bool:
        """Add an unreadable chunk or block; return True the first time."""
        with self._lock:
            if chunk in self._damaged:
                return False
            self._damaged.add(chunk)
            return True

    @property
    def damaged_chunks(self) -> int:
        return len(self._damaged)
