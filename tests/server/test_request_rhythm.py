"""Requests that are foretold: one scraper, two of them, a request that comes late."""

from __future__ import annotations

import pytest

from gpuscope.serve.exporter import MAX_TIMES, RequestRhythm


def rhythm(*times: float) -> RequestRhythm:
    made = RequestRhythm()
    for at in times:
        made.record(at)
    return made


def due_seconds(made: RequestRhythm, start: int, end: int) -> list[int]:
    return [second for second in range(start, end) if made.is_due(second, second + 1)]


def test_one_request_foretells_nothing() -> None:
    assert due_seconds(rhythm(), 0, 60) == []
    assert due_seconds(rhythm(7.5), 0, 60) == []


def test_a_scraper_is_foretold_at_its_interval() -> None:
    assert due_seconds(rhythm(0.5, 15.5), 16, 45) == [30]
    assert due_seconds(rhythm(*(0.5 + 15 * n for n in range(MAX_TIMES + 3))), 151, 166) == [165]


@pytest.mark.parametrize("interval", [15, 30, 60])
def test_two_scrapers_are_both_foretold(interval: int) -> None:
    first, second = 0.5, 7.5
    made = rhythm(*sorted(one + interval * n for one in (first, second) for n in range(3)))
    due = due_seconds(made, 2 * interval + 8, 4 * interval)
    assert {3 * interval, 3 * interval + 7} <= set(due)
    assert len(due) <= 6


def test_a_request_near_the_edge_of_a_snapshot_is_due_in_both() -> None:
    assert due_seconds(rhythm(0.0, 15.1), 16, 45) == [29, 30]


def test_many_requests_at_once_are_one() -> None:
    assert due_seconds(rhythm(*(n / 1000 for n in range(500)), 15.7), 16, 45) == [31]
