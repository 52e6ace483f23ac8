"""XIDs through the driver's event set: each is reported once with its GPU, also of a GPU that is then lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        rig.read()
        yield rig


def xids(rig: Rig) -> list[tuple[int, object]]:
    events = rig.tick(1, FAST).errors
    assert all(event.reporter == "nvml" for event in events)
    assert all(abs(event.at - rig.clocks.now()) < 1 for event in events)
    return [(int(event.code), event.gpu_uuid) for event in events]


def test_an_xid_is_reported_once_with_its_gpu(rig: Rig) -> None:
    rig.driver.xid(3, 31)
    assert xids(rig) == [(31, rig.driver.cards[3].uuid)]
    assert xids(rig) == []


def test_several_xids_in_one_reading(rig: Rig) -> None:
    for code in (13, 31, 31):
        rig.driver.xid(1, code)
    rig.driver.xid(2, 48)
    one, two = rig.driver.cards[1].uuid, rig.driver.cards[2].uuid
    assert xids(rig) == [(13, one), (31, one), (31, one), (48, two)]


def test_the_xid_of_a_gpu_that_falls_off_the_bus(rig: Rig) -> None:
    rig.driver.xid(0, 79)
    rig.driver.lose(0)
    assert xids(rig) == [(79, rig.driver.cards[0].uuid)]
    rig.driver.xid(1, 31)
    assert xids(rig) == [(31, rig.driver.cards[1].uuid)]  # the lost one does not silence the others


def test_xids_of_a_recovered_gpu_are_reported(rig: Rig) -> None:
    rig.driver.lose(0)
    xids(rig)
    rig.driver.find(0)
    xids(rig)
    rig.driver.xid(0, 13)
    assert xids(rig) == [(13, rig.driver.cards[0].uuid)]


def test_an_event_set_that_cannot_be_made_is_tried_again(rig: Rig) -> None:
    rig.driver.fail("nvmlEventSetCreate", error="UNKNOWN")
    rig.driver.lose(0)
    assert rig.tick(1, FAST).failures == {"nvmlEventSetCreate": 1}
    rig.driver.heal()
    rig.tick(10)
    rig.driver.xid(1, 31)
    assert xids(rig) == [(31, rig.driver.cards[1].uuid)]
