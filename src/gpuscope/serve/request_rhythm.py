"""When the next request is due, from the times of those before: a scraper comes at a fixed interval.

A third request is expected as long after the second as that came after the first. With several scrapers some
expected requests do not come, which costs a rendering each; a request that was not expected is rendered when it
arrives.
"""

from __future__ import annotations

from typing import Final

MAX_TIMES: Final = 8
MIN_APART_SECONDS: Final = 0.5
"""Closer requests get the same snapshot."""
SLACK_SECONDS: Final = 0.3


class RequestRhythm:
    """`record` and `is_due` may run in different threads."""

    def __init__(self) -> None:
        self._times: tuple[float, ...] = ()

    def record(self, at: float) -> None:
        if not self._times or at - self._times[-1] >= MIN_APART_SECONDS:
            self._times = (*self._times, at)[-MAX_TIMES:]

    def is_due(self, start: float, end: float) -> bool:
        """Whether a request is due between the two times, or a little before or after."""
        times = self._times
        return any(
            start - SLACK_SECONDS <= 2 * later - earlier < end + SLACK_SECONDS
            for number, later in enumerate(times)
            for earlier in times[:number]
        )
