"""Counts over the last minutes, as dcgm-exporter makes them: samples with a value, not events.

dcgm-exporter counts how many of DCGM's samples of the last window held a value, one sample per collect
interval. The agent reads more often, so only one reading per interval is taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable


class SampleWindow:
    def __init__(self, window_ms: int, interval_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._interval = max(1, interval_ms) / 1000
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def record(self, uuid: str, at: float, values: Iterable[int]) -> None:
        samples = self._samples.setdefault(uuid, deque())
        while samples and samples[-1][0] > at:  # the clock was put back
            samples.pop()
        if not samples or at - samples[-1][0] >= self._interval * 0.99:
            samples.append((at, tuple(values)))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """How many samples hold each value; None if there was no sample at all."""
        samples = self._samples.get(uuid)
        while samples and samples[0][0] < at - self._window:
            samples.popleft()
        if not samples:
            self._samples.pop(uuid, None)
            return None
        return Counter(value for _, values in samples for value in values)
