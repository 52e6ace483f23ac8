from __future__ import annotations

import pytest

from gpuscope.agent.collect.composer import CpuMeter
from gpuscope.model.readings import ABSENT, HostReading


def host(**by_mode: float) -> HostReading:
    return HostReading(cpu_seconds={("0", mode): seconds for mode, seconds in by_mode.items()})


def test_the_share_between_two_readings() -> None:
    meter = CpuMeter()
    assert meter.advance(host(user=10.0, idle=90.0, iowait=0.0)) is ABSENT, "one reading says nothing"
    second = host(user=13.0, idle=96.0, iowait=1.0)
    assert meter.advance(second) == pytest.approx(0.3)
    assert meter.advance(second) == pytest.approx(0.3), "the same reading again is not an idle machine"
    assert meter.advance(host(user=13.0, idle=106.0, iowait=1.0)) == 0.0, "a zero is a number"


def test_what_cannot_be_known_is_absent() -> None:
    meter = CpuMeter()
    meter.advance(host(user=10.0, idle=90.0))
    assert meter.advance(ABSENT) is ABSENT
    assert meter.advance(host(user=11.0, idle=90.0)) is ABSENT, "nothing to compare with after a gap"
    assert meter.advance(HostReading()) is ABSENT
    meter.advance(host(user=10.0, idle=90.0))
    assert meter.advance(host(user=1.0, idle=9.0)) is ABSENT, "counters that were reset"
    one: dict[tuple[str, ...], float] = {("0", "user"): 1.0, ("0", "idle"): 1.0}
    meter.advance(HostReading(cpu_seconds=one))
    assert meter.advance(HostReading(cpu_seconds={**one, ("1", "user"): 90.0, ("1", "idle"): 9.0})) is ABSENT


def test_counters_that_went_back_or_stood_still_say_nothing_and_a_share_is_at_most_1() -> None:
    for user, idle, ratio in ((10.0, 90.0, ABSENT), (5.0, 90.0, ABSENT), (30.0, 85.0, 1.0), (9.0, 95.0, 0.0)):
        meter = CpuMeter()
        meter.advance(host(user=10.0, idle=90.0))
        assert meter.advance(host(user=user, idle=idle)) == ratio
