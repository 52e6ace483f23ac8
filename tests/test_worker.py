"""Workers of any type: how long a value counts, when it is the same object, and what a failure costs."""

from __future__ import annotations

import logging
import math

import pytest

from gpuscope.agent.worker import FunctionReader, ReadResult, Timing, Worker
from gpuscope.model.readings import ABSENT
from tests.fakes import FakeClock


class Scripted:
    """Gives its answers one after the other; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.closed = 0

    def read(self) -> ReadResult[object]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ReadResult) else ReadResult(answer)

    def close(self) -> None:
        self.closed += 1


def worker_of(
    reader: Scripted, clock: FakeClock, good_for: float | None = None, reuse_equal: bool = False
) -> Worker[object]:
    timing = Timing(interval=1.0, deadline=5.0, good_for=good_for)
    return Worker("w", "a test", lambda: reader, timing, clock, reuse_equal=reuse_equal)


def test_a_function_is_a_reader() -> None:
    worker = Worker("w", "", lambda: FunctionReader(lambda: 7), Timing(interval=1, deadline=5), FakeClock())
    assert worker.fresh() is ABSENT
    worker.read_once()
    assert worker.fresh() == 7


@pytest.mark.parametrize(
    ("good_for", "after_failure", "after_deadline", "after_a_minute"),
    [(None, ABSENT, ABSENT, ABSENT), (59.0, "a", "a", ABSENT), (math.inf, "a", "a", "a")],
)
def test_how_long_a_value_counts(
    good_for: float | None, after_failure: object, after_deadline: object, after_a_minute: object
) -> None:
    clock = FakeClock()
    worker = worker_of(Scripted("a", OSError("gone")), clock, good_for)
    worker.read_once()
    assert worker.fresh() == "a"
    worker.read_once()
    assert worker.fresh() == after_failure
    assert not worker.status().up, "a value that still counts does not hide the failure"
    clock.pass_seconds(6.0)
    assert worker.fresh() == after_deadline
    clock.pass_seconds(54.0)
    assert worker.fresh() == after_a_minute


def test_a_value_without_failure_goes_at_the_deadline() -> None:
    clock = FakeClock()
    worker = worker_of(Scripted("a"), clock)
    worker.read_once()
    clock.pass_seconds(5.0)
    assert worker.fresh() == "a"
    clock.pass_seconds(0.1)
    assert worker.fresh() is ABSENT


def test_an_equal_value_is_the_same_object_where_that_is_asked_for() -> None:
    for reuse_equal in (True, False):
        worker = worker_of(Scripted([1], [1], [2]), FakeClock(), reuse_equal=reuse_equal)
        worker.read_once()
        first = worker.fresh()
        worker.read_once()
        assert (worker.fresh() is first) == reuse_equal
        worker.read_once()
        assert worker.fresh() == [2]


def test_an_answer_counts_from_the_time_its_read_began() -> None:
    clock = FakeClock()

    class Slow(Scripted):
        def read(self) -> ReadResult[object]:
            clock.pass_seconds(2.0)
            return super().read()

    worker = worker_of(Slow("a", OSError("gone")), clock)
    began = clock.monotonic()
    assert not worker.has_answered_since(began)
    worker.read_once()
    assert worker.has_answered_since(began)
    assert not worker.has_answered_since(began + 1), "the answer may be older than what happened in between"
    worker.read_once()
    assert not worker.has_answered_since(began + 1), "a failure is no answer"


def test_any_failure_is_caught_and_the_reader_opened_again() -> None:
    reader = Scripted("a", ZeroDivisionError(), "b")
    worker = worker_of(reader, FakeClock())
    for _ in range(3):
        worker.read_once()
    assert (worker.fresh(), reader.closed, worker.status().failures) == ("b", 1, 1)
    assert worker.status().code == 0


def test_a_reader_that_cannot_be_opened_is_a_failure() -> None:
    def fail() -> Scripted:
        raise OSError("no such socket")

    worker: Worker[object] = Worker("w", "", fail, Timing(interval=1, deadline=5), FakeClock())
    worker.read_once()
    assert (worker.status().up, worker.status().why) == (False, "no such socket")


def test_new_failing_parts_each_time_do_not_grow_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    parts = [ReadResult("a", {f"part {n}": 1 for n in range(1000)}), ReadResult("a")]
    worker = worker_of(Scripted(*parts), FakeClock())
    with caplog.at_level(logging.INFO):
        worker.read_once()
        failed = sum("failed" in record.message for record in caplog.records)
        worker.read_once()
    assert failed == 256
    assert sum("answers again" in record.message for record in caplog.records) == failed
    assert worker.status().failures == 1000


def test_a_reader_that_reports_its_subject_down_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    """The value counts, because it says what is known; the source is not up, and one line says why."""
    reader = Scripted("a", *(ReadResult("down", down="nobody answers") for _ in range(3)), "b")
    clock = FakeClock()
    worker = worker_of(reader, clock)
    worker.read_once()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.pass_seconds(1.0)
            worker.read_once()
            assert worker.fresh() == "down"
        assert (worker.status().up, worker.status().why) == (False, "nobody answers")
        assert worker.is_down()
        assert reader.closed == 0
        worker.read_once()
    assert worker.status().up
    assert not worker.is_down()
    said = [line.partition(": ")[2] for line in caplog.messages]
    assert said == ["nobody answers", "answers (a test), after 2 s"]
