"""One card of each family, tier by tier; and what happens when its files fail."""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path

import pytest

from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.card_list import list_cards
from gpuscope.vendors.amd.amdgpu.card_reader import CardReader
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdTopology
from tests.fakes import FakeClock
from tests.vendors.amd.failing_files import FailingFiles
from tests.vendors.amd.families import (
    MI300X_METRICS,
    add_apu,
    add_mi250,
    add_mi300x,
    add_old,
    add_rx7900,
    split_mi300x,
)
from tests.vendors.amd.trees import GIB, AmdMachine

ALL = frozenset(Tier)


def reader_of(machine: AmdMachine, guard: FailingFiles | None = None) -> CardReader:
    (card,) = list_cards(str(machine.sys), KfdTopology(str(machine.sys)).read()).cards
    return CardReader(card, FakeClock().monotonic, guard)


@pytest.fixture
def machine(tmp_path: Path) -> AmdMachine:
    return AmdMachine(tmp_path)


def test_an_mi300x(machine: AmdMachine) -> None:
    add_mi300x(machine)
    reader = reader_of(machine)
    assert reader.read(ALL) == {}
    values = reader.values()
    throttled = values.pop("throttled_seconds")
    assert set(throttled) == {"processor_hot", "ppt", "socket_thermal", "vr_thermal", "memory_thermal"}
    assert values == {
        "utilization_ratio": 0.87,
        "memory_utilization_ratio": 0.41,
        "decoder_utilization_ratio": 0.12,
        "jpeg_utilization_ratio": 0.07,
        "power_watts": 613.0,
        "energy_joules": 1_000_000.0,
        "temperature_celsius": {"gpu": 61.0, "junction": 61.0, "memory": 55.0},
        "clock_hertz": {"graphics": 2.0e9, "memory": 1.3e9, "soc": 1.2e9, "video": 29e6, "data": 22e6},
        "throttle_reasons": {},
        "vram_used_bytes": 81.0 * GIB,
        "gtt_used_bytes": 3.0 * GIB,
        "fan_rpm": {},
        "fan_speed_ratio": {},
        "pcie_link_generation": 4.0,
        "pcie_link_width": 16.0,
        "pcie_link_generation_max": 4.0,
        "pcie_link_width_max": 16.0,
        "pcie_link_generation_gpu_max": 4.0,
        "link_bytes": {"rx": 28000 * 1024.0, "tx": 2800 * 1024.0},
        "link_bytes_each": {
            **{(str(link), "rx"): 1000 * (link + 1) * 1024.0 for link in range(7)},
            **{(str(link), "tx"): 100 * (link + 1) * 1024.0 for link in range(7)},
        },
        "pcie_replays": 3.0,
        "power_limit_watts": {
            "current": 750.0, "enforced": 750.0, "default": 750.0, "min": 0.0, "max": 755.0,
        },
        "temperature_threshold_celsius": {"slowdown": 102.0, "shutdown": 112.0, "memory_max": 103.0},
        "ecc_errors": {
            ("uncorrected", "volatile"): 0.0, ("corrected", "volatile"): 2.0, ("deferred", "volatile"): 1.0,
        },
        "ecc_location_errors": {
            **{(kind, "volatile", block): 0.0
               for kind in ("corrected", "uncorrected") for block in ("gfx", "mmhub", "sdma", "xgmi_wafl")},
            ("uncorrected", "volatile", "umc"): 0.0,
            ("corrected", "volatile", "umc"): 2.0,
            ("deferred", "volatile", "umc"): 1.0,
        },
        "bad_pages": {"retired": 0.0, "pending": 0.0, "failed": 0.0},
        "vram_total_bytes": 192.0 * GIB,
        "gtt_total_bytes": 1007.0 * GIB,
        "clock_max_hertz": {"graphics": 2.1e9, "memory": 1.3e9},
    }  # fmt: skip
    assert reader.modes == {"compute": "SPX", "memory": "NPS1"}


