"""The sums of one row of a usage report, and when its parts add up."""

from __future__ import annotations

import pytest

from gpuscope.judge.reports.report_range import JOULES_PER_KWH
from gpuscope.judge.reports.usage.usage import Invariant, UsageReport, UsageRow

HALVES = Invariant(1000.0, 500.0, 0.0, 500.0, 0.0, 0.0)


def test_a_row_of_which_nothing_is_known_is_neither_busy_nor_idle() -> None:
    row = UsageRow(("ann",), held=1000.0, busy_known=0.5, unknown=999.0)
    assert (row.busy, row.idle) == (None, None)
    row.unknown = 998.9
    assert (row.busy, row.idle) == (0.5, pytest.approx(0.6))
    assert (UsageRow(("ann",)).busy, UsageRow(("ann",)).idle) == (0.0, 0.0), (
        "who held nothing was idle for 0 hours"
    )


def test_energy_is_an_estimate_as_soon_as_a_part_of_it_is() -> None:
    row = UsageRow(("ann",))
    assert row.energy_kwh is None
    row.add_energy(0.0, is_estimate=True)
    assert (row.energy_kwh, row.is_energy_estimate) == (0.0, False)
    row.add_energy(0.5, is_estimate=True)
    row.add_energy(2.0, is_estimate=False)
    assert (row.energy_kwh, row.is_energy_estimate) == (2.5, True)
    assert JOULES_PER_KWH == 1000 * 3600


def test_the_parts_may_differ_by_a_thousandth_of_the_hours() -> None:
    for owners, holds in ((500.0, True), (501.0, True), (499.0, True), (501.1, False), (498.9, False)):
        assert Invariant(1000.0, owners, 0.0, 500.0, 0.0, 0.0).holds == holds
    assert Invariant(0.0, 0.0, 0.0, 0.0, 0.0, 0.0).holds
    assert not Invariant(1.0, 0.5, 0.1, 0.2, 0.3, 0.4).holds


def test_a_report_without_gaps_misses_nothing() -> None:
    report = UsageReport("user", 0, 1, 0, [], HALVES)
    assert (report.buckets, report.pieces, report.missing) == ([], [], [])
