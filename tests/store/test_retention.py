"""What retention doubts of the clock, and when it deletes what has no samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.history.store import Store, StoreOptions
from gpuscope.history.store.retention import unconfirmed_ms
from tests.store.support import NOW, HandClock, labels, tick

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("intervals", "doubted"),
    [
        ([], 0),
        ([(-5, 0)], 0),
        ([(-5, -1)], 1),
        ([(-5, -0.5)], 0),  # shorter than an hour: a restart
        ([(-9, -6), (-5, 0)], 1),
        ([(-9, -6), (-5, -2)], 3),
        ([(-5, 0), (-9, -6)], 1),  # in any order
        ([(-60, -50), (-49, -25), (-24, 0)], 0),  # a day of samples confirms what is before it
        ([(-60, -50), (-49, -25), (-23, 0)], 2),
        ([(-60, -50), (-48, -25), (-23, 0)], 2),
        ([(-5, 0), (-5, 0), (-30, -6), (-60, -40)], 1),  # two targets at the same time cover it once
        ([(-20, 0), (-20, -1), (-21, -1), (-40, -23)], 2),
        ([(-5, 1)], 0),  # stored by a clock that was ahead: no sample of the past
        ([(-5, 1), (-9, -6)], 6),
        ([(-5, 0), (-9, -6), (-50, -49)], 41),
    ],
)
def test_gaps_with_less_than_a_day_of_samples_after_them_are_doubted(
    intervals: list[tuple[float, float]], doubted: float
) -> None:
    """In hours before now."""
    stored = [(NOW + int(first * HOUR_MS), NOW + int(last * HOUR_MS)) for first, last in intervals]
    assert unconfirmed_ms(stored, NOW) == doubted * HOUR_MS


def test_a_series_without_samples_is_removed_at_the_second_look_an_hour_later(tmp_path: Path) -> None:
    """Between two looks a scrape may have named a series whose first sample is on its way."""
    clock = HandClock()
    with Store(tmp_path, StoreOptions(retention_ms=2 * DAY_MS), clock) as store:
        target = store.target("node")
        ids = store.resolve(target, [labels("kept", node="a"), labels("named", pod="p")])
        store.append(tick(target, clock.at, ids[:1], [1.0]))
        names = []
        for minutes in (0, 59, 1, 59, 1):
            clock.at += minutes * 60_000
            store.append(tick(target, clock.at + 1, ids[:1], [1.0]))
            store.maintain()
            names.append(store.label_values("__name__"))
        assert names == [["kept", "named"]] * 2 + [["kept"]] * 3
        assert store.label_names() == ["__name__", "node"], "its labels are gone with it"
    with Store(tmp_path, StoreOptions(retention_ms=2 * DAY_MS), clock) as store:
        assert store.label_names() == ["__name__", "node"]
