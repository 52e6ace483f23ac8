"""A card that was replaced ends when the new one begins in its slot; one whose slot is empty stays lost."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.judge.reports.usage.usage import UsageReport
from gpuscope.model.series import Labels, Series
from tests.reports.test_counter_growth import END_MS
from tests.reports.test_usage import HOURS, POINTS, STEP_MS, report, series

SWAPPED = POINTS // 4
TEN_MINUTES = 40
SLOT = "00000000:8D:00.0"


def card(uuid: str, first: int, last: int, slot: str = SLOT, index: str = "0") -> list[Series]:
    info = {"__name__": "gpuscope_gpu_info", "instance": "n1", "node": "n1", "gpu": index, "uuid": uuid}
    labels: Labels = tuple(sorted({**info, **({"pci_bus_id": slot} if slot else {})}.items()))
    return [
        series("gpuscope_gpu_observed_seconds_total", 1.0, first, last, gpu=index, uuid=uuid),
        series("gpuscope_gpu_free_seconds_total", 1.0, first, last, gpu=index, uuid=uuid),
        Series(labels, np.array([END_MS], np.int64), np.array([1.0])),
    ]


def still_reported(uuid: str, first: int, lost: int) -> list[Series]:
    """By an agent that never forgets a lost card: its counters stay where they are."""
    observed, free, info = card(uuid, first, POINTS)
    kept = [np.minimum(one.values, (lost - first) * STEP_MS / 1000) for one in (observed, free)]
    return [
        Series(observed.labels, observed.timestamps, kept[0]),
        Series(free.labels, free.timestamps, kept[1]),
        info,
    ]


def report_of(samples: list[Series]) -> UsageReport:
    return report(by="node", fleet=samples)


@pytest.mark.parametrize("slot", [SLOT, ""], ids=["PCI address", "index"])
def test_a_swapped_card_is_lost_until_the_new_one_begins(slot: str) -> None:
    old, new = card("GPU-old", 0, SWAPPED, slot), card("GPU-new", SWAPPED + TEN_MINUTES, POINTS, slot)
    invariant = report_of([*old, *new]).invariant
    assert invariant.lost == pytest.approx(10 / 60, abs=1 / 60)
    assert invariant.gpu_hours == pytest.approx(HOURS, abs=1 / 60)


def test_a_swapped_card_that_an_older_agent_still_reports_as_lost() -> None:
    new = card("GPU-new", SWAPPED + TEN_MINUTES, POINTS)
    invariant = report_of([*still_reported("GPU-old", 0, SWAPPED), *new]).invariant
    assert invariant.lost == pytest.approx(10 / 60, abs=1 / 60)


def test_a_lost_card_whose_slot_is_empty_stays_lost() -> None:
    other = card("GPU-new", SWAPPED + TEN_MINUTES, POINTS, "00000000:9D:00.0", "1")
    lost = report_of([*card("GPU-old", 0, SWAPPED), *other]).invariant.lost
    assert lost == pytest.approx(HOURS * 3 / 4, abs=1 / 60)


def test_a_card_that_comes_back_into_its_slot_keeps_its_hours() -> None:
    first, free, info = card("GPU-old", 0, POINTS)
    away = np.arange(SWAPPED, 3 * SWAPPED)
    not_read = np.where(np.arange(POINTS) < SWAPPED, 0.0, len(away) * STEP_MS / 1000)
    kept = [
        Series(one.labels, np.delete(one.timestamps, away), np.delete(one.values - not_read, away))
        for one in (first, free)
    ]
    found = report_of([*kept, info, *card("GPU-new", SWAPPED + 4, 2 * SWAPPED)])
    assert found.invariant.holds
    assert found.invariant.gpu_hours >= HOURS


def test_a_gpu_that_moves_up_to_the_index_of_a_lost_one_does_not_end_it() -> None:
    moved = [*card("GPU-b", 0, SWAPPED, "", "1"), *card("GPU-b", SWAPPED, POINTS, "", "0")]
    lost = report_of([*card("GPU-a", 0, SWAPPED, ""), *moved]).invariant.lost
    assert lost >= HOURS * 3 / 4 - 1 / 60
