"""P2P over NVLink for every pair of GPUs: pairs fail independently, and a lost GPU leaves no old status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.model.readings import Reading
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]

CALL = "nvmlDeviceGetP2PStatus"


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    driver.gpus(3, model="H100")
    driver.count_calls()  # only from the next attaching on
    with Rig(driver, tmp_path) as rig:
        yield rig


def statuses(reading: Reading) -> list[dict[str, float]]:
    return [dict(own(device).p2p_nvlink_status) for device in reading.devices]


def test_every_ordered_pair_is_read(rig: Rig) -> None:
    rig.driver.peer(0, 1, 3)
    rig.driver.peer(1, 0, 4)
    assert statuses(rig.read()) == [{"1": 3, "2": 0}, {"0": 4, "2": 0}, {"0": 0, "1": 0}]


def test_gpus_without_nvlink_have_the_status_not_supported(rig: Rig) -> None:
    rig.driver.gpus(2, model="L4")
    assert statuses(rig.read()) == [{"1": 5}, {"0": 5}]


def test_a_single_gpu_has_no_peers(rig: Rig) -> None:
    rig.driver.gpus(1, model="H100")
    assert statuses(rig.read()) == [{}]
    assert CALL not in rig.driver.calls()


@pytest.mark.parametrize(("error", "counted"), [("NOT_SUPPORTED", {}), ("UNKNOWN", {CALL: 1})])
def test_a_pair_fails_alone(rig: Rig, error: str, counted: dict[str, int]) -> None:
    rig.driver.peer(0, 1, error=error)
    reading = rig.read()
    assert statuses(reading) == [{"2": 0}, {"0": 0, "2": 0}, {"0": 0, "1": 0}]
    assert reading.failures == counted


def test_a_refused_pair_is_not_read_again(rig: Rig) -> None:
    rig.driver.peer(0, 1, error="NOT_SUPPORTED")
    rig.read()
    assert rig.driver.calls()[CALL] == 6
    rig.tick(60)
    assert rig.driver.calls()[CALL] == 6 + 5


def test_a_lost_pair_marks_no_gpu_lost(rig: Rig) -> None:
    rig.driver.peer(0, 1, error="GPU_IS_LOST")
    reading = rig.read()
    assert statuses(reading)[0] == {"2": 0}
    assert not any(device.lost for device in reading.devices)


def test_a_lost_peer_is_removed_at_once_and_returns(rig: Rig) -> None:
    rig.read()
    rig.driver.lose(1)
    assert statuses(rig.tick(1, FAST)) == [{"2": 0}, {}, {"0": 0}]
    assert statuses(rig.tick(60)) == [{"2": 0}, {}, {"0": 0}]
    rig.driver.find(1)
    rig.tick(1, FAST)
    assert statuses(rig.tick(60)) == [{"1": 0, "2": 0}, {"0": 0, "2": 0}, {"0": 0, "1": 0}]


def test_it_is_read_in_the_slow_tier_and_repeated_as_it_is(rig: Rig) -> None:
    first = own(rig.read().devices[0]).p2p_nvlink_status
    rig.driver.peer(0, 1, 6)
    second = own(rig.tick(10, frozenset({Tier.FAST, Tier.MEDIUM})).devices[0]).p2p_nvlink_status
    assert second is first
    assert statuses(rig.tick(60))[0] == {"1": 6, "2": 0}
