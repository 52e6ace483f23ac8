"""Simulated NVLink peers: reachable among themselves, as the board is wired, until one is lost."""

from __future__ import annotations

import pytest

from gpuscope.demo.fleet import DemoFleet
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.fakes import make_settings

AT = 1_700_000_000.0


def statuses(model: str, gpus: int, scenario: tuple[str, ...] = (), at: float = AT) -> list[dict[str, float]]:
    settings = make_settings(demo_model=model, demo_gpus=gpus, scenario=scenario)
    reading = DemoFleet(settings, started_at=AT).reading(0, at)
    return [dict(own(device).p2p_nvlink_status) for device in reading.devices]


@pytest.mark.parametrize("model", ["h100", "b200", "a100-80"])
def test_a_switched_board_connects_everyone(model: str) -> None:
    assert statuses(model, 3) == [{"1": 0, "2": 0}, {"0": 0, "2": 0}, {"0": 0, "1": 0}]


def test_the_cube_of_v100s_leaves_three_out() -> None:
    assert statuses("v100", 8)[1] == {"0": 0, "2": 0, "3": 0, "4": 5, "5": 0, "6": 5, "7": 5}


def test_cards_without_nvlink_and_split_ones_have_no_peers() -> None:
    assert statuses("l4", 2) == [{}, {}]
    *whole, split = statuses("a100-80-mig", 3)
    assert whole == [{"1": 0}, {"0": 0}]
    assert split == {}


def test_a_lost_gpu_is_nobodys_peer() -> None:
    found = statuses("h100", 8, ("lost-gpu",), AT + 3600)
    lost = [index for index, peers in enumerate(found) if not peers]
    assert len(lost) == 1
    assert all(str(lost[0]) not in peers for peers in found)
