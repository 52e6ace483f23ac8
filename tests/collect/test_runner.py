from __future__ import annotations

import itertools
import logging
import threading

import pytest

from gpuscope.collect.runner import Runner
from gpuscope.errors import NoAnswerYet, SourceError
from gpuscope.readings import ABSENT, Reading
from gpuscope.settings import Settings
from gpuscope.sources import Tier
from tests.fakes import FakeClock, FakeSource, Hanging, gpu, spec_of


def runner_of(source: FakeSource, clock: FakeClock) -> Runner:
    return Runner(spec_of(source), Settings(), clock)


def test_tiers_are_read_at_their_own_pace() -> None:
    clock, source = FakeClock(), FakeSource(Reading)
    runner = runner_of(source, clock)
    for _ in range(61):
        runner.cycle()
        clock.pass_seconds(1.0)
    counts = {tier: sum(tier in due for due in source.asked) for tier in Tier}
    assert counts == {Tier.FAST: 61, Tier.MEDIUM: 7, Tier.SLOW: 2}


def test_a_reading_goes_stale_at_its_deadline() -> None:
    clock, source = FakeClock(), FakeSource(lambda: Reading(devices=(gpu(),)))
    runner = runner_of(source, clock)
    runner.cycle()
    assert runner.fresh() is not ABSENT
    clock.pass_seconds(6.0)
    assert runner.fresh() is ABSENT
    assert not runner.status().up
    assert "no answer for 6 s" in runner.status().why


def test_a_source_without_an_answer_yet_stays_open_and_its_reading_grows_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, slow = FakeClock(), [False]

    def answer() -> Reading:
        if slow[0]:
            raise NoAnswerYet("GPU 0: nvmlX has not returned")
        return Reading(devices=(gpu(),))

    source = FakeSource(answer)
    runner = runner_of(source, clock)
    runner.cycle()
    slow[0] = True
    for _ in range(8):
        clock.pass_seconds(1.0)
        runner.cycle()
        assert (runner.fresh() is ABSENT) == (not runner.status().up)
    status = runner.status()
    assert status.why == "no answer for 8 s: GPU 0: nvmlX has not returned"
    assert status.last_success_at == clock.now() - 8
    assert (source.closed, status.failures) == (0, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "source fake: no answer for 6 s: GPU 0: nvmlX has not returned"
    ]
    slow[0] = False
    clock.pass_seconds(1.0)
    runner.cycle()
    assert runner.status().up
    assert runner.fresh() is not ABSENT


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
    runner = runner_of(source, clock)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            runner.cycle()
    assert [r.message for r in caplog.records if "gone" in r.message] == ["source fake: gone"] * 2
    assert runner.fresh() is ABSENT
    assert runner.status().failures == 3
    assert source.closed == 3, "a source that failed is closed and opened anew"


def test_new_rubbish_each_time_is_one_line_per_episode(caplog: pytest.LogCaptureFixture) -> None:
    clock, number = FakeClock(), itertools.count()
    codes = {5: 9, 6: 15, 7: 127, 8: 3}  # a few kinds of failure are told, not each exit code there is

    def fails() -> Reading:
        turn = next(number)
        if turn == 20:
            return Reading()
        raise SourceError(f"nvidia-smi lists no GPU: rubbish {turn}", code=codes.get(turn, 0))

    runner = runner_of(FakeSource(fails), clock)
    with caplog.at_level(logging.INFO):
        for _ in range(25):
            runner.cycle()
    told = [r.message.rpartition(" ")[2] for r in caplog.records if "rubbish" in r.message]
    assert told == ["0", "5", "6", "21"]


def test_reopening_backs_off() -> None:
    clock = FakeClock()

    def fails() -> Reading:
        raise SourceError("no driver")

    runner = runner_of(FakeSource(fails), clock)
    attempts = 0
    for _ in range(120):
        if runner.start_cycle_if_due():
            attempts += 1
            runner.cycle()
            runner._idle.set()
        clock.pass_seconds(1.0)
    assert 6 <= attempts <= 12


def test_failing_calls_are_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    failing = [{"fan speed": 2}, {"fan speed": 1}, {}]
    runner = runner_of(FakeSource(lambda: Reading(failures=failing.pop(0))), clock)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            runner.cycle()
    assert runner.status().failures == 3
    assert runner.status().up
    assert sum("fan speed fails" in r.message for r in caplog.records) == 1
    assert sum("fan speed answers again" in r.message for r in caplog.records) == 1


def test_a_read_that_hangs_blocks_nobody_and_is_not_started_twice() -> None:
    clock, hanging = FakeClock(), Hanging()
    runner = runner_of(FakeSource(hanging), clock)
    worker = threading.Thread(target=runner.run, daemon=True)
    worker.start()
    assert runner.start_cycle_if_due()
    assert not runner.wait(0.01)
    clock.pass_seconds(60.0)
    assert not runner.start_cycle_if_due(), "at most one stuck worker per source"
    assert not runner.status().up
    hanging.release.set()
    assert runner.wait(5.0)
    assert runner.status().up
    runner.stop()
    worker.join(5.0)
    assert not worker.is_alive()


def test_a_first_read_that_hangs_is_not_down_until_its_deadline_and_then_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, hanging = FakeClock(), Hanging()
    runner = runner_of(FakeSource(hanging), clock)
    worker = threading.Thread(target=runner.run, daemon=True)
    worker.start()
    with caplog.at_level(logging.INFO):
        assert not runner.is_down(), "nobody has asked it yet"
        assert runner.start_cycle_if_due()
        clock.pass_seconds(1.0)
        assert not runner.is_down()
        clock.pass_seconds(10.0)
        assert runner.is_down()
        for _ in range(3):
            runner.start_cycle_if_due()
            clock.pass_seconds(1.0)
        assert "no answer for 14 s" in runner.status().why
        hanging.release.set()
        assert runner.wait(5.0)
    assert not runner.is_down()
    said = [record.message for record in caplog.records]
    assert said == ["source fake: no answer for 11 s", "source fake answers: a fake"]
    runner.stop()
    worker.join(5.0)


def test_a_source_that_nobody_wants_any_more_is_closed() -> None:
    clock, source = FakeClock(), FakeSource(Reading)
    runner = runner_of(source, clock)
    worker = threading.Thread(target=runner.run, daemon=True)
    worker.start()
    assert runner.start_cycle_if_due()
    assert runner.wait(5.0)
    runner.wanted = False
    for _ in range(3):
        assert not runner.start_cycle_if_due()
        assert runner.wait(5.0)
    assert source.closed == 1
    assert not runner.is_down()
    assert runner.fresh() is ABSENT
    runner.wanted = True
    clock.pass_seconds(1.0)
    assert runner.start_cycle_if_due()
    assert runner.wait(5.0)
    assert runner.fresh() is not ABSENT
    runner.stop()
    worker.join(5.0)