def test_each_tier_reads_its_own(machine: AmdMachine) -> None:
    add_mi300x(machine)
    guard = FailingFiles()
    reader = reader_of(machine, guard)
    reader.read(ALL)
    guard.entered.clear()
    reader.read({Tier.FAST})
    assert guard.entered == ["power/runtime_status", "gpu_metrics", "mem_info_vram_used", "mem_info_gtt_used"]
    guard.entered.clear()
    reader.read({Tier.FAST, Tier.MEDIUM})
    assert not any(name.startswith("ras/") for name in guard.entered)
    assert "ecc_errors" in reader.values()


@pytest.mark.parametrize("due", [{Tier.FAST}, {Tier.FAST, Tier.MEDIUM}, ALL])
def test_pcie_bw_is_never_read(machine: AmdMachine, due: Collection[Tier]) -> None:
    add_mi300x(machine).write("pcie_bw", "1 2 256\n")
    guard = FailingFiles()
    reader_of(machine, guard).read(due)
    assert not [name for name in guard.entered if "pcie_bw" in name]


def test_an_mi250_and_its_memory_errors(machine: AmdMachine) -> None:
    add_mi250(machine)
    reader = reader_of(machine)
    assert reader.read(ALL) == {}
    values = reader.values()
    assert values["energy_joules"] == 5000.0
    assert values["throttle_reasons"]["memory_thermal"] == 1.0
    assert values["ecc_errors"] == {("uncorrected", "volatile"): 1.0, ("corrected", "volatile"): 40.0}
    assert values["bad_pages"] == {"retired": 1.0, "pending": 1.0, "failed": 0.0}
    assert values["temperature_threshold_celsius"] == {
        "slowdown": 101.0, "shutdown": 111.0, "memory_max": 103.0,
    }  # fmt: skip
    assert reader.modes == {}


def test_a_graphics_card_and_the_link_of_its_slot(machine: AmdMachine) -> None:
    add_rx7900(machine)
    reader = reader_of(machine)
    assert reader.read(ALL) == {}
    values = reader.values()
    assert (values["pcie_link_width"], values["pcie_link_width_max"]) == (8.0, 8.0)
    assert (values["pcie_link_generation"], values["pcie_link_generation_max"]) == (4.0, 4.0)
    assert values["fan_rpm"] == {"0": 1523.0}
    assert values["fan_speed_ratio"] == {"0": 0.4}
    assert "energy_joules" not in values
    assert values["decoder_utilization_ratio"] == 0.04
    assert values["clock_max_hertz"] == {"graphics": 2.66e9, "memory": 1.249e9}


def test_a_processor_with_graphics(machine: AmdMachine) -> None:
    add_apu(machine)
    reader = reader_of(machine)
    assert reader.read(ALL) == {}
    values = reader.values()
    assert reader.is_processor
    assert values["utilization_ratio"] == 0.23
    assert values["decoder_utilization_ratio"] == 0.06
    assert values["temperature_celsius"] == {"gpu": 49.0}
    assert values["power_watts"] == 21.0
    assert values["clock_hertz"] == {"graphics": 1.1e9, "memory": 2.8e9, "fabric": 1.6e9}
    assert (values["vram_used_bytes"], values["gtt_used_bytes"]) == (400 << 20, 5 * GIB)


def test_an_old_kernel_gives_what_it_has(machine: AmdMachine) -> None:
    add_old(machine)
    reader = reader_of(machine)
    assert reader.read(ALL) == {}
    values = {name: value for name, value in reader.values().items() if value != {}}
    assert values == {
        "utilization_ratio": 0.05,
        "power_watts": 33.0,
        "temperature_celsius": {"gpu": 41.0},
        "vram_used_bytes": float(900 << 20),
        "vram_total_bytes": 8.0 * GIB,
        "pcie_link_generation": 4.0,
        "pcie_link_width": 16.0,
        "pcie_link_generation_max": 4.0,
        "pcie_link_width_max": 16.0,
        "pcie_link_generation_gpu_max": 4.0,
    }


