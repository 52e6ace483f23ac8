"""The ledger of findings: each window is read once, newest first, and again only if its samples came later."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.checks.finding import SubjectKey
from gpuscope.judge.reports.findings.finding_ledger import WINDOW_MS, FindingLedger
from gpuscope.judge.reports.findings.past_findings import past_findings
from tests.reports.histories import START_MS, STEP_MS, History


class CountingEngine:
    """Answers from a history that may grow, and notes which ranges are asked for."""

    name = "test"

    def __init__(self, history: History) -> None:
        self.history = history
        self.asked: list[tuple[int, int]] = []
        self._engine: EmbeddedEngine = history.engine()

    def grow(self) -> None:
        self._engine = self.history.engine()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def range(self, expression: str, start_ms: int, end_ms: int, *args: Any, **more: Any) -> Matrix:
        self.asked.append((start_ms, end_ms))
        return await self._engine.range(expression, start_ms, end_ms, *args, **more)

    def windows_asked(self) -> list[int]:
        """Starts in minutes, in the order in which they were first asked for."""
        starts = list(dict.fromkeys(start for start, _ in self.asked))
        self.asked.clear()
        return [(start - START_MS) // STEP_MS for start in starts]


def idle_history() -> History:
    history = History(minutes=20 * 60)
    history.process(history.gpu(0, processes=1.0), "7", idle_since=0, user="alice")
    return history


def cost(ledger: FindingLedger, history: History) -> float:
    windows = ledger.windows(START_MS, history.end_ms)
    found = past_findings(windows, START_MS, history.end_ms)
    return sum(one.finding.cost_gpu_hours or 0.0 for one in found.findings)


async def read_all(ledger: FindingLedger, now_ms: int) -> None:
    await ledger.update(now_ms)
    while await ledger.cover(START_MS, now_ms):
        pass


def test_windows_are_read_once_and_newest_first() -> None:
    async def scene() -> None:
        history = idle_history()
        engine = CountingEngine(history)
        ledger = FindingLedger(engine)
        now_ms = history.end_ms + 60_000
        await read_all(ledger, now_ms)
        assert engine.windows_asked() == [1080, 720, 360, 0]
        await read_all(ledger, now_ms)
        assert engine.windows_asked() == []
        assert abs(cost(ledger, history) - 20) < 0.1

    asyncio.run(scene())


def test_windows_of_a_closed_range_are_read_alone_and_date_nothing_of_now() -> None:
    """A receipt of yesterday does not wait for today, and what lasts is not dated by a part of its past."""

    async def scene() -> None:
        history = idle_history()
        engine = CountingEngine(history)
        ledger = FindingLedger(engine)
        now_ms = history.end_ms + 60_000
        await ledger.update(now_ms)
        while await ledger.cover(START_MS + 400 * 60_000, now_ms, START_MS + 720 * 60_000):
            pass
        assert engine.windows_asked() == [1080, 360]
        assert ledger.open_stretches() == {}
        await read_all(ledger, now_ms)
        assert len(ledger.open_stretches()) == 1

    asyncio.run(scene())


def test_only_what_is_new_is_read_later() -> None:
    async def scene() -> None:
        history = idle_history()
        engine = CountingEngine(history)
        ledger = FindingLedger(engine)
        await read_all(ledger, history.end_ms + 60_000 - 600_000)
        engine.windows_asked()
        await ledger.update(history.end_ms + 60_000)
        assert engine.windows_asked() == [1190]
        assert abs(cost(ledger, history) - 20) < 0.1

    asyncio.run(scene())


def test_an_episode_over_many_windows_is_one() -> None:
    async def scene() -> None:
        history = idle_history()
        ledger = FindingLedger(CountingEngine(history))
        await read_all(ledger, history.end_ms + 60_000)
        windows = ledger.windows(START_MS, history.end_ms)
        (one,) = past_findings(windows, START_MS, history.end_ms).findings
        assert (len(windows), one.times, one.finding.until) == (4, 1, None)
        assert one.finding.since == START_MS / 1000

    asyncio.run(scene())


def test_a_window_read_in_parts_is_as_if_read_at_once() -> None:
    async def scene() -> None:
        history = History(minutes=20 * 60)
        holder = history.gpu(1, processes=1.0)
        for begin in (1085, 1120, 1160):  # it ends and begins, within parts and between them
            history.process(holder, f"9{begin}", begin=begin, end=begin + 31, idle_since=begin, user="bob")
        in_parts, at_once = (FindingLedger(CountingEngine(history)) for _ in range(2))
        for minute in range(1081, 1200, 7):
            await in_parts.update(START_MS + (minute + 1) * STEP_MS)
        await in_parts.update(history.end_ms + 60_000)
        await at_once.update(history.end_ms + 60_000)
        (joined,), (whole,) = (one.windows(START_MS, history.end_ms) for one in (in_parts, at_once))
        assert {subject.kind for subject in whole.spans} >= {"held_idle"}
        assert joined == whole

    asyncio.run(scene())


def test_samples_that_came_later_are_read_again() -> None:
    async def scene() -> None:
        history = idle_history()
        engine = CountingEngine(history)
        ledger = FindingLedger(engine)
        now_ms = history.end_ms + 60_000
        await read_all(ledger, now_ms)
        assert not await ledger.recheck(now_ms)
        late = history.gpu(1, begin=400, end=700, processes=1.0)
        history.process(late, "8", begin=400, end=700, idle_since=400, user="bob")
        engine.grow()
        engine.windows_asked()
        assert await ledger.recheck(now_ms)
        await read_all(ledger, now_ms)
        assert engine.windows_asked() == [0, 360]  # one count of all windows, then the changed one
        assert abs(cost(ledger, history) - 25) < 0.1

    asyncio.run(scene())


def test_what_is_not_read_is_missing_in_hours() -> None:
    async def scene() -> None:
        history = idle_history()
        ledger = FindingLedger(CountingEngine(history))
        await ledger.update(history.end_ms + 60_000)
        assert await ledger.cover(START_MS, history.end_ms + 60_000)
        found = past_findings(ledger.windows(START_MS, history.end_ms), START_MS, history.end_ms)
        assert found.coverage.sentences[0] == "12.0 h of the range are not read yet; ask again in a minute"
        ledger.forget(START_MS + 3 * WINDOW_MS)
        assert len(ledger.windows(START_MS, history.end_ms)) == 1

    asyncio.run(scene())


HOLDS_IDLE = SubjectKey("held_idle", "n1:9400", "GPU-n1-0", ("", "", "", "", "alice"))


def test_what_holds_now_is_known_when_its_beginning_is_read() -> None:
    async def scene() -> None:
        history = idle_history()
        ledger = FindingLedger(CountingEngine(history))
        now_ms = history.end_ms + 60_000
        await ledger.update(now_ms)
        assert HOLDS_IDLE not in ledger.open_stretches(), "it began before what is read"
        await read_all(ledger, now_ms)
        stretch = ledger.open_stretches()[HOLDS_IDLE]
        assert stretch.began == START_MS / 1000
        assert stretch.loss is not None
        assert abs(stretch.loss.gpu_seconds / 3600 - cost(ledger, history)) < 1e-9
        assert (stretch.loss.gpus, stretch.loss.at) == (1.0, history.end_ms / 1000)

    asyncio.run(scene())


def test_a_beginning_stays_known_when_a_window_ends() -> None:
    async def scene() -> None:
        history = idle_history()
        ledger = FindingLedger(CountingEngine(history))
        await read_all(ledger, START_MS + WINDOW_MS)
        before = ledger.open_stretches()[HOLDS_IDLE]
        await ledger.update(START_MS + WINDOW_MS + 600_000)
        assert ledger.open_stretches()[HOLDS_IDLE].began == before.began

    asyncio.run(scene())


def test_older_samples_that_arrive_date_it_anew() -> None:
    """Also those of more than a day ago, as remote write sends them after an outage."""

    async def scene() -> None:
        history = History(minutes=60 * 60)
        gpu = history.gpu(0, begin=40 * 60, processes=1.0)
        history.process(gpu, "7", begin=40 * 60, idle_since=40 * 60, user="alice")
        engine = CountingEngine(history)
        ledger = FindingLedger(engine)
        now_ms = history.end_ms + 60_000
        await read_all(ledger, now_ms)
        assert ledger.open_stretches()[HOLDS_IDLE].began == history.at(40 * 60)
        history.series.clear()
        history.process(history.gpu(0, processes=1.0), "7", idle_since=0, user="alice")
        engine.grow()
        engine.windows_asked()
        assert await ledger.recheck(now_ms)
        assert len(engine.windows_asked()) == 2, "one count for the last day, one for all before"
        await read_all(ledger, now_ms)
        stretch = ledger.open_stretches()[HOLDS_IDLE]
        assert stretch.began == START_MS / 1000
        assert stretch.loss is not None
        assert abs(stretch.loss.gpu_seconds / 3600 - 60) < 0.1
        assert not await ledger.recheck(now_ms)

    asyncio.run(scene())


def test_nothing_is_read_beyond_what_is_filled_in() -> None:
    """While the past is filled in, a process seems idle since the last sample that is there."""

    async def scene() -> None:
        history = idle_history()
        filled_until_ms: int | None = START_MS + 8 * 3_600_000
        engine = CountingEngine(history)
        ledger = FindingLedger(engine, filled_until_ms=lambda: filled_until_ms)
        now_ms = history.end_ms + 60_000
        await read_all(ledger, now_ms)
        assert max(end for _, end in engine.asked) < START_MS + 8 * 3_600_000
        assert ledger.open_stretches() == {}, "now is not read"
        history.series.clear()  # it worked in the part that is filled in last
        history.process(history.gpu(0, processes=1.0), "7", idle_since=600, user="alice")
        filled_until_ms = None
        engine.grow()
        await read_all(ledger, now_ms)
        assert ledger.open_stretches()[HOLDS_IDLE].began == history.at(600)

    asyncio.run(scene())
