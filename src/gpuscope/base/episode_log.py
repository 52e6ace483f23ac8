"""Logs a failure when it starts and when it ends, not at each attempt.

Code that repeats an attempt (reading a source, a file, a peer) reports each outcome here. A failure whose
reason changes is logged again, but an episode logs at most MAX_LINES lines: a command whose error text changes
every second must not fill the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

MAX_LINES = 4


class EpisodeLog:
    def __init__(
        self,
        log: logging.Logger,
        subject: str,
        *,
        level: int = logging.WARNING,
        recovered: str = "works again",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.why = ""
        """The reason of the current failure; empty if there is none."""
        self._log = log
        self._subject = subject
        self._level = level
        self._recovered = recovered
        self._clock = clock
        self._began_at = 0.0
        self._lines = 0
        self._kinds: set[Hashable] = set()

    def failed(self, why: str, kind: Hashable = None) -> None:
        """`kind`: a failure of a kind that this episode has logged is not logged again, whatever its text."""
        if not self.why:
            self._began_at, self._lines = self._clock(), 0
            self._kinds.clear()
        is_new = why != self.why if kind is None else kind not in self._kinds
        if is_new and self._lines < MAX_LINES:
            self._lines += 1
            rest = "" if self._lines < MAX_LINES else "; further reasons are not logged until it works again"
            self._log.log(self._level, "%s: %s%s", self._subject, why, rest)
            if kind is not None:
                self._kinds.add(kind)
        self.why = why

    def succeeded(self) -> None:
        if self.why:
            lasted = self._clock() - self._began_at
            self._log.info("%s: %s, after %.0f s", self._subject, self._recovered, lasted)
        self.why = ""
