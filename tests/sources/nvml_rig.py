"""The NVML source on the fake driver, with a clock that only moves when ticked."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from gpuscope.model.readings import Device, Reading
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import Clocks
from tests.fake_nvml.driver import FakeDriver

FAST = frozenset({Tier.FAST})
ALL = frozenset(Tier)


class Rig:
    """A driver with a stopped clock and its source; `kernel_list` replaces the kernel's list."""

    def __init__(self, driver: FakeDriver, folder: Path) -> None:
        driver.freeze()
        driver.attach()
        self.driver = driver
        self.kernel_list = folder / "gpus"
        self.kernel_list.mkdir()
        self.clocks = Clocks(now=self._now, monotonic=self._now)
        self.opened: NvmlSource | None = None

    def _now(self) -> float:
        return self.driver.now_us() / 1e6

    @property
    def source(self) -> NvmlSource:
        if self.opened is None:
            self.opened = NvmlSource(self.kernel_list, self.clocks)
        return self.opened

    def read(self, due: frozenset[Tier] = ALL) -> Reading:
        return self.source.read(due)

    def tick(self, seconds: float = 1.0, due: frozenset[Tier] = ALL) -> Reading:
        self.driver.advance(seconds)
        return self.read(due)

    def device(self, index: int = 0) -> Device:
        return self.read().devices[index]

    def kernel_lists(self, *addresses: str) -> None:
        for old in self.kernel_list.iterdir():
            old.rmdir()
        for address in addresses:
            (self.kernel_list / address).mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.heal()
        self.close()

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None
