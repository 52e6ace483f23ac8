"""The agent's memory stays where it is, whatever comes and goes on the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.soak import soaking

__all__ = ["driver"]


def test_memory_is_flat_over_2000_cycles(driver: FakeDriver, tmp_path: Path) -> None:
    with soaking(driver, tmp_path) as soak:
        settled = soak.run(1000)
        assert soak.run(1000) - settled < 1 << 20


@pytest.mark.slow
def test_memory_is_flat_over_100_000_cycles(driver: FakeDriver, tmp_path: Path) -> None:
    with soaking(driver, tmp_path) as soak:
        settled = soak.run(20_000)
        assert soak.run(80_000) - settled < 2 << 20
