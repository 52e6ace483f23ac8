"""While scrapes start late, other work takes turns."""

from __future__ import annotations

import threading

from gpuscope.history.scrape.loop import CALM_SECONDS, LateScrapes
from tests.waiting import wait_for


class HandClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def values(late: LateScrapes) -> dict[str, float]:
    return {family.name: family.samples[0][1] for family in late.families()}


def entered_beside_another(late: LateScrapes) -> bool:
    """Whether a second turn begins before the first one ends."""
    events: list[str] = []

    def second() -> None:
        with late.turn():
            events.append("second")

    thread = threading.Thread(target=second)
    before = values(late)["gpuscope_scrape_turns_total"]
    with late.turn():
        thread.start()
        # The second has either taken its turn, or waits for it and was counted.
        wait_for(lambda: bool(events) or values(late)["gpuscope_scrape_turns_total"] == before + 2)
        events.append("first ends")
    thread.join()
    return events[0] == "second"


def test_work_runs_side_by_side_while_scrapes_are_on_time() -> None:
    late = LateScrapes(HandClock())
    late.note(0.01)
    assert entered_beside_another(late)
    assert values(late) == {"gpuscope_scrape_late_seconds": 0.01, "gpuscope_scrape_turns_total": 0}


def test_work_runs_one_at_a_time_while_scrapes_are_late() -> None:
    clock = HandClock()
    late = LateScrapes(clock)
    late.note(0.2)
    clock.now += CALM_SECONDS / 2
    assert not entered_beside_another(late)
    assert values(late)["gpuscope_scrape_turns_total"] == 2


def test_turns_end_when_scrapes_are_on_time_again() -> None:
    clock = HandClock()
    late = LateScrapes(clock)
    late.note(0.2)
    clock.now += CALM_SECONDS
    late.note(0.0)
    assert entered_beside_another(late)


def test_a_failed_turn_ends() -> None:
    late = LateScrapes(HandClock())
    late.note(0.2)
    for _ in range(3):
        try:
            with late.turn():
                raise ValueError
        except ValueError:
            pass
    assert not entered_beside_another(late)


def test_the_longest_delay_is_shown_for_15_to_30_seconds() -> None:
    clock = HandClock()
    late = LateScrapes(clock)
    for seconds, expected in ((0.0, 0.3), (16.0, 0.3), (32.0, 0.0)):
        if not seconds:
            late.note(0.3)
        clock.now = 1000.0 + seconds
        assert values(late)["gpuscope_scrape_late_seconds"] == expected
