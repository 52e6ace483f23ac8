"""The time to delete by: which steps of the wall clock are believed."""

from __future__ import annotations

import pytest

from gpuscope.base.clock import ConfirmedTime

HOUR, DAY = 3600.0, 86_400.0
NOW = 1_800_000_000.0


def test_a_machine_that_sleeps_every_night_still_deletes() -> None:
    """The monotonic clock stands still meanwhile: each morning the wall clock is sixteen hours ahead of it."""
    confirmed, wall, monotonic = ConfirmedTime(), NOW, 0.0
    confirmed.advance(wall, monotonic)
    for _ in range(100):
        for _ in range(8):
            wall, monotonic = wall + HOUR, monotonic + HOUR
            confirmed.advance(wall, monotonic)
        wall += 16 * HOUR
        behind = wall - confirmed.advance(wall, monotonic)
    assert behind == 3 * 16 * HOUR, "the nights of the last 24 hours awake"


@pytest.mark.parametrize("back", [10 * DAY, 25 * DAY], ids=["what it was ahead", "more"])
def test_a_step_back_takes_back_what_was_doubted(back: float) -> None:
    confirmed = ConfirmedTime()
    confirmed.advance(NOW, 0.0, doubted_at_start=4 * DAY)
    assert confirmed.advance(NOW + 6 * DAY, 1.0) == NOW - 4 * DAY + 1
    assert confirmed.advance(NOW + 6 * DAY - back, 2.0) == NOW + 6 * DAY - back


def test_a_step_back_leaves_the_rest_of_a_step_in_doubt_until_its_day_is_over() -> None:
    confirmed = ConfirmedTime()
    confirmed.advance(NOW, 0.0)
    confirmed.advance(NOW + 10 * DAY, 0.0)
    assert confirmed.advance(NOW + 7 * DAY + HOUR, HOUR) == NOW + HOUR
    assert confirmed.advance(NOW + 8 * DAY, DAY) == NOW + 8 * DAY
