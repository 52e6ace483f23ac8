"""Log lines about stuck driver calls of all runners of a source.

A stuck call and its return are logged while other GPUs answer. While no GPU answers, only the first stuck call
is logged: a driver that blocks every call of eight GPUs would otherwise cause forty lines, and the source's own
message contains their number. Calls that are still stuck when GPUs answer again are logged then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

log = logging.getLogger("gpuscope.source")


class StuckCallLog:
    def __init__(self, answers: Callable[[], bool] = lambda: True) -> None:
        """`answers` returns whether any GPU answered its last calls."""
        self._answers = answers
        self._logged: set[Hashable] = set()  # threads whose stuck calls were logged

    def should_log(self, thread: Hashable) -> bool:
        """Whether to log this thread's call now. If so, its return is logged too."""
        if thread in self._logged or (self._logged and not self._answers()):
            return False
        self._logged.add(thread)
        return True

    def forget(self, thread: Hashable) -> None:
        self._logged.discard(thread)

    def stuck(self, call: object, seconds: float) -> None:
        log.warning(
            "source nvml: %s has not returned for %.0f s; its number is absent, other numbers are still read",
            call, seconds,
        )  # fmt: skip

    def returned(self, thread: Hashable, call: object, seconds: float, pause_seconds: float) -> None:
        if thread in self._logged:
            pause = f"; it is called again in {pause_seconds:.0f} s" if pause_seconds else ""
            log.info("source nvml: %s returned after %.0f s%s", call, seconds, pause)

    def blocked(self, runner: str, calls: int) -> bool:
        """Logs that a runner makes no calls; returns whether it was logged."""
        if not self._answers():
            return False
        log.warning(
            "source nvml: %s: %d calls have not returned; no call is made until one returns", runner, calls
        )
        return True
