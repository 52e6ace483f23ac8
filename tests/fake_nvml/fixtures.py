"""Fixtures for tests that need a driver: `driver` (eight idle H100) and `nvml` (pynvml running on it).

Skipped by name where the library cannot be built. `nvml` loads the library into the test process;
tests of a whole program give it `driver.env` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.build import Unavailable, library
from tests.fake_nvml.driver import FakeDriver

__all__ = ["driver", "nvml"]


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    try:
        library()
    except Unavailable as missing:
        pytest.skip(str(missing))
    fake = FakeDriver(tmp_path / "state")
    fake.gpus(8, model="H100")
    return fake


@pytest.fixture
def nvml(driver: FakeDriver) -> Iterator[Any]:
    import pynvml

    driver.attach()
    pynvml.nvmlInit()
    yield pynvml
    driver.heal()
    pynvml.nvmlShutdown()
