"""One card of each family as a device; and what happens when its files fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT, Device
from gpuscope.model.source import Tier
from gpuscope.vendors.intel.intel_gpu.intel_cards import list_intel_cards
from gpuscope.vendors.intel.intel_gpu.intel_device import IntelGpu
from gpuscope.vendors.intel.intel_values import IntelValues
from tests.fakes import FakeClock
from tests.vendors.amd.failing_files import FailingFiles
from tests.vendors.intel.trees import (
    GIB,
    XE_REASONS,
    IntelMachine,
    add_a770,
    add_b580,
    add_flex170,
    add_integrated,
    add_max1550,
)

ALL = frozenset(Tier)
FAST = frozenset({Tier.FAST})


@pytest.fixture
def machine(tmp_path: Path) -> IntelMachine:
    return IntelMachine(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def gpu_of(machine: IntelMachine, clock: FakeClock, guard: FailingFiles | None = None) -> IntelGpu:
    (card,) = list_intel_cards(str(machine.sys))
    return IntelGpu(card, str(machine.root), clock.monotonic, guard)


def read_all(machine: IntelMachine, clock: FakeClock) -> Device:
    gpu = gpu_of(machine, clock)
    gpu.read(ALL)
    assert gpu.failures == {}
    return gpu.to_device(60.0)


def test_a_b580_with_xe(machine: IntelMachine, clock: FakeClock) -> None:
    add_b580(machine)
    device = read_all(machine, clock)
    assert device == Device(
        uuid=device.uuid,
        index=0,
        vendor="intel",
        model="Intel Arc B580",
        architecture="Xe2-HPG",
        pci_bus_id="0000:03:00.0",
        pci_ids={"device": float(0xE20B8086), "sub_device": float(0x10208086)},
        cpu_affinity={"0": 0xFFFF},
        memory_affinity={},
        energy_joules=5000.0,
        temperature_celsius={"gpu": 62.0, "memory": 71.0},
        clock_hertz={"graphics": 2.4e9, "video": 1.2e9},
        clock_max_hertz={"graphics": 2.85e9, "video": 1.5e9},
        throttle_reasons={name: float(name == "pl1") for name in XE_REASONS},
        fan_rpm={"0": 1310.0, "1": 1320.0},
        power_limit_watts={"current": 190.0, "enforced": 190.0, "default": 200.0},
        pcie_link_generation=4.0,
        pcie_link_width=8.0,
        pcie_link_generation_max=4.0,
        pcie_link_width_max=16.0,
        pcie_link_generation_gpu_max=4.0,
        vendor_values=IntelValues(
            device_ids={"card0": device.uuid, "0000-03-00-0-0xe20b": device.uuid},
        ),
    )


def test_an_a770_with_i915(machine: IntelMachine, clock: FakeClock) -> None:
    add_a770(machine)
    device = read_all(machine, clock)
    assert device.energy_joules == 7000.0
    assert device.temperature_celsius == {"gpu": 55.0}
    assert device.clock_hertz == {"graphics": 2.05e9}
    assert device.clock_max_hertz == {"graphics": 2.4e9}
    assert device.throttle_reasons == {name: float(name == "thermal") for name in XE_REASONS}
    assert device.fan_rpm == {"0": 900.0}
    assert device.power_limit_watts == {"default": 190.0}
    assert device.pcie_link_width == 8.0
    assert device.memory_total_bytes is ABSENT
    assert device.memory_used_bytes is ABSENT
    assert device.utilization_ratio is ABSENT


def test_a_max_1550_with_two_tiles(machine: IntelMachine, clock: FakeClock) -> None:
    add_max1550(machine)
    device = read_all(machine, clock)
    assert device.memory_total_bytes == 128.0 * GIB
    assert device.clock_hertz == {"graphics": 1.5e9}
    assert device.clock_max_hertz == {"graphics": 1.6e9, "memory": 3.2e9}
    assert device.throttle_reasons["vr_tdc"] == 1.0
    assert device.pcie_link_generation == 5.0
    assert device.temperature_celsius == {}


def test_a_tile_whose_memory_is_not_known_leaves_no_sum(machine: IntelMachine, clock: FakeClock) -> None:
    add_max1550(machine).remove("tile1/physical_vram_size_bytes")
    assert read_all(machine, clock).memory_total_bytes is ABSENT


def test_an_old_kernel_gives_what_it_has(machine: IntelMachine, clock: FakeClock) -> None:
    add_flex170(machine)
    device = read_all(machine, clock)
    assert device.clock_hertz == {"graphics": 1.95e9}
    assert device.clock_max_hertz == {"graphics": 2.05e9}
    assert device.memory_total_bytes == 14.0 * GIB
    assert device.throttle_reasons == {}
    assert device.energy_joules is ABSENT
    assert device.power_limit_watts == {}


def test_a_processors_gpu(machine: IntelMachine, clock: FakeClock) -> None:
    add_integrated(machine)
    device = read_all(machine, clock)
    assert device.clock_hertz == {"graphics": 0.0}
    assert device.energy_joules is ABSENT
    assert device.pcie_link_width is ABSENT


def test_power_is_the_energy_since_the_last_reading(machine: IntelMachine, clock: FakeClock) -> None:
    card = add_b580(machine)
    gpu = gpu_of(machine, clock)
    watts = []
    for microjoules in (5_000_000_000, 5_300_000_000, 5_300_000_000, 1_000_000, 101_000_000):
        card.write("hwmon/hwmon5/energy1_input", microjoules)
        gpu.read(FAST)
        watts.append(gpu.to_device(60.0).power_watts)
        clock.pass_seconds(2.0)
    assert watts == [ABSENT, 150.0, 0.0, ABSENT, 50.0]  # the driver was loaded again before the fourth


def test_no_power_from_an_energy_that_failed_between(machine: IntelMachine, clock: FakeClock) -> None:
    add_b580(machine)
    guard = FailingFiles()
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    guard.codes["hwmon/hwmon5/energy1_input"] = errno.EBUSY
    clock.pass_seconds(1.0)
    gpu.read(FAST)
    assert gpu.failures == {"hwmon/hwmon5/energy1_input": "EBUSY"}
    assert gpu.to_device(60.0).energy_joules is ABSENT
    guard.codes.clear()
    clock.pass_seconds(1.0)
    gpu.read(FAST)
    device = gpu.to_device(60.0)
    assert (device.energy_joules, device.power_watts) == (5000.0, ABSENT)


def test_the_energy_of_the_package_where_there_is_none_of_the_card(
    machine: IntelMachine, clock: FakeClock
) -> None:
    card = add_b580(machine)
    for name in ("energy1_input", "power1_max", "power1_rated_max"):
        card.remove(f"hwmon/hwmon5/{name}")
    device = read_all(machine, clock)
    assert device.energy_joules == 4000.0
    assert device.power_limit_watts == {"current": 150.0, "enforced": 150.0}


def test_sensors_without_labels(machine: IntelMachine, clock: FakeClock) -> None:
    card = add_b580(machine)
    for number in (2, 3, 4):
        card.remove(f"hwmon/hwmon5/temp{number}_label")
    assert read_all(machine, clock).temperature_celsius == {"gpu": 62.0, "memory": 71.0}


def test_reasons_are_read_only_while_there_is_one(machine: IntelMachine, clock: FakeClock) -> None:
    card = add_b580(machine)
    guard = FailingFiles()
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    guard.entered.clear()
    card.write("tile0/gt0/freq0/throttle/status", 0)
    gpu.read(FAST)
    assert not [name for name in guard.entered if "reason_" in name]
    assert gpu.to_device(60.0).throttle_reasons == dict.fromkeys(XE_REASONS, 0.0)


def test_reasons_of_the_newest_cards(machine: IntelMachine, clock: FakeClock) -> None:
    card = add_b580(machine)
    for name in ("mem_thermal", "vr_thermal", "soc_thermal", "hostile_name"):
        card.write(f"tile0/gt0/freq0/throttle/reason_{name}", 1)
    reasons = read_all(machine, clock).throttle_reasons
    assert {name for name, value in reasons.items() if value} == {
        "pl1", "mem_thermal", "soc_thermal", "vr_thermalert",
    }  # fmt: skip


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP])
def test_a_refused_file_is_absent_and_no_failure(machine: IntelMachine, clock: FakeClock, code: int) -> None:
    add_b580(machine)
    guard = FailingFiles({"hwmon/hwmon5/temp2_input": code, "tile0/gt0/freq0/act_freq": code})
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    assert gpu.failures == {}
    device = gpu.to_device(60.0)
    assert device.temperature_celsius == {"memory": 71.0}
    assert device.clock_hertz == {"video": 1.2e9}


@pytest.mark.parametrize("content", ["N/A\n", "", "12 apples\n", "\x00\n"])
def test_a_file_without_a_number_costs_its_own(machine: IntelMachine, clock: FakeClock, content: str) -> None:
    add_b580(machine).write("hwmon/hwmon5/temp3_input", content)
    gpu = gpu_of(machine, clock)
    gpu.read(ALL)
    assert gpu.to_device(60.0).temperature_celsius == {"gpu": 62.0}


def test_a_status_that_fails_leaves_its_reasons_out(machine: IntelMachine, clock: FakeClock) -> None:
    add_b580(machine)
    guard = FailingFiles({f"tile0/gt{number}/freq0/throttle/status": errno.EBUSY for number in (0, 1)})
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    assert gpu.to_device(60.0).throttle_reasons == {}


def test_a_card_in_reset_has_no_numbers_and_is_named_once(machine: IntelMachine, clock: FakeClock) -> None:
    add_b580(machine)
    guard = FailingFiles()
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    guard.codes["*"] = errno.EIO
    gpu.read(ALL)
    assert gpu.failures == {"none of its files": "EIO"}
    device = gpu.to_device(60.0)
    assert (device.lost, device.model, device.energy_joules) == (False, "Intel Arc B580", ABSENT)
    clock.pass_seconds(61.0)
    assert gpu.to_device(60.0).lost
    guard.codes.clear()
    gpu.read(FAST)
    assert not gpu.to_device(60.0).lost


def test_a_card_without_files_of_the_driver_is_not_lost(machine: IntelMachine, clock: FakeClock) -> None:
    """A virtual function has neither sensors nor clocks."""
    card = add_b580(machine)
    card.remove("tile0")
    card.remove("hwmon")
    gpu = gpu_of(machine, clock)
    gpu.read(ALL)
    clock.pass_seconds(100.0)
    gpu.read(ALL)
    assert gpu.failures == {}
    assert not gpu.to_device(60.0).lost


def test_a_sleeping_card_is_not_woken(machine: IntelMachine, clock: FakeClock) -> None:
    card = add_b580(machine)
    card.write("power/runtime_status", "suspended\n")
    guard = FailingFiles()
    gpu = gpu_of(machine, clock, guard)
    gpu.read(ALL)
    assert not [name for name in guard.entered if "hwmon" in name or "tile" in name]
    device = gpu.to_device(60.0)
    assert (device.lost, device.model, device.clock_hertz) == (False, "Intel Arc B580", {})
    card.write("power/runtime_status", "active\n")
    gpu.read(ALL)
    assert gpu.to_device(60.0).energy_joules == 5000.0
