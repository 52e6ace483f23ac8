"""How much one query may use: samples, time, and whether anybody still wants the answer.

`check` is called between operations, never inside one: a numpy call is short, so a query stops soon after its
time is up or its client has gone.
"""

from __future__ import annotations

import threading
import time

from gpuscope.promql.errors import ExecutionError, QueryCanceledError, QueryTimeoutError


class Budget:
    """Counts what a query loads and makes; raises once it is too much."""

    __slots__ = ("_cancelled", "_deadline", "_max_samples", "peak", "samples")

    def __init__(
        self,
        max_samples: int = 50_000_000,
        timeout_seconds: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.samples = self.peak = 0
        self._max_samples = max_samples
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._cancelled = cancelled

    def check(self, during: str = "expression evaluation") -> None:
        if self._cancelled is not None and self._cancelled.is_set():
            raise QueryCanceledError(f"query was canceled in {during}")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise QueryTimeoutError(f"query timed out in {during}")

    def charge(self, samples: int) -> None:
        """Count samples that are, or are about to be, held in memory."""
        self.afford(samples)
        self.samples += samples
        if self.samples > self.peak:
            self.peak = self.samples
        self.check()

    def release(self, samples: int) -> None:
        """Samples that were charged and are held no longer."""
        self.samples -= samples

    def left(self) -> int:
        """How many more samples may be held."""
        return self._max_samples - self.samples

    def afford(self, samples: int) -> None:
        """Refuse a step that would need more memory than is left, before it takes it."""
        if self.samples + samples > self._max_samples:
            raise ExecutionError("query processing would load too many samples into memory in query execution")
