"""Keeps what the history says of findings, in windows of six hours that are read once.

`update` reads what is new, `cover` reads older windows, newest first, `recheck` drops windows of the last day
whose samples came later. Only one of the three may run at a time. A window that is not read yet is missing in
`windows`, and a report says so; a report never waits for all of a long range.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gpuscope.engines.query_engine import QueryEngine
from gpuscope.health.check import Check
from gpuscope.health.checks import CHECKS, explaining_first
from gpuscope.health.condition import SubjectKey
from gpuscope.promql.result import Matrix
from gpuscope.reports.finding_windows import (
    OBSERVED,
    STEP_MS,
    LostSpan,
    Offload,
    Window,
    join_windows,
    read_window,
    run_inline,
)

WINDOW_MS: Final = 6 * 3_600_000
LAG_MS: Final = 60_000
"""Samples of a slower scrape arrive late."""
MAX_GAP_MS: Final = 300_000
"""What comes back within five minutes goes on: an agent that restarts knows nothing for a minute."""
RECHECK_MS: Final = 24 * 3_600_000


class FindingLedger:
    def __init__(
        self,
        engine: QueryEngine,
        *,
        checks: Sequence[Check] = tuple(CHECKS.values()),
        offload: Offload = run_inline,
    ) -> None:
        self._engine = engine
        self._checks = explaining_first(checks)
        self._offload = offload
        self._closed: dict[int, Window] = {}
        self._tail: Window | None = None
        """The window that is not over."""
        self.version = 0
        self._began: dict[SubjectKey, float] = {}
        self._began_of = -1
        """Another number when more, or something else, is known."""

    def windows(self, start_ms: int, end_ms: int) -> list[Window]:
        """What is known of a range, oldest first."""
        return sorted(
            (one for one in self._known() if one.start_ms < end_ms and one.end_ms > start_ms),
            key=lambda one: one.start_ms,
        )

    async def update(self, now_ms: int) -> int:
        """Reads until a minute ago; returns the end of what is known."""
        until = (now_ms - LAG_MS) // STEP_MS * STEP_MS
        current = until // WINDOW_MS * WINDOW_MS
        # A window that has just ended is read again as a whole, by `cover`.
        if self._tail is not None and self._tail.start_ms != current:
            self._tail = None
        begin = current if self._tail is None else self._tail.end_ms
        if until > begin:
            part = await self._read(begin, until)
            await self._offload(partial(self._add_to_tail, part))
        return max(until, begin)

    async def cover(self, start_ms: int, now_ms: int) -> bool:
        """Reads the newest window that is missing; False if there is none back to `start_ms`."""
        begin = (now_ms - LAG_MS) // STEP_MS * STEP_MS // WINDOW_MS * WINDOW_MS - WINDOW_MS
        while begin > start_ms - WINDOW_MS:
            if begin not in self._closed:
                self._closed[begin] = await self._read(begin, begin + WINDOW_MS)
                self.version += 1
                return True
            begin -= WINDOW_MS
        return False

    async def recheck(self, now_ms: int) -> bool:
        """Drops windows of the last day that failed or have other samples now; True if there was one."""
        recent = [one for one in self._known() if one.start_ms > now_ms - RECHECK_MS]
        if not recent:
            return False
        start_ms = min(one.start_ms for one in recent)
        end_ms = max(one.end_ms for one in recent)
        counted = await self._engine.range(f"count({OBSERVED})", start_ms, end_ms - STEP_MS, STEP_MS)
        changed = {one.start_ms for one in recent if one.failed or one.read_steps != _steps_in(one, counted)}
        self._closed = {start: one for start, one in self._closed.items() if start not in changed}
        if self._tail is not None and self._tail.start_ms in changed:
            self._tail = None
        self.version += bool(changed)
        return bool(changed)

    def forget(self, before_ms: int) -> None:
        self._closed = {start: one for start, one in self._closed.items() if one.end_ms > before_ms}

    def _known(self) -> list[Window]:
        return [*self._closed.values()] if self._tail is None else [*self._closed.values(), self._tail]

    def began(self) -> dict[SubjectKey, float]:
        """Of what holds at the end of what is known: when it began, in seconds since the epoch."""
        if self._began_of != self.version:
            self._began, self._began_of = self._find_beginnings(), self.version
        return self._began

    def _find_beginnings(self) -> dict[SubjectKey, float]:
        tail = self._tail
        if tail is None:
            return {}
        leads = {check.kind: check.lead_seconds for check in self._checks}
        first = {key: spans[0].start_ms for key, spans in tail.observed.items() if spans}
        found: dict[SubjectKey, float] = {}
        for subject, spans in tail.spans.items():
            if spans[-1].end_ms < tail.end_ms - STEP_MS:
                continue
            start = self._first_of(subject)
            observed_ms = self._first_observed(subject, start.start_ms, first)
            lead = start.age_seconds or leads.get(subject.kind, 0.0)
            found[subject] = max(start.start_ms / 1000 - lead, observed_ms / 1000)
        return found

    def _first_of(self, subject: SubjectKey) -> LostSpan:
        """The span with which it began: through spans and windows before, with gaps of five minutes at most."""
        first: LostSpan | None = None
        for window in sorted(self._known(), key=lambda one: -one.start_ms):
            if first is not None and first.start_ms - window.end_ms > MAX_GAP_MS:
                break
            for span in reversed(window.spans.get(subject, ())):
                if first is not None and first.start_ms - span.end_ms > MAX_GAP_MS:
                    return first
                first = span
        assert first is not None  # noqa: S101 - it holds in the newest window
        return first

    def _first_observed(self, subject: SubjectKey, start_ms: int, first: dict[tuple[str, str], int]) -> int:
        """A GPU that was first read when the episode began may have been so before; that is not known."""
        key = subject.instance, subject.uuid
        earlier = any(key in window.observed for window in self._closed.values() if window.end_ms <= start_ms)
        return 0 if earlier or not subject.uuid else first.get(key, 0)

    def _add_to_tail(self, part: Window) -> None:
        self.version += 1
        self._tail = part if self._tail is None else join_windows(self._tail, part)

    async def _read(self, start_ms: int, end_ms: int) -> Window:
        return await read_window(self._engine, self._checks, start_ms, end_ms, self._offload)


def _steps_in(window: Window, counted: Matrix) -> int:
    """The GPUs and instances at each step of the window, added up."""
    if not counted.labels:
        return 0
    inside = (counted.times_ms >= window.start_ms) & (counted.times_ms < window.end_ms) & counted.present[0]
    return round(float(counted.values[0][inside].sum()))