def test_the_activity_of_each_partition(machine: AmdMachine) -> None:
    split_mi300x(machine)
    reader = reader_of(machine)
    reader.read(ALL)
    assert reader.partition_activity == {number: number / 10 for number in range(8)}
    assert reader.modes == {"compute": "CPX", "memory": "NPS1"}


def test_a_partition_mode_that_changes_while_running(machine: AmdMachine) -> None:
    card = split_mi300x(machine)
    reader = reader_of(machine)
    reader.read(ALL)
    card.write("current_compute_partition", "SPX\n")
    card.metrics((1, 6), MI300X_METRICS, [{"gfx_busy_inst": [50] * 8}])
    reader.read(ALL)
    assert reader.modes["compute"] == "SPX"
    assert reader.partition_activity == {0: 0.5}


def test_a_short_metrics_file_costs_its_numbers_only(machine: AmdMachine) -> None:
    card = add_mi300x(machine)
    card.write("gpu_metrics", b"\x80\x06\x01\x06" + bytes(100))
    reader = reader_of(machine)
    assert reader.read(ALL) == {"gpu_metrics": "gpu_metrics 1.6 has 104 of 1664 bytes"}
    values = reader.values()
    assert values["utilization_ratio"] == 0.88
    assert values["power_watts"] == 613.0
    assert values["temperature_celsius"] == {"gpu": 61.0, "junction": 61.0, "memory": 55.0}
    assert values["clock_hertz"] == {"graphics": 2.0e9, "memory": 1.3e9}
    assert "energy_joules" not in values


def test_a_failing_file_leaves_no_old_number(machine: AmdMachine) -> None:
    add_mi300x(machine)
    guard = FailingFiles()
    reader = reader_of(machine, guard)
    reader.read(ALL)
    guard.codes["mem_info_vram_used"] = errno.EBUSY
    assert reader.read({Tier.FAST}) == {"mem_info_vram_used": "EBUSY"}
    assert "vram_used_bytes" not in reader.values()
    assert reader.values()["utilization_ratio"] == 0.87


def test_a_block_that_cannot_be_read_takes_the_total_away_not_back(machine: AmdMachine) -> None:
    card = add_mi300x(machine)
    card.write("ras/gfx_err_count", "Query currently inaccessible\n")
    reader = reader_of(machine)
    assert reader.read(ALL) == {"ras/gfx_err_count": "inaccessible"}
    values = reader.values()
    assert "ecc_errors" not in values
    assert values["ecc_location_errors"]["corrected", "volatile", "umc"] == 2.0


def test_a_card_in_reset_has_no_numbers_and_is_named_once(machine: AmdMachine) -> None:
    add_mi300x(machine)
    guard = FailingFiles()
    reader = reader_of(machine, guard)
    reader.read(ALL)
    guard.codes["*"] = errno.EPERM
    assert reader.read(ALL) == {"none of its files": "EPERM"}
    assert not reader.answers
    assert reader.values() == {}
    guard.codes.clear()
    assert reader.read({Tier.FAST}) == {}
    assert reader.answers
    assert reader.values()["utilization_ratio"] == 0.87


def test_a_sleeping_card_is_not_woken(machine: AmdMachine) -> None:
    card = add_rx7900(machine)
    card.write("power/runtime_status", "suspended\n")
    guard = FailingFiles()
    reader = reader_of(machine, guard)
    assert reader.read(ALL) == {}
    assert guard.entered == ["power/runtime_status"]
    assert reader.is_asleep
    assert reader.values() == {}
    card.write("power/runtime_status", "active\n")
    reader.read({Tier.FAST})
    assert reader.values()["utilization_ratio"] == 0.99
