from __future__ import annotations

import itertools
import logging
import re
import threading

import pytest

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.errors import NoAnswerYet, SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Reading, Snapshot
from gpuscope.model.source import Tier
from tests.fakes import FakeClock, FakeSource, Hanging, gpu, spec_of


def worker_of(source: FakeSource, clock: FakeClock) -> SourceWorker:
    return SourceWorker(spec_of(source), Settings(), clock)


def test_tiers_are_read_at_their_own_pace() -> None:
    clock, source = FakeClock(), FakeSource(Reading)
    worker = worker_of(source, clock)
    for _ in range(61):
        worker.read_once()
        clock.pass_seconds(1.0)
    counts = {tier: sum(tier in due for due in source.asked) for tier in Tier}
    assert counts == {Tier.FAST: 61, Tier.MEDIUM: 7, Tier.SLOW: 2}


class Watching(FakeSource):
    """A source that looks at the last snapshot."""

    def __init__(self) -> None:
        super().__init__(Reading)
        self.seen: list[str] = []

    def observe(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot.node)


def test_a_source_may_look_at_the_last_snapshot() -> None:
    source, clock = Watching(), FakeClock()
    worker = worker_of(source, clock)
    collector = Collector(
        [PlannedSource(worker)], node="n1", interval=1.0, clock=clock, ledger=ErrorLedger(None)
    )
    worker.read_once()
    assert source.seen == []
    collector.compose()
    worker.read_once()
    assert source.seen == ["n1"]


def test_a_reading_goes_stale_at_its_deadline() -> None:
    clock, source = FakeClock(), FakeSource(lambda: Reading(devices=(gpu(),)))
    worker = worker_of(source, clock)
    worker.read_once()
    assert worker.fresh() is not ABSENT
    clock.pass_seconds(6.0)
    assert worker.fresh() is ABSENT
    assert not worker.status().up
    assert "no answer for 6 s" in worker.status().why


def test_a_source_without_an_answer_yet_stays_open_and_its_reading_grows_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, slow = FakeClock(), [False]

    def answer() -> Reading:
        if slow[0]:
            raise NoAnswerYet("GPU 0: nvmlX has not returned")
        return Reading(devices=(gpu(),))

    source = FakeSource(answer)
    worker = worker_of(source, clock)
    worker.read_once()
    slow[0] = True
    for _ in range(8):
        clock.pass_seconds(1.0)
        worker.read_once()
        assert (worker.fresh() is ABSENT) == (not worker.status().up)
    status = worker.status()
    assert status.why == "no answer for 8 s: GPU 0: nvmlX has not returned"
    assert status.last_success_at == clock.now() - 8
    assert (source.closed, status.failures) == (0, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "source fake: no answer for 6 s: GPU 0: nvmlX has not returned"
    ]
    slow[0] = False
    clock.pass_seconds(1.0)
    worker.read_once()
    assert worker.status().up
    assert worker.fresh() is not ABSENT


def test_a_failure_is_a_gap_a_count_and_one_log_line_per_episode(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    answers: list[object] = [
        Reading(),
        SourceError("gone"),
        SourceError("gone"),
        Reading(),
        SourceError("gone"),
    ]

    def answer() -> Reading:
        now = answers.pop(0)
        if isinstance(now, Exception):
            raise now
        assert isinstance(now, Reading)
        return now

    source = FakeSource(answer)
    worker = worker_of(source, clock)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            worker.read_once()
    assert [r.message for r in caplog.records if "gone" in r.message] == ["source fake: gone"] * 2
    assert worker.fresh() is ABSENT
    assert worker.status().failures == 3
    assert source.closed == 3, "a source that failed is closed and opened anew"


def test_new_rubbish_each_time_is_one_line_per_episode(caplog: pytest.LogCaptureFixture) -> None:
    clock, number = FakeClock(), itertools.count()
    codes = {5: 9, 6: 15, 7: 127, 8: 3}  # at most four kinds of failure are logged

    def fails() -> Reading:
        turn = next(number)
        if turn == 20:
            return Reading()
        raise SourceError(f"nvidia-smi lists no GPU: rubbish {turn}", code=codes.get(turn, 0))

    worker = worker_of(FakeSource(fails), clock)
    with caplog.at_level(logging.INFO):
        for _ in range(25):
            worker.read_once()
    logged = [found[1] for r in caplog.records if (found := re.search(r"rubbish (\d+)", r.message))]
    assert logged == ["0", "5", "6", "7", "21"]


def test_reopening_backs_off() -> None:
    clock = FakeClock()

    def fails() -> Reading:
        raise SourceError("no driver")

    source = FakeSource(fails)
    worker = worker_of(source, clock)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    for _ in range(120):
        if worker.wake_if_due():
            assert worker.wait(5.0)
        clock.pass_seconds(1.0)
    worker.stop()
    thread.join(5.0)
    assert 6 <= len(source.asked) <= 12


def test_failing_calls_are_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    failing = [{"fan speed": 2}, {"fan speed": 1}, {}]
    worker = worker_of(FakeSource(lambda: Reading(failures=failing.pop(0))), clock)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            worker.read_once()
    assert worker.status().failures == 3
    assert worker.status().up
    assert sum("fan speed: failed" in r.message for r in caplog.records) == 1
    assert sum("fan speed: answers again" in r.message for r in caplog.records) == 1


def test_a_read_that_hangs_blocks_nobody_and_is_not_started_twice() -> None:
    clock, hanging = FakeClock(), Hanging()
    worker = worker_of(FakeSource(hanging), clock)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert worker.wake_if_due()
    assert not worker.wait(0.01)
    clock.pass_seconds(60.0)
    assert not worker.wake_if_due(), "at most one stuck worker per source"
    assert not worker.status().up
    hanging.release.set()
    assert worker.wait(5.0)
    assert worker.status().up
    worker.stop()
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_first_read_that_hangs_is_not_down_until_its_deadline_and_then_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, hanging = FakeClock(), Hanging()
    worker = worker_of(FakeSource(hanging), clock)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    with caplog.at_level(logging.INFO):
        assert not worker.is_down(), "nobody has asked it yet"
        assert worker.wake_if_due()
        clock.pass_seconds(1.0)
        assert not worker.is_down()
        clock.pass_seconds(10.0)
        assert worker.is_down()
        for _ in range(3):
            worker.wake_if_due()
            clock.pass_seconds(1.0)
        assert "no answer for 14 s" in worker.status().why
        hanging.release.set()
        assert worker.wait(5.0)
    assert not worker.is_down()
    said = [record.message for record in caplog.records]
    assert said == ["source fake: no answer for 11 s", "source fake: answers (a fake), after 3 s"]
    worker.stop()
    thread.join(5.0)


def test_a_source_that_nobody_wants_any_more_is_closed() -> None:
    clock, source = FakeClock(), FakeSource(Reading)
    worker = worker_of(source, clock)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert worker.wake_if_due()
    assert worker.wait(5.0)
    worker.wanted = False
    for _ in range(3):
        assert not worker.wake_if_due()
        assert worker.wait(5.0)
    assert source.closed == 1
    assert not worker.is_down()
    assert worker.fresh() is ABSENT
    worker.wanted = True
    clock.pass_seconds(1.0)
    assert worker.wake_if_due()
    assert worker.wait(5.0)
    assert worker.fresh() is not ABSENT
    worker.stop()
    thread.join(5.0)
