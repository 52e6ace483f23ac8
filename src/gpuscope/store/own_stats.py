"""What the store counts about itself, for `Store.stats()` and the server's own metrics."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Health:
    """Counters since the store was opened, and what is wrong now."""

    commits: int = 0
    ticks: int = 0
    samples: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed_commits: int = 0
    full_since_ms: int | None = None
    """Since when nothing could be written; None while all is well."""
    full_reason: str | None = None
    """The error of the last failed commit of that time."""
    last_error: str | None = None
    unwritable: str | None = None
    """Why SQLite finds the file damaged when writing to it; opening the store again then rebuilds it."""
    lost: str | None = None
    """Why the file is not in its folder any more (`restart`); None while it is."""
    restarts: int = 0
    seals: int = 0
    merges: int = 0
    dropped_blocks: int = 0
    _damaged: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_damaged(self, chunk: int) -> bool:
        """Remember an unreadable chunk or block; True the first time."""
        with self._lock:
            if chunk in self._damaged:
                return False
            self._damaged.add(chunk)
            return True

    @property
    def damaged_chunks(self) -> int:
        return len(self._damaged)
