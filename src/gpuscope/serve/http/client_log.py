"""A rate-limited log for lines that clients cause: `max_lines` per minute and kind, then one summary line.

A kind is a constant of this program, never client text, so the number of kinds is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuscope.base.limits import LIMITS_REACHED

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
