from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.server.login.rate_limit import RateLimit
from tests.server.login.support import Clock


def test_free_tries_then_a_wait_that_doubles_to_its_limit() -> None:
    clock = Clock()
    limit = RateLimit(free=3, longest_wait=60, clock=clock)
    waits = []
    for _ in range(12):
        waits.append(limit.wait("ann"))
        clock.now += limit.wait("ann")
        limit.count("ann")
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_success_and_peace_wipe_the_slate_and_others_are_not_touched() -> None:
    clock = Clock()
    limit = RateLimit(free=1, longest_wait=60, clock=clock)
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


def test_memory_is_bounded_and_the_least_recent_goes_first() -> None:
    limit = RateLimit(free=1, longest_wait=60, places=100, clock=Clock())
    for number in range(1000):
        limit.count("ann")
        limit.count(number)
    assert len(limit) == 100
    assert limit.wait("ann") == 60


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 100)), max_size=60))
def test_the_wait_is_never_beyond_its_limit(steps: list[tuple[str, bool, float]]) -> None:
    clock = Clock()
    limit = RateLimit(free=2, longest_wait=30, places=2, clock=clock)
    for key, succeeds, seconds in steps:
        clock.now += seconds
        limit.count(key)
        if succeeds:
            limit.forget(key)
            assert limit.wait(key) == 0
        assert 0 <= limit.wait(key) <= 30
        assert len(limit) <= 2
