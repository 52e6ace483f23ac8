"""The log lines about driver calls that do not return, of all lanes of a source.

A call that is stuck while other GPUs answer is told, and so is its return. While no GPU answers, the first
stuck call stands for all: the source's line that there is no answer counts them, and a driver that blocks every
call of eight GPUs would otherwise write forty lines. What is still stuck when GPUs answer again is told then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

log = logging.getLogger("gpuscope.source")


class StuckLog:
    def __init__(self, answers: Callable[[], bool] = lambda: True) -> None:
        """`answers` says whether any GPU has answered what it was last asked."""
        self._answers = answers
        self._told: set[Hashable] = set()  # the threads whose calls were told

    def is_to_tell(self, thread: Hashable) -> bool:
        """Whether the call that this thread is in is to be told now; its return will be, then."""
        if thread in self._told or (self._told and not self._answers()):
            return False
        self._told.add(thread)
        return True

    def forget(self, thread: Hashable) -> None:
        self._told.discard(thread)

    def stuck(self, call: object, seconds: float) -> None:
        log.warning(
            "source nvml: %s has not returned for %.0f s; its number is absent, other numbers go on",
            call, seconds,
        )  # fmt: skip

    def returned(self, thread: Hashable, call: object, seconds: float, again: str) -> None:
        if thread in self._told:
            log.info("source nvml: %s returned after %.0f s%s", call, seconds, again)

    def blocked(self, lane: str, calls: int) -> bool:
        """Whether it was told."""
        if not self._answers():
            return False
        log.warning("source nvml: %s: %d calls have not returned; nothing is asked until one does", lane, calls)
        return True
