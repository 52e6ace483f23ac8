"""GPM: numbers between two samples, on GPUs that support it; samples are freed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.nvidia_values import own, reader
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.fakes import Keywords
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]

METRICS = {
    "util": ("engine_active_ratio.graphics", 0.01),
    "sm_active": ("engine_active_ratio.sm", 0.01),
    "sm_occupancy": ("sm_occupancy_ratio", 0.01),
    "tensor": ("engine_active_ratio.tensor", 0.01),
    "dram": ("engine_active_ratio.dram", 0.01),
    "fp64": ("engine_active_ratio.fp64", 0.01),
    "fp32": ("engine_active_ratio.fp32", 0.01),
    "fp16": ("engine_active_ratio.fp16", 0.01),
    "integer": ("engine_active_ratio.integer", 0.01),
    "pcie_tx_kbps": ("profiled_pcie_bytes_per_second.tx", 1000),
    "pcie_rx_kbps": ("profiled_pcie_bytes_per_second.rx", 1000),
    "nvlink_tx_kibps": ("profiled_nvlink_bytes_per_second.tx", 1024),
    "nvlink_rx_kibps": ("profiled_nvlink_bytes_per_second.rx", 1024),
}


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


def test_every_metric_between_two_readings(rig: Rig) -> None:
    values: Keywords = {key: 11.0 + place for place, key in enumerate(METRICS)}
    rig.driver.set(0, **values)
    rig.read()
    device = rig.tick().devices[0]
    for key, (path, unit) in METRICS.items():
        assert reader(path)(device) == pytest.approx(values[key] * unit), key


def test_the_first_reading_has_none(rig: Rig) -> None:
    device = rig.device()
    assert device.engine_active_ratio.get("sm", ABSENT) is ABSENT
    assert not own(device).profiled_pcie_bytes_per_second


def test_a_mean_over_exactly_the_time_between(rig: Rig) -> None:
    rig.driver.set(0, sm_active=0)
    rig.read()
    rig.driver.advance(1)
    rig.driver.set(0, sm_active=90)
    assert rig.tick(0.5).devices[0].engine_active_ratio.get("sm", ABSENT) == pytest.approx(0.3)
    assert rig.tick(1).devices[0].engine_active_ratio.get("sm", ABSENT) == pytest.approx(0.9)


@pytest.mark.parametrize("model", ["A100", "T4", "RTX 4090"])
def test_older_cards_have_none(rig: Rig, model: str) -> None:
    rig.driver.gpus(1, model=model)
    rig.read()
    reading = rig.tick()
    assert reading.devices[0].engine_active_ratio.get("sm", ABSENT) is ABSENT
    assert reading.failures == {}


def test_readings_too_close_repeat_the_last(rig: Rig) -> None:
    rig.driver.set(0, sm_active=50)
    rig.read()
    rig.tick(1)
    assert rig.tick(0.01, FAST).devices[0].engine_active_ratio.get("sm", ABSENT) == 0.5


def test_a_failed_sample_is_a_gap_of_its_own_length(rig: Rig) -> None:
    rig.driver.set(0, sm_active=50)
    rig.read()
    rig.tick()
    rig.driver.fail("nvmlGpmSampleGet", 0, "UNKNOWN")
    failed = rig.tick()
    assert failed.devices[0].engine_active_ratio.get("sm", ABSENT) is ABSENT
    assert failed.devices[1].engine_active_ratio.get("sm", ABSENT) == 0
    assert failed.failures == {"nvmlGpmSampleGet": 1}
    rig.driver.heal()
    rig.tick()
    assert rig.tick().devices[0].engine_active_ratio.get("sm", ABSENT) == 0.5


def test_samples_are_allocated_twice_per_gpu_and_freed(rig: Rig) -> None:
    rig.read()
    calls: list[str] = []
    library = rig.source.gpus[0].calls.library
    raw = library.raw

    def spy(name: str):  # type: ignore[no-untyped-def]
        function = raw(name)

        def call(*arguments):  # type: ignore[no-untyped-def]
            function(*arguments)
            if name in ("nvmlGpmSampleAlloc", "nvmlGpmSampleFree"):
                calls.append(name)

        return call

    library.raw = spy  # type: ignore[method-assign]
    for _ in range(50):
        rig.tick(1, FAST)
    assert calls.count("nvmlGpmSampleAlloc") == 8  # the second of each GPU; the first reading took the first
    rig.driver.lose(0)
    rig.tick(1, FAST)
    assert calls.count("nvmlGpmSampleFree") == 2
    rig.close()
    assert calls.count("nvmlGpmSampleFree") == 16
