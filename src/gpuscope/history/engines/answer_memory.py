"""The memory that answers of an engine take: one budget for all that are read at the same time.

A share grows while its answer is read, and is released when nobody uses the result any more. The sizes are
estimates, a little above what CPython takes. Readers are in several threads with event loops of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final, NoReturn

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.engines.engine_errors import EngineResultTooLarge

WAIT_SECONDS: Final = 10.0
"""For answers that others read, as queries of the store wait (`query_max_total_samples`)."""
_POLL_SECONDS: Final = 0.05


class AnswerMemory:
    def __init__(self, max_bytes: int = Limits().engine_max_answers_bytes) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._held

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def take(self, count: int) -> bool:
        """Also gives back: a count may be negative."""
        with self._lock:
            if count > 0 and self._held + count > self.max_bytes:
                return False
            self._held += count
            return True


class MemoryShare:
    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    @property
    def max_bytes(self) -> int:
        return self._memory.max_bytes

    def resize(self, count: int) -> bool:
        """False, and no change, if the budget does not have the difference."""
        if not self._memory.take(count - self.held_bytes):
            return False
        self.held_bytes = count
        return True

    async def add(self, count: int) -> None:
        """Waits for other shares to be released; EngineResultTooLarge if that takes too long or cannot help."""
        ends_at = time.monotonic() + WAIT_SECONDS
        while not self.resize(self.held_bytes + count):
            if self.held_bytes + count > self.max_bytes or time.monotonic() >= ends_at:
                self.refuse()
            await asyncio.sleep(_POLL_SECONDS)

    def refuse(self) -> NoReturn:
        LIMITS_REACHED.count("engine_max_answers_bytes")
        raise EngineResultTooLarge(
            f"the answer, with others that are read, takes more than {self.max_bytes} bytes of memory "
            "(engine_max_answers_bytes)"
        )

    def release(self) -> None:
        self.resize(0)
