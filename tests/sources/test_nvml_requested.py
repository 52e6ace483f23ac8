"""Fields requested with dcgm-exporter's `-c` are read at that interval, others in their tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.settings import Settings
from gpuscope.model.readings import Device
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import own
from gpuscope.vendors.nvidia.nvml import open_nvml, warn_once
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import NO_REQUESTS, TierPlan, plan_tiers
from tests.fake_nvml.driver import FakeDriver, Link, Mig
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]

MEDIUM = frozenset({Tier.FAST, Tier.MEDIUM})
ECC_DBE_VOLATILE, REMAPPED, PCIE_TX, P2P, NVLINK_TOTAL, BAR1_USED = 311, 393, 200, 9004, 449, 92


class PlannedRig(Rig):
    def __init__(self, driver: FakeDriver, folder: Path, plan: TierPlan) -> None:
        super().__init__(driver, folder)
        self.opened = NvmlSource(self.kernel_list, self.clocks, tier_plan=plan)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def one(driver: FakeDriver) -> Iterator[FakeDriver]:
    driver.gpus(1)
    yield driver
    driver.heal()


@pytest.mark.parametrize(
    ("seconds", "tier"),
    [
        (None, Tier.SLOW),
        (0.1, Tier.FAST),
        (1.0, Tier.FAST),
        (9.9, Tier.FAST),
        (10.0, Tier.MEDIUM),
        (30.0, Tier.MEDIUM),
        (60.0, Tier.SLOW),
        (3600.0, Tier.SLOW),
    ],
)
def test_the_slowest_tier_that_is_fast_enough(seconds: float | None, tier: Tier) -> None:
    assert plan_tiers([ECC_DBE_VOLATILE], seconds).tier is tier


def test_a_plan_makes_nothing_slower() -> None:
    plan = plan_tiers([100, 203], 30.0)  # clocks and utilisation are read every second
    assert plan.tier_of(Tier.FAST, [("clock_hertz", "sm")]) is Tier.FAST


def replace_readings(rig: Rig, due: frozenset[Tier]) -> Device:
    """A reading after everything on GPU 0 has got worse."""
    rig.read()
    rig.driver.set(0, ecc_uncorrected_volatile_dram=7, remapped_uncorrectable=3, pcie_replay=5, compute_mode=3)
    return rig.tick(1.0, due).devices[0]


def test_requested_fields_of_the_slow_tiers_follow_the_interval(one: FakeDriver, folder: Path) -> None:
    rig = PlannedRig(one, folder, plan_tiers([ECC_DBE_VOLATILE, REMAPPED], 1.0))
    device = replace_readings(rig, FAST)
    assert device.ecc_errors["uncorrected", "volatile"] == 7
    assert own(device).remapped_rows["uncorrectable"] == 3
    assert device.pcie_replays == 0, "nobody asked for it"
    assert own(device).compute_mode == 0
    assert device.ecc_errors["corrected", "aggregate"] == 0, "its siblings stay, from their own tier"
    assert own(device).remapped_rows["correctable"] == 0
    rig.close()


def test_at_30_s_they_are_read_with_the_medium_tier(one: FakeDriver, folder: Path) -> None:
    rig = PlannedRig(one, folder, plan_tiers([ECC_DBE_VOLATILE], 30.0))
    assert replace_readings(rig, FAST).ecc_errors["uncorrected", "volatile"] == 0
    assert rig.tick(9.0, MEDIUM).devices[0].ecc_errors["uncorrected", "volatile"] == 7
    rig.close()


def test_without_requests_every_number_keeps_its_tier(one: FakeDriver, folder: Path) -> None:
    rig = PlannedRig(one, folder, NO_REQUESTS)
    assert replace_readings(rig, MEDIUM).ecc_errors["uncorrected", "volatile"] == 0
    rig.close()


def test_a_request_costs_only_its_own_calls(one: FakeDriver, folder: Path) -> None:
    def calls(plan: TierPlan, place: str) -> dict[str, int]:
        (folder / place).mkdir()
        one.count_calls()
        rig = PlannedRig(one, folder / place, plan)
        rig.read()
        before = one.calls()
        rig.tick(1.0, FAST)
        after = one.calls()
        rig.close()
        return {
            name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)
        }

    usual, planned = calls(NO_REQUESTS, "a"), calls(plan_tiers([ECC_DBE_VOLATILE, REMAPPED], 1.0), "b")
    more = {name: count - usual.get(name, 0) for name, count in planned.items() if count != usual.get(name, 0)}
    assert more == {"nvmlDeviceGetTotalEccErrors": 1}, "the remapped row came along in the call for fields"


def test_instances_follow_too(one: FakeDriver, folder: Path) -> None:
    one.mig(0, [Mig(1, profile="3g.40gb")])
    rig = PlannedRig(one, folder, plan_tiers([BAR1_USED], 1.0))
    rig.read()
    one.set(0, bar1_used=77 << 20)
    assert rig.tick(1.0, FAST).devices[0].instances[0].bar1_used_bytes == 77 << 20
    rig.close()


def test_peers_are_read_when_their_status_is_requested(driver: FakeDriver, folder: Path) -> None:
    driver.gpus(2)
    rig = PlannedRig(driver, folder, plan_tiers([P2P], 1.0))
    rig.read()
    driver.peer(0, 1, 4)
    assert own(rig.tick(1.0, FAST).devices[0]).p2p_nvlink_status == {"1": 4.0}
    rig.close()


def test_a_call_of_20_ms_is_read_as_requested_and_logged_once(
    one: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    one.attach()
    warn_once.cache_clear()
    for _ in range(3):
        open_nvml(Settings(dcgm_fields=(PCIE_TX,), dcgm_interval=1.0)).close()
    assert [record.getMessage() for record in caplog.records if "20 ms" in record.getMessage()] == [
        "source nvml: nvmlDeviceGetPcieThroughput takes 20 ms a call, now every 1 s and GPU on request"
    ]
    caplog.clear()
    warn_once.cache_clear()
    open_nvml(Settings(dcgm_fields=(PCIE_TX,), dcgm_interval=30.0)).close()
    open_nvml(Settings(dcgm_fields=(203,), dcgm_interval=1.0)).close()
    assert "20 ms" not in caplog.text


def test_profiled_links_are_read_on_request_only(one: FakeDriver, folder: Path) -> None:
    one.set(0, nvlink_tx_kibps=18 * 1024 * 3, nvlink_rx_kibps=18 * 1024 * 5)
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    rig = PlannedRig(one, folder / "a", NO_REQUESTS)
    rig.read()
    assert own(rig.tick().devices[0]).profiled_nvlink_link_bytes_per_second == {}
    rig.close()
    rig = PlannedRig(one, folder / "b", plan_tiers([1040, 1041], 1.0))
    rig.read()
    links = own(rig.tick().devices[0]).profiled_nvlink_link_bytes_per_second
    assert (links["0", "tx"], links["17", "rx"]) == pytest.approx((3 << 20, 5 << 20))
    rig.close()


def count_links(driver: FakeDriver, kibibytes: int) -> None:
    """A driver with link counters whose own total never changes."""
    for field in (138, 139):
        for link in range(18):
            driver.field(0, field, kibibytes, scope=link, kind="l")
        driver.field(0, field, 0, scope=0xFFFFFFFF, kind="l")


def test_the_nvlink_total_is_the_sum_over_the_links(one: FakeDriver, folder: Path) -> None:
    rig = PlannedRig(one, folder, plan_tiers([NVLINK_TOTAL], 1.0))
    count_links(one, 1)
    rig.read()
    for number, due in enumerate((MEDIUM, FAST, MEDIUM)):
        count_links(one, 10 + number)
        device = rig.tick(10.0, due).devices[0]
        by_link = sum(count for (_, way), count in device.link_bytes_each.items() if way == "tx")
        assert device.link_bytes["tx"] == by_link >= 18 * 10 * 1024
        assert own(device).nvlink_aggregate_bytes["tx"] == 0
    rig.close()


def test_where_no_link_counts_the_drivers_own_total_is_the_total(one: FakeDriver, folder: Path) -> None:
    rig = PlannedRig(one, folder, NO_REQUESTS)
    for link in range(18):
        for field in (138, 139):
            one.field(0, field, 0, scope=link, error="NOT_SUPPORTED")
    device = rig.device()
    assert device.link_bytes_each == {}
    assert device.link_bytes == own(device).nvlink_aggregate_bytes
    assert set(device.link_bytes) == {"tx", "rx"}
    rig.close()


def test_the_numbers_of_dcgms_rarer_fields(one: FakeDriver, folder: Path) -> None:
    one.set(0, tensor_fp64=10, tensor_fp16=20, tensor_int=30, remapped_correctable_inactive=4)
    one.link(0, 3, Link(replay=6))
    rig = PlannedRig(one, folder, NO_REQUESTS)
    rig.read()
    device = rig.tick().devices[0]
    assert device.cpu_affinity == {"0": 1, "1": 0, "2": 0, "3": 0}
    assert device.memory_affinity == {"0": 1, "1": 0, "2": 0, "3": 0}
    assert own(device).tensor_pipe_active_ratio == pytest.approx({"dfma": 0.1, "hmma": 0.2, "imma": 0.3})
    assert own(device).remapped_rows_inactive == {"correctable": 4, "uncorrectable": 0}
    assert device.link_errors["3", "replay"] == 6
    rig.close()


def test_ada_is_called_as_nvidia_smi_calls_it(driver: FakeDriver, folder: Path) -> None:
    driver.gpus(1, model="L4")
    rig = PlannedRig(driver, folder, NO_REQUESTS)
    assert rig.device().architecture == "Ada Lovelace"
    rig.close()
