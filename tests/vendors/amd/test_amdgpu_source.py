"""The source amdgpu: cards as devices, partitions as instances, and cards that fail, sleep, come and go."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from gpuscope.agent.collect.expected import expected_gpus
from gpuscope.agent.job_runner import CALL_DEADLINE_SECONDS
from gpuscope.agent.owners.allocation_matching import DeviceIndex, uuid_of
from gpuscope.agent.owners.pod_resources import is_gpu
from gpuscope.base.errors import SourceMissing
from gpuscope.base.source_plan import source_plans
from gpuscope.model.readings import ABSENT, Uuid
from gpuscope.model.source import Tier
from gpuscope.model.vendor import vendors
from gpuscope.vendors.amd.amd_values import AmdValues
from gpuscope.vendors.amd.amdgpu.gpu_metrics import ATTRIBUTE_IDS
from gpuscope.vendors.drm.card_identity import parse_cpu_mask
from tests.goldens import check_golden
from tests.vendors.amd.families import (
    UNIQUE_ID,
    add_apu,
    add_mi250,
    add_mi300x,
    add_old,
    add_rx7900,
    split_mi300x,
)
from tests.vendors.amd.rig import (
    ALL,
    FAST,
    MEDIUM,
    TickingClock,
    blocked,
    devices,
    native_text,
    read,
    source_of,
)
from tests.vendors.amd.trees import GIB, AmdMachine, encode_attribute, encode_attributes, write
from tests.waiting import wait_for


@pytest.fixture
def machine(tmp_path: Path) -> AmdMachine:
    made = AmdMachine(tmp_path)
    made.add_cpu_node()
    return made


def test_an_mi300x_is_a_device(machine: AmdMachine) -> None:
    add_mi300x(machine)
    (device,) = read(machine).devices
    assert (device.uuid, device.index, device.vendor) == ("GPU-5f8c1b2a3d4e5f60", 0, "amd")
    assert (device.model, device.serial) == ("AMD Instinct MI300X OAM", "692419000000")
    assert (device.architecture, device.pci_bus_id) == ("gfx942", "0000:c1:00.0")
    assert (device.memory_total_bytes, device.memory_used_bytes) == (192.0 * GIB, 81.0 * GIB)
    assert device.memory_free_bytes == 111.0 * GIB
    assert device.cpu_affinity == {"0": 0xFFFF}
    assert device.memory_affinity == {"0": 1}
    assert device.pci_ids == {"device": float(0x74A11002), "sub_device": float(0x74A11002)}
    assert not device.lost
    assert not device.instances
    assert device.vendor_values == AmdValues(
        gtt_total_bytes=1007.0 * GIB,
        gtt_used_bytes=3.0 * GIB,
        bad_pages={"retired": 0.0, "pending": 0.0, "failed": 0.0},
        compute_units=304.0,
        device_ids={"gpu-0-128": Uuid("GPU-5f8c1b2a3d4e5f60")},
        partition_modes={("SPX", "NPS1"): 1.0},
    )


def test_the_text_of_a_machine_of_several_families(machine: AmdMachine) -> None:
    add_mi300x(machine)
    add_mi250(machine)
    add_rx7900(machine)
    add_old(machine)
    split_mi300x(machine, "0000:d1:00.0").write("unique_id", f"{UNIQUE_ID + 7:016x}\n")
    machine.add_kfd_process(100, {50_000: 80 * GIB, 50_011: 0})
    machine.add_kfd_process(200, {60_003: 20 * GIB})
    machine.add_drm_client(
        300, 5, pdev="0000:03:00.0", client=4, render=130, drm_resident_vram="1 GiB", drm_engine_gfx="5 ns"
    )
    check_golden(Path("amd/native.prom"), native_text(read(machine)))


def test_a_processor_uses_the_machines_memory(machine: AmdMachine) -> None:
    add_apu(machine)
    (device,) = read(machine).devices
    assert device.memory_total_bytes == 14 * GIB + (512 << 20)
    assert device.memory_used_bytes == 5 * GIB + (400 << 20)
    assert device.model == "AMD 1002:15bf"


def test_a_card_without_an_id_has_one_of_its_machine_and_slot(tmp_path: Path) -> None:
    uuids = []
    for name, address in (("a", "0000:09:00.0"), ("b", "0000:09:00.0"), ("a", "0000:0a:00.0")):
        machine = AmdMachine(tmp_path / f"{name}-{address[5:7]}")
        add_old(machine, address)
        (machine.root / "etc").mkdir(parents=True)
        (machine.root / "etc/machine-id").write_text(f"{name}\n")
        (device,) = read(machine).devices
        assert device.uuid.startswith("GPU-")
        uuids.append(device.uuid)
        assert read(machine).devices[0].uuid == device.uuid
    assert len(set(uuids)) == 3


def test_two_cards_with_one_id_are_two_gpus(machine: AmdMachine) -> None:
    add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0")
    first, second = read(machine).devices
    assert first.uuid == "GPU-5f8c1b2a3d4e5f60"
    assert second.uuid != first.uuid


# Partitions


def test_partitions_are_instances(machine: AmdMachine) -> None:
    split_mi300x(machine)
    (device,) = read(machine).devices
    assert device.is_split
    assert [instance.uuid for instance in device.instances] == [
        f"GPU-5f8c1b2a3d4e5f60-{number}" for number in range(8)
    ]
    third = device.instances[3]
    assert (third.ids, third.profile, third.memory_total_bytes) == ((3,), "CPX 1/8 NPS1", 24.0 * GIB)
    assert third.engine_active_ratio == {"graphics": 0.3}
    assert third.memory_used_bytes is ABSENT
    assert device.power_watts == 613.0


def test_a_partition_mode_that_changes_while_the_source_is_open(machine: AmdMachine) -> None:
    card = add_mi300x(machine)
    source = source_of(machine)
    assert not source.read(ALL).devices[0].instances
    machine.clear_nodes()
    for number in range(2):
        machine.add_node("0000:c1:00.0", 70_000 + number, partition=number, num_xcc=4, simd_count=608)
    card.write("current_compute_partition", "DPX\n")
    (device,) = source.read(ALL).devices
    assert [instance.profile for instance in device.instances] == ["DPX 1/2 NPS1"] * 2
    source.close()


def test_partitions_with_files_of_their_own(machine: AmdMachine) -> None:
    card = split_mi300x(machine)
    card.write("gpu_metrics", encode_attributes({"average_gfx_activity": 50, "curr_socket_power": 700}))
    for number in range(8):
        body = encode_attribute(ATTRIBUTE_IDS["gfx_busy_inst"], [11 * number], "I")
        folder = card.folder if number == 0 else machine.sys / f"devices/platform/amdgpu_xcp_{29 + number}"
        write(folder / "xcp/xcp_metrics", struct.pack("<HBBi", 8 + len(body), 1, 1, 1) + body)
    (device,) = read(machine).devices
    assert device.power_watts == 700.0
    assert [instance.engine_active_ratio["graphics"] for instance in device.instances] == [
        pytest.approx(0.11 * number) for number in range(8)
    ]


@pytest.mark.parametrize(
    ("device_id", "gpu", "instance"),
    [
        ("0000:c1:00.0", "GPU-5f8c1b2a3d4e5f60", "GPU-5f8c1b2a3d4e5f60-0"),
        ("amdgpu_xcp_33", "GPU-5f8c1b2a3d4e5f60", "GPU-5f8c1b2a3d4e5f60-4"),
        ("GPU-5f8c1b2a3d4e5f60-7", "GPU-5f8c1b2a3d4e5f60", "GPU-5f8c1b2a3d4e5f60-7"),
        ("gpu-0-128", "GPU-5f8c1b2a3d4e5f60", "GPU-5f8c1b2a3d4e5f60-0"),
        ("0000:d1:00.0", "GPU-5f8c1b2a3d4e5f61", ABSENT),
        ("gpu-1-129", "GPU-5f8c1b2a3d4e5f61", ABSENT),
        ("0.3", "GPU-5f8c1b2a3d4e5f60", "GPU-5f8c1b2a3d4e5f60-3"),
    ],
)
def test_ids_of_schedulers(machine: AmdMachine, device_id: str, gpu: str, instance: str) -> None:
    split_mi300x(machine)
    add_mi300x(machine, "0000:d1:00.0", unique_id=UNIQUE_ID + 1)
    matched = DeviceIndex(read(machine).devices).find(device_id)
    assert matched is not None
    assert uuid_of(matched) == (gpu, instance)


@pytest.mark.parametrize("resource", ["amd.com/gpu", "amd.com/cpx_nps4", "amd.com/spx_nps1"])
def test_resources_of_kubernetes(resource: str) -> None:
    assert is_gpu(resource)
    assert not is_gpu("amd.com/nic")


def test_the_share_of_a_partition() -> None:
    share = vendors()["amd"].instance_share
    assert share("CPX 1/8 NPS1", "AMD Instinct MI300X") == 0.125
    assert share("1/2", "") == 0.5
    assert share("3g.40gb", "") == 0.0


# Failures


def test_a_failing_card_is_alone(machine: AmdMachine) -> None:
    broken = add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    broken.write("gpu_metrics", b"\x01")
    broken.write("mem_info_vram_used", "N/A\n")
    broken.write("ras/umc_err_count", "Query currently inaccessible\n")
    reading = read(machine)
    assert reading.failures == {
        "GPU 0 (0000:c1:00.0): gpu_metrics (gpu_metrics has 1 bytes)": 1,
        "GPU 0 (0000:c1:00.0): ras/umc_err_count (inaccessible)": 1,
    }
    first, second = reading.devices
    assert (first.memory_used_bytes, first.utilization_ratio) == (ABSENT, 0.88)
    assert (second.memory_used_bytes, second.utilization_ratio) == (81.0 * GIB, 0.87)


def test_a_file_that_does_not_return_costs_its_own_number(
    machine: AmdMachine, caplog: pytest.LogCaptureFixture
) -> None:
    card = add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    source = source_of(machine)
    source.read(ALL)
    with blocked(card.folder / "mem_info_vram_used"):
        first, second = source.read(FAST).devices
        assert first.memory_used_bytes is ABSENT
        assert (first.utilization_ratio, first.power_watts) == (0.87, 613.0)
        assert second.memory_used_bytes == 81.0 * GIB
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"source amdgpu: GPU 0 (0000:c1:00.0): mem_info_vram_used has not returned for "
        f"{CALL_DEADLINE_SECONDS:.0f} s; its number is absent, other numbers are still read"
    ]
    wait_for(lambda: source.read(FAST).devices[0].memory_used_bytes == 81.0 * GIB, "the number is back")
    source.close()


def test_a_card_without_its_files_is_lost_after_a_while_and_comes_back(machine: AmdMachine) -> None:
    card = add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    clock = TickingClock()
    source = source_of(machine, clock)
    source.read(ALL)
    away = machine.folder / "away"
    shutil.move(card.folder, away)
    card.folder.mkdir()
    for name in ("vendor", "drm", "power"):
        (card.folder / name).symlink_to(away / name)
    reading = source.read(FAST)
    assert reading.failures == {"GPU 0 (0000:c1:00.0): none of its files (no files)": 1}
    assert not reading.devices[0].lost
    assert reading.devices[0].utilization_ratio is ABSENT
    clock.skipped += 100
    lost, other = source.read(FAST).devices
    assert (lost.lost, lost.uuid, lost.model) == (True, "GPU-5f8c1b2a3d4e5f60", "AMD Instinct MI300X OAM")
    assert not other.lost
    shutil.rmtree(card.folder)
    shutil.move(away, card.folder)
    back, _ = source.read(ALL).devices
    assert (back.lost, back.utilization_ratio) == (False, 0.87)
    source.close()


def test_a_card_that_is_unplugged_is_gone_and_a_new_one_is_found(machine: AmdMachine) -> None:
    card = add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    source = source_of(machine)
    assert len(source.read(ALL).devices) == 2
    card.unplug()
    assert list(devices(source.read(MEDIUM))) == ["0000:c2:00.0"]
    machine.cards.append(card)
    add_mi300x(machine, "0000:c3:00.0", unique_id=UNIQUE_ID + 2)
    assert list(devices(source.read(MEDIUM))) == ["0000:c2:00.0", "0000:c3:00.0"]
    source.close()


def test_a_card_that_the_driver_gave_up_is_lost(machine: AmdMachine) -> None:
    card = add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    source = source_of(machine)
    source.read(ALL)
    (card.folder / "driver").unlink()
    found = devices(source.read(MEDIUM))
    assert found["0000:c1:00.0"].lost
    assert not found["0000:c2:00.0"].lost
    source.close()


def test_a_sleeping_card_has_no_numbers_and_is_not_lost(machine: AmdMachine) -> None:
    add_rx7900(machine).write("power/runtime_status", "suspended\n")
    clock = TickingClock()
    source = source_of(machine, clock)
    source.read(ALL)
    clock.skipped += 1000
    (device,) = source.read(FAST).devices
    assert (device.lost, device.utilization_ratio, device.model) == (False, ABSENT, "AMD 1002:744c")
    source.close()


def test_a_machine_without_a_card_says_so(machine: AmdMachine) -> None:
    with pytest.raises(SourceMissing, match="no card of the driver amdgpu"):
        source_of(machine)


# What is read


def test_a_processors_gpu_counts_where_there_is_no_other(machine: AmdMachine) -> None:
    add_apu(machine)
    assert list(devices(read(machine))) == ["0000:04:00.0"]
    add_rx7900(machine)
    assert list(devices(read(machine))) == ["0000:03:00.0"]
    always = source_of(machine, integrated="always").read(ALL)
    assert sorted(devices(always)) == ["0000:03:00.0", "0000:04:00.0"]


def test_auto_reads_amds_driver_where_there_is_an_amd_gpu(machine: AmdMachine) -> None:
    plan = source_plans()["amdgpu"]
    assert not plan.in_auto(machine.settings())
    card = add_mi300x(machine)
    assert plan.in_auto(machine.settings())
    card.write("vendor", "0x1022\n")
    assert not plan.in_auto(machine.settings())


@pytest.mark.parametrize(("kind", "expected"), [("0x120000", 1), ("0x030000", 0), ("0x038000", 0)])
def test_accelerators_on_the_bus_are_expected(machine: AmdMachine, kind: str, expected: int) -> None:
    """A processor's GPU is a display controller: where it is not read, it must not seem to be missing."""
    add_mi300x(machine).write("class", f"{kind}\n")
    assert expected_gpus(machine.settings()) == expected


def test_the_version_of_the_driver(machine: AmdMachine) -> None:
    add_mi300x(machine)
    assert read(machine).drivers["amd"].driver_version == "6.8.0-45-generic"
    (machine.sys / "module/amdgpu").mkdir(parents=True)
    (machine.sys / "module/amdgpu/version").write_text("6.10.5\n")
    assert read(machine).drivers["amd"].driver_version == "6.10.5"
    assert read(machine).drivers["amd"].gpu_count == 1


def test_a_tier_that_was_not_read_is_read_with_the_next(machine: AmdMachine) -> None:
    add_mi300x(machine)
    source = source_of(machine)
    (device,) = source.read(frozenset({Tier.FAST})).devices
    assert device.ecc_errors
    assert device.pcie_link_width == 16.0
    source.close()


def test_masks_of_cpus() -> None:
    assert parse_cpu_mask("00000001,00000000,0000ffff") == {"0": 0xFFFF, "1": 1}
    assert parse_cpu_mask("x") == {}
    assert parse_cpu_mask(ABSENT) == {}
