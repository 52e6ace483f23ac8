"""The mailed reports of all zones that change their clocks: they tile the time, and each is mailed once."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from gpuscope.base.time_text import to_local
from gpuscope.judge.reports.report_range import MAX_LATE, digest_range, last_due, next_digest, period_end
from tests.reports.test_report_range import zones_that_change

BERLIN = ZoneInfo("Europe/Berlin")
FIRST = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
HOURS = 730 * 24


def mailed(every: str, zone: ZoneInfo, times: list[float]) -> list[date]:
    """As the thread does it at these times; what is sent is all that it keeps, so a restart changes nothing."""
    sent: set[date] = {last_due(times[0], every, zone)}
    order: list[date] = []
    for now in times:
        due = next_digest(now, every, zone, frozenset(sent))
        if due is not None:
            order.append(due)
            sent.add(due)
    return order


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_consecutive_digests_tile_the_time_in_every_zone(every: str) -> None:
    zones = zones_that_change()
    assert len(zones) > 20
    for name in zones:
        zone = ZoneInfo(name)
        ends = sorted({period_end(date(2026, 1, 1) + timedelta(day), every) for day in range(760)})
        ranges = [digest_range(end, every, zone) for end in ends]
        assert all(earlier[1] == later[0] for earlier, later in pairwise(ranges)), name
        assert all(start < end for start, end in ranges), name
        for _, end in ranges:
            assert to_local(end, zone).date() in ends


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_each_period_is_mailed_once_at_six(every: str) -> None:
    for name in zones_that_change():
        zone = ZoneInfo(name)
        # Every three hours, and each hour of the weeks in which most clocks change.
        hours = sorted({*range(0, HOURS, 3 if every == "day" else 24), *range(1900, 2300), *range(7000, 7400)})
        order = mailed(every, zone, [FIRST + 3600.0 * hour for hour in hours])
        assert order == sorted(set(order)), name
        assert order == [
            end
            for end in sorted({period_end(date(2025, 12, 1) + timedelta(day), every) for day in range(765)})
            if end > last_due(FIRST, every, zone) and end <= last_due(FIRST + 3600.0 * hours[-1], every, zone)
        ], name


def test_september_is_not_mailed_again_when_the_clocks_are_put_back() -> None:
    begin = datetime(2026, 10, 1, 3, tzinfo=UTC).timestamp()
    order = mailed("month", BERLIN, [begin + 3600.0 * hour for hour in range(40 * 24)])
    assert order == [date(2026, 10, 1), date(2026, 11, 1)]
    start, end = digest_range(date(2026, 11, 1), "month", BERLIN)
    assert (end - start) / 3600 == 745


def test_a_digest_is_due_at_six_local_time() -> None:
    for day, at in (("2026-10-25", 5), ("2026-10-24", 4), ("2026-03-29", 4), ("2026-03-28", 5)):
        due = datetime.fromisoformat(f"{day}T{at:02}:00+00:00").timestamp()
        assert last_due(due, "day", BERLIN) == date.fromisoformat(day)
        assert last_due(due - 1, "day", BERLIN) == date.fromisoformat(day) - timedelta(1)


@pytest.mark.parametrize("seed", range(5))
def test_outages_restarts_and_clocks_that_go_back_and_forth_repeat_nothing(seed: int) -> None:
    random_ = random.Random(seed)
    zone = ZoneInfo(random_.choice(zones_that_change()))
    now, times = FIRST, []
    for _ in range(800):
        now += random_.choice((60.0, 3600.0, 40_000.0, 86_400.0 * random_.randrange(1, MAX_LATE)))
        times += [now + 60.0 * minute for minute in range(MAX_LATE + 1)]
        if random_.random() < 0.1:
            times.append(now - 86_400.0 * random_.randrange(400))
    order = mailed("day", zone, times)
    assert len(order) == len(set(order))
    assert set(order) >= {order[0] + timedelta(day) for day in range((max(order) - order[0]).days + 1)}
