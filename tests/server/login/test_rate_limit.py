from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.serve.login.password_checks import RateLimit
from tests.examples import examples
from tests.server.login.support import Clock


def test_free_attempts_then_a_wait_that_doubles_up_to_the_maximum() -> None:
    clock = Clock()
    limit = RateLimit(free_attempts=3, max_wait_seconds=60, clock=clock)
    waits = []
    for _ in range(12):
        waits.append(limit.wait("ann"))
        clock.now += limit.wait("ann")
        limit.count("ann")
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_success_or_a_pause_resets_one_key() -> None:
    clock = Clock()
    limit = RateLimit(free_attempts=1, max_wait_seconds=60, clock=clock)
    limit.count("ann")
    assert limit.wait("ann") == 1
    assert limit.wait("bob") == 0
    limit.forget("ann")
    assert limit.wait("ann") == 0
    for _ in range(20):
        limit.count("ann")
    clock.now += 121
    limit.count("ann")
    assert limit.wait("ann") == 1


def test_the_least_recently_used_key_is_dropped() -> None:
    limit = RateLimit(free_attempts=1, max_wait_seconds=60, max_keys=100, clock=Clock())
    for number in range(1000):
        limit.count("ann")
        limit.count(number)
    assert len(limit) == 100
    assert limit.wait("ann") == 60


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 100)), max_size=60))
def test_the_wait_never_exceeds_the_maximum(steps: list[tuple[str, bool, float]]) -> None:
    clock = Clock()
    limit = RateLimit(free_attempts=2, max_wait_seconds=30, max_keys=2, clock=clock)
    for key, succeeds, seconds in steps:
        clock.now += seconds
        limit.count(key)
        if succeeds:
            limit.forget(key)
            assert limit.wait(key) == 0
        assert 0 <= limit.wait(key) <= 30
        assert len(limit) <= 2
