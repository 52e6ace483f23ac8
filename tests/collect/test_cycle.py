"""When the collector's cycles begin."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from gpuscope.agent.collect.collector import Collector
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.model.readings import Snapshot
from tests.fakes import FakeClock


def starts_of_cycles(durations: Sequence[float]) -> list[float]:
    """When each cycle began, in intervals since the first, if the cycles take so long."""
    clock = FakeClock()
    begun_at = clock.monotonic()
    remaining = list(durations)
    starts: list[float] = []

    def wait(stop: threading.Event, seconds: float) -> bool:
        clock.pass_seconds(seconds)
        return stop.is_set()

    collector = Collector([], node="n", interval=2.0, clock=clock, ledger=ErrorLedger(None), wait=wait)

    def take_time(snapshot: Snapshot) -> None:
        starts.append((clock.monotonic() - begun_at) / 2.0)
        clock.pass_seconds(2.0 * remaining.pop(0))
        if not remaining:
            collector.stop()

    collector.subscribe(take_time)
    collector.run()
    return starts


@pytest.mark.parametrize(
    ("durations", "starts"),
    [
        ([0, 0.5, 0.25, 0], [0, 1, 2, 3]),
        ([0, 1.25, 0, 0], [0, 1, 2.25, 3]),
        ([0, 1.25, 0.75, 0], [0, 1, 2.25, 3]),
        ([0, 1, 0, 0], [0, 1, 2, 3]),
        ([0, 3.5, 0, 0], [0, 1, 4.5, 5]),
        ([0, 1.5, 1.5, 1.5, 0, 0], [0, 1, 2.5, 4, 5.5, 6]),
    ],
    ids=["in time", "late", "late and long", "just in time", "cycles missed", "always late"],
)
def test_a_late_cycle_does_not_shift_the_following_ones(durations: list[float], starts: list[float]) -> None:
    assert starts_of_cycles(durations) == pytest.approx(starts)
