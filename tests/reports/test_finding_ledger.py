"""The ledger of findings: each window is read once, newest first, and again only if its samples came later."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.promql.result import Matrix
from gpuscope.reports.finding_ledger import WINDOW_MS, FindingLedger
from gpuscope.reports.past_findings import past_findings
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

    asyncio.run(scene())


def failing_history(ends: tuple[int, ...]) -> History:
    """Programs of 40 minutes on one GPU, each of which ends with an XID."""
    history = History(minutes=20 * 60)
    gpu = history.gpu(0, processes=1.0)
    for number, end in enumerate(ends):
        history.process(gpu, str(number), begin=end - 40, end=end, user="alice")
        later = next((one for one in ends if one > end), None)
        xid = {**gpu, "xid": "31"}
        history.add("gpuscope_gpu_xid_last_timestamp_seconds", history.at(end), end, later, **xid)
    return history


def test_work_that_is_lost_costs_once_over_windows_and_parts_of_one() -> None:
    async def scene() -> None:
        history = failing_history((200, 358, 1100))  # the second is seen in two windows
        ledger = FindingLedger(CountingEngine(history))
        for minute in range(1090, 1110):  # a request each minute
            await ledger.update(START_MS + (minute + 1) * STEP_MS)
        await read_all(ledger, history.end_ms + 60_000)
        assert abs(cost(ledger, history) - 3 * 40 / 60) < 0.001

    asyncio.run(scene())


def test_a_window_read_in_parts_is_as_if_read_at_once() -> None:
    async def scene() -> None:
        history = failing_history((1100, 1150))
        holder = history.gpu(1, processes=1.0)
        for begin in (1085, 1120, 1160):  # it ends and begins, within parts and between them
            history.process(holder, f"9{begin}", begin=begin, end=begin + 25, idle_since=begin, user="bob")
        in_parts, at_once = (FindingLedger(CountingEngine(history)) for _ in range(2))
        for minute in range(1081, 1200, 7):
            await in_parts.update(START_MS + (minute + 1) * STEP_MS)
        await in_parts.update(history.end_ms + 60_000)
        await at_once.update(history.end_ms + 60_000)
        (joined,), (whole,) = (one.windows(START_MS, history.end_ms) for one in (in_parts, at_once))
        assert {subject.kind for subject in whole.spans} >= {"failed_jobs", "held_idle"}
        assert joined == whole

    asyncio.run(scene())


def test_lost_work_belongs_to_the_range_in_which_it_was_lost() -> None:
    async def scene() -> None:
        history = failing_history((200, 300, 400, 500))
        ledger = FindingLedger(CountingEngine(history))
        await read_all(ledger, history.end_ms + 60_000)
        for begin, end, expected in (
            (0, 402, 3),
            (201, 1200, 3),
        ):  # a cut within the minutes in which it is seen
            start_ms, end_ms = START_MS + begin * STEP_MS, START_MS + end * STEP_MS
            found = past_findings(ledger.windows(start_ms, end_ms), start_ms, end_ms).findings
            (one,) = [one for one in found if one.finding.kind == "failed_jobs"]
            assert one.finding.args == {"count": expected}
            assert abs((one.finding.cost_gpu_hours or 0.0) - expected * 40 / 60) < 0.001

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
        assert engine.windows_asked() == [0, 360]  # the count of all windows, then the changed one
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
