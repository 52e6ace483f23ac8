"""Keeps what the history says of findings, in windows of six hours that are read once.

`update` reads what is new, `cover` reads older windows, newest first, `recheck` drops windows whose samples
came later. Only one of the three may run at a time. A window that is not read yet is missing in `windows`, and
a report says so; a report never waits for all of a long range. Nothing is read beyond `filled_until_ms`: while
the past is filled in, what comes after it is not complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.checks import CHECKS, explaining_first
from gpuscope.judge.checks.finding import Loss, SubjectKey
from gpuscope.judge.reports.findings.finding_episodes import Episode, episodes_by_subject
from gpuscope.judge.reports.findings.finding_windows import (
    OBSERVED,
    STEP_MS,
    Offload,
    Window,
    join_windows,
    read_window,
    run_inline,
)
from gpuscope.judge.reports.gpu_identities import GpuIdentities

WINDOW_MS: Final = 6 * 3_600_000
LAG_MS: Final = 60_000
"""Samples of a slower scrape arrive late."""
MAX_GAP_MS: Final = 300_000
"""What comes back within five minutes goes on: an agent that restarts knows nothing for a minute."""
RECENT_MS: Final = 24 * 3_600_000
OLD_STEP_MS: Final = 300_000
"""At which steps windows older than a day are counted: every sample is seen for so long."""


@dataclass(frozen=True, slots=True)
class OpenStretch:
    """What holds at the end of what is known."""

    began: float
    """Seconds since the epoch."""
    loss: Loss | None
    """None if it costs no GPU time, or nothing is known of it."""


class FindingLedger:
    def __init__(
        self,
        engine: QueryEngine,
        *,
        checks: Sequence[Check] = tuple(CHECKS.values()),
        offload: Offload = run_inline,
        filled_until_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`filled_until_ms` as `Store.filled_until_ms`."""
        self._engine = engine
        self._checks = explaining_first(checks)
        self._offload = offload
        self.filled_until_ms = filled_until_ms
        self._was_filling = False
        self._closed: dict[int, Window] = {}
        self._tail: Window | None = None
        """The window that is not over."""
        self._is_covered = False
        """The last `cover` found nothing to read."""
        self.version = 0
        """Another number when more, or something else, is known."""
        self._open: dict[SubjectKey, OpenStretch] = {}
        self._open_of: object = None
        """The version that `_open` is of."""

    def windows(self, start_ms: int, end_ms: int) -> list[Window]:
        """What is known of a range, oldest first."""
        return sorted(
            (window for window in self._known() if window.start_ms < end_ms and window.end_ms > start_ms),
            key=lambda window: window.start_ms,
        )

    @property
    def known_until_ms(self) -> int | None:
        """The end of the newest window that was read."""
        return max((one.end_ms for one in self._known()), default=None)

    async def update(self, now_ms: int) -> int:
        """Reads until a minute ago; returns the end of what is known."""
        await self._recheck_filled(now_ms)
        until = self._end_of_known(now_ms)
        current = _window_of(until)
        tail = self._tail
        if tail is not None and tail.start_ms != current:
            await self._close(tail, until)
        begin = current if self._tail is None else self._tail.end_ms
        if until > begin:
            part = await self._read(begin, until)
            await self._offload(partial(self._add_to_tail, part))
        return max(until, begin)

    async def cover(self, start_ms: int, now_ms: int, end_ms: int | None = None) -> bool:
        """Reads the newest window that is missing; False if there is none back to `start_ms`. With `end_ms`,
        only windows that begin before it."""
        begin = _window_of(self._end_of_known(now_ms)) - WINDOW_MS
        if end_ms is not None:
            begin = min(begin, _window_of(end_ms))
        while begin > start_ms - WINDOW_MS:
            if begin not in self._closed:
                self._is_covered = False
                self._closed[begin] = await self._read(begin, begin + WINDOW_MS)
                self.version += 1
                return True
            begin -= WINDOW_MS
        if end_ms is None:
            self.version += not self._is_covered
            self._is_covered = True
        return False

    async def recheck(self, now_ms: int) -> bool:
        """Drops windows that failed or have other samples now; True if there was one."""
        recent = [window for window in self._known() if window.start_ms > now_ms - RECENT_MS]
        older = [window for window in self._known() if window.start_ms <= now_ms - RECENT_MS]
        changed = await self._changed(recent, STEP_MS) | await self._changed(older, OLD_STEP_MS)
        self._closed = {start: one for start, one in self._closed.items() if start not in changed}
        if self._tail is not None and self._tail.start_ms in changed:
            self._tail = None
        if changed:
            self._is_covered = False
            self.version += 1
        return bool(changed)

    def forget(self, before_ms: int) -> None:
        self._closed = {start: one for start, one in self._closed.items() if one.end_ms > before_ms}

    def open_stretches(self) -> Mapping[SubjectKey, OpenStretch]:
        """What holds at the end of what is known, except where its beginning is not read yet."""
        if self._open_of != self.version:
            self._open, self._open_of = self._find_open(), self.version
        return self._open

    def has_older_losses(self) -> bool:
        """Whether something costs GPU time from the beginning of what is known until now."""
        begin = min((window.start_ms for window in self._contiguous()), default=0) / 1000
        return any(
            stretch.loss is not None and stretch.began <= begin for stretch in self.open_stretches().values()
        )

    def _find_open(self) -> dict[SubjectKey, OpenStretch]:
        tail = self._tail
        if tail is None or self.filled_until_ms() is not None:
            return {}
        windows = self._contiguous()
        identities = GpuIdentities(labels for window in windows for labels in window.gpus.values())
        is_open = {
            subject: spans[-1].lost_seconds / ((spans[-1].end_ms - spans[-1].start_ms) / 1000)
            for subject, spans in tail.spans.items()
            if spans[-1].end_ms >= tail.end_ms - STEP_MS
        }
        only = {subject for window in windows for subject in window.spans if subject.whole in is_open}
        known = episodes_by_subject(windows, self._checks, identities, windows[0].start_ms, tail.end_ms, only)
        by_whole: dict[SubjectKey, list[tuple[Check, SubjectKey, list[Episode]]]] = defaultdict(list)
        for check, subject, episodes in known:
            by_whole[subject.whole].append((check, subject, episodes))
        costed = {subject for window in windows for subject in window.costed}
        stretches: dict[SubjectKey, OpenStretch] = {}
        for whole, parts in by_whole.items():
            last = next((_last_stretch(episodes) for _, subject, episodes in parts if subject == whole), None)
            if last is None or last.end_ms < tail.end_ms - STEP_MS:
                continue
            # What began before it was read may have begun earlier; more will be read.
            if last.start_ms <= windows[0].start_ms and not self._is_covered:
                continue
            lost = rate = 0.0
            for check, subject, episodes in parts:
                gpus = identities.total(check, subject)
                lost += gpus * sum(episode.lost_within(last.start_ms, tail.end_ms) for episode in episodes)
                rate += gpus * is_open.get(subject, 0.0)
            loss = Loss(lost, rate, tail.end_ms / 1000) if whole in costed else None
            stretches[whole] = OpenStretch(last.start_ms / 1000, loss)
        return stretches

    def _contiguous(self) -> list[Window]:
        """Until now, without a window that is missing; oldest first."""
        if self._tail is None:
            return []
        windows = [self._tail]
        while (before := self._closed.get(windows[-1].start_ms - WINDOW_MS)) is not None:
            windows.append(before)
        return windows[::-1]

    def _end_of_known(self, now_ms: int) -> int:
        filled_until_ms = self.filled_until_ms()
        until_ms = now_ms - LAG_MS if filled_until_ms is None else min(now_ms - LAG_MS, filled_until_ms)
        return until_ms // STEP_MS * STEP_MS

    async def _recheck_filled(self, now_ms: int) -> None:
        is_filling = self.filled_until_ms() is not None
        if self._was_filling and not is_filling:
            await self.recheck(now_ms)
        self._was_filling = is_filling

    async def _changed(self, windows: Sequence[Window], step_ms: int) -> set[int]:
        """Starts of those that failed, or have another number of samples at these steps."""
        if not windows:
            return set()
        start_ms = min(window.start_ms for window in windows)
        end_ms = max(window.end_ms for window in windows)
        counted = await self._engine.range(f"count({OBSERVED})", start_ms, end_ms - STEP_MS, step_ms)
        counts = dict.fromkeys(range(start_ms, end_ms, step_ms), 0)
        if counted.labels:
            present = counted.present[0]
            counts |= zip(
                counted.times_ms[present].tolist(), map(round, counted.values[0][present]), strict=True
            )
        return {window.start_ms for window in windows if window.failed or _is_changed(window, counts, step_ms)}

    def _known(self) -> list[Window]:
        return [*self._closed.values()] if self._tail is None else [*self._closed.values(), self._tail]

    async def _close(self, tail: Window, until_ms: int) -> None:
        """The window is over: its rest is read."""
        end_ms = tail.start_ms + WINDOW_MS
        if until_ms < end_ms:  # the clock went back
            self._tail = None
            return
        if tail.end_ms < end_ms:
            rest = await self._read(tail.end_ms, end_ms)
            await self._offload(partial(self._add_to_tail, rest))
        if self._tail is not None:
            self._closed[tail.start_ms] = self._tail
        self._tail = None

    def _add_to_tail(self, part: Window) -> None:
        self._tail = part if self._tail is None else join_windows(self._tail, part)
        self.version += 1

    async def _read(self, start_ms: int, end_ms: int) -> Window:
        return await read_window(self._engine, self._checks, start_ms, end_ms, self._offload)


def _last_stretch(episodes: Sequence[Episode]) -> Episode:
    """The last of them, with those before it that ended a short time before the next one began."""
    last = episodes[-1]
    for before in reversed(episodes[:-1]):
        if last.seen_ms - before.end_ms > MAX_GAP_MS:
            break
        lost_seconds = before.lost_seconds + last.lost_seconds
        last = Episode(before.start_ms, last.end_ms, lost_seconds, seen_ms=before.seen_ms)
    return last


def _window_of(until_ms: int) -> int:
    """The start of the window that has the last step before this time."""
    return (until_ms - STEP_MS) // WINDOW_MS * WINDOW_MS


def _is_changed(window: Window, counts: Mapping[int, int], step_ms: int) -> bool:
    first_ms = -(-window.start_ms // step_ms) * step_ms
    return any(
        counts.get(at_ms, 0) != window.read_counts[(at_ms - window.start_ms) // STEP_MS]
        for at_ms in range(first_ms, window.end_ms, step_ms)
    )
