"""The source intel-gpu: processes, the work of cards, cards that fail, come and go; and the native text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from tests.goldens import check_golden
from tests.vendors.amd.rig import ALL, FAST, MEDIUM, TickingClock, blocked, devices, native_text, processes
from tests.vendors.intel.rig import intel_source, read_intel
from tests.vendors.intel.trees import (
    GIB,
    IntelMachine,
    TreeCard,
    add_a770,
    add_b580,
    add_flex170,
    add_integrated,
    add_max1550,
)


@pytest.fixture
def machine(tmp_path: Path) -> IntelMachine:
    return IntelMachine(tmp_path)


def compute_on_xe(
    machine: IntelMachine, card: TreeCard, pid: int, client: int, ccs: int, total: int, **lines: str
) -> None:
    """`total` is the clock of the card."""
    cycles = {"rcs": 0, "bcs": 0, "vcs": 0, "vecs": 0, "ccs": ccs}
    for engine, own in cycles.items():
        lines |= {f"drm_cycles_{engine}": str(own), f"drm_total_cycles_{engine}": str(total)}
    machine.add_client(
        pid, 5, card, client, drm_total_vram0="3 GiB", drm_resident_vram0="2 GiB", drm_resident_gtt="1 GiB",
        drm_resident_system="0", drm_engine_capacity_vcs="2", **lines,
    )  # fmt: skip


def draw_on_i915(machine: IntelMachine, card: TreeCard, pid: int, client: int, **seconds: float) -> None:
    engines = {"render": 0.0, "copy": 0.0, "video": 0.0, "video_enhance": 0.0, "compute": 0.0} | seconds
    lines = {f"drm_engine_{name}": f"{value * 1e9:.0f} ns" for name, value in engines.items()}
    machine.add_client(
        pid, 5, card, client, drm_resident_local0="512 MiB", drm_resident_system0="64 MiB",
        drm_engine_capacity_video="2", **lines,
    )  # fmt: skip


def test_the_text_of_a_machine_of_several_families(machine: IntelMachine) -> None:
    arc = add_a770(machine)
    battlemage = add_b580(machine)
    add_max1550(machine)
    add_flex170(machine)
    clock = TickingClock()
    source = intel_source(machine, clock)
    draw_on_i915(machine, arc, 100, 4, render=1.0)
    compute_on_xe(machine, battlemage, 200, 9, 0, 19_200_000)
    source.read(ALL)
    clock.skipped += 1_000_000.0
    draw_on_i915(machine, arc, 100, 4, render=1.0)
    compute_on_xe(machine, battlemage, 200, 9, 4_800_000, 38_400_000)
    check_golden(Path("intel/native.prom"), native_text(source.read(ALL)))
    source.close()


def test_a_compute_process_on_xe(machine: IntelMachine) -> None:
    card = add_b580(machine)
    source = intel_source(machine)
    compute_on_xe(machine, card, 100, 9, 1_000, 10_000)
    (device,) = (reading := source.read(ALL)).devices
    (process,) = processes(reading).values()
    assert (process.kind, process.memory_bytes, process.sm_ratio) == ("C", 2.0 * GIB, ABSENT)
    assert device.utilization_ratio is ABSENT
    compute_on_xe(machine, card, 100, 9, 4_000, 20_000)
    (device,) = (reading := source.read(FAST)).devices
    (process,) = processes(reading).values()
    assert process.sm_ratio == pytest.approx(0.3)
    assert (process.encoder_ratio, process.decoder_ratio) == (ABSENT, ABSENT)
    assert device.utilization_ratio == pytest.approx(0.3)
    assert device.engine_active_ratio == pytest.approx(
        {"graphics": 0.3, "render": 0.0, "compute": 0.3, "copy": 0.0, "video": 0.0, "video_enhance": 0.0}
    )
    source.close()


def test_a_drawing_process_on_i915(machine: IntelMachine) -> None:
    card = add_a770(machine)
    clock = TickingClock()
    source = intel_source(machine, clock)
    draw_on_i915(machine, card, 100, 4, render=10.0)
    source.read(ALL)
    clock.skipped += 1000.0
    draw_on_i915(machine, card, 100, 4, render=410.0, video=1000.0)
    (device,) = (reading := source.read(FAST)).devices
    (process,) = processes(reading).values()
    assert (process.kind, process.memory_bytes) == ("G", float(512 << 20))
    assert process.sm_ratio == pytest.approx(0.4, abs=0.01)
    assert device.engine_active_ratio["video"] == pytest.approx(0.5, abs=0.01)  # two engines, one of them busy
    source.close()


def test_the_work_of_a_card_is_that_of_all_its_clients(machine: IntelMachine) -> None:
    card, other = add_b580(machine), add_b580(machine, "0000:13:00.0")
    source = intel_source(machine)
    for cycles, total in ((0, 10_000), (3_000, 20_000)):
        for pid in (100, 200):
            compute_on_xe(machine, card, pid, pid, cycles, total)
        compute_on_xe(machine, other, 300, 300, cycles // 3, total)
        found = devices(source.read(ALL))
    assert found["0000:03:00.0"].utilization_ratio == pytest.approx(0.6)
    assert found["0000:13:00.0"].utilization_ratio == pytest.approx(0.1)
    source.close()


def test_a_card_without_clients_does_nothing(machine: IntelMachine) -> None:
    add_b580(machine)
    (device,) = (reading := read_intel(machine)).devices
    assert reading.processes == ()
    assert (device.utilization_ratio, device.engine_active_ratio) == (0.0, {"graphics": 0.0})


def test_work_and_processes_are_not_known_if_a_user_hides_his(
    machine: IntelMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = add_b580(machine)
    machine.add_process(50)
    compute_on_xe(machine, card, 100, 9, 1_000, 10_000)
    list_folder = os.listdir

    def refuse(path: str = ".") -> list[str]:
        if str(path).endswith("/50/fd"):
            raise PermissionError(path)
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", refuse)
    (device,) = (reading := read_intel(machine)).devices
    assert reading.processes is ABSENT
    assert not device.processes_known
    assert (device.utilization_ratio, device.engine_active_ratio) == (ABSENT, {})
    assert device.energy_joules == 5000.0


def test_forks_and_copies_of_a_client_count_once(machine: IntelMachine) -> None:
    card = add_b580(machine)
    source = intel_source(machine)
    for cycles, total in ((0, 10_000), (2_000, 20_000)):
        for pid in range(100, 600):
            compute_on_xe(machine, card, pid, 9, cycles, total)
        (device,) = (reading := source.read(ALL)).devices
    (process,) = processes(reading).values()
    assert (process.pid, process.memory_bytes) == (100, 2.0 * GIB)
    assert device.utilization_ratio == pytest.approx(0.2)
    source.close()


def test_a_monitor_that_keeps_a_card_open_does_not_use_it(machine: IntelMachine) -> None:
    card = add_b580(machine)
    machine.add_client(
        100, 5, card, 4, drm_resident_gtt="192 KiB", drm_cycles_rcs="0", drm_total_cycles_rcs="5"
    )
    assert processes(read_intel(machine)) == {}


def test_a_kernel_that_counts_time_and_no_memory(machine: IntelMachine) -> None:
    card = add_a770(machine)
    machine.add_client(100, 5, card, 4, drm_engine_render="100 ns")
    (process,) = processes(read_intel(machine)).values()
    assert (process.memory_bytes, process.kind) == (ABSENT, "G")


def test_a_process_on_a_processors_gpu_holds_the_machines_memory(machine: IntelMachine) -> None:
    card = add_integrated(machine)
    machine.add_client(100, 5, card, 4, drm_resident_system0="3 GiB", drm_engine_render="5 ns")
    (process,) = processes(read_intel(machine)).values()
    assert process.memory_bytes == 3.0 * GIB


def test_hostile_names_and_numbers_harm_nobody(machine: IntelMachine) -> None:
    card = add_b580(machine)
    compute_on_xe(machine, card, 100, 9, 1_000, 10_000)
    compute_on_xe(machine, card, 200, 10, 1_000, 10_000, drm_client_name='"} 1\n\x1b[31m\ndrm-client-id:\t9')
    machine.add_client(300, 5, card, 11, drm_resident_vram0="-1 GiB", drm_cycles_ccs="9" * 40)
    machine.add_client(
        400, 5, card, 12, drm_resident_vram0="1 GiB", drm_cycles_ccs="5", drm_total_cycles_ccs="x"
    )
    found = processes(read_intel(machine))
    assert sorted(pid for pid, _ in found) == [100, 200, 400]
    assert all(process.memory_bytes in (1.0 * GIB, 2.0 * GIB) for process in found.values())


def test_a_client_of_a_card_that_is_not_read_is_left_out(machine: IntelMachine) -> None:
    add_b580(machine)
    other = add_integrated(machine)
    machine.add_client(100, 5, other, 4, drm_resident_system0="3 GiB", drm_engine_render="5 ns")
    assert processes(read_intel(machine)) == {}


def test_clients_do_not_wake_a_sleeping_card(machine: IntelMachine) -> None:
    card = add_b580(machine)
    source = intel_source(machine)
    compute_on_xe(machine, card, 100, 9, 1_000, 10_000)
    source.read(ALL)
    card.write("power/runtime_status", "suspended\n")
    (machine.proc / "100/fdinfo/5").unlink()  # would be the end of the client if it were read
    (device,) = (reading := source.read(MEDIUM)).devices
    (process,) = processes(reading).values()
    assert (process.memory_bytes, process.sm_ratio) == (2.0 * GIB, 0.0)
    assert device.utilization_ratio == 0.0
    source.close()


def test_a_failing_card_is_alone(machine: IntelMachine) -> None:
    broken = add_b580(machine)
    add_b580(machine, "0000:13:00.0")
    broken.write("hwmon/hwmon5/energy1_input", "what\n")
    broken.write("hwmon/hwmon5/temp2_input", "N/A\n")
    reading = read_intel(machine)
    assert reading.failures == {"GPU 0 (0000:03:00.0): hwmon/hwmon5/energy1_input (not a number)": 1}
    first, second = reading.devices
    assert (first.energy_joules, first.temperature_celsius) == (ABSENT, {"memory": 71.0})
    assert (second.energy_joules, second.temperature_celsius["gpu"]) == (5000.0, 62.0)


def test_a_file_that_does_not_return_costs_its_own_number(machine: IntelMachine) -> None:
    card = add_b580(machine)
    source = intel_source(machine)
    source.read(ALL)
    with blocked(card.folder / "hwmon/hwmon5/temp2_input"):
        (device,) = source.read(FAST).devices
        assert device.temperature_celsius == {"memory": 71.0}
        assert device.clock_hertz["graphics"] == 2.4e9
    source.close()


def test_a_card_that_is_unplugged_is_gone_and_one_without_a_driver_is_lost(machine: IntelMachine) -> None:
    unplugged, given_up = add_b580(machine), add_b580(machine, "0000:13:00.0")
    add_a770(machine)
    source = intel_source(machine)
    assert len(source.read(ALL).devices) == 3
    unplugged.unplug()
    (given_up.folder / "driver").unlink()
    found = devices(source.read(MEDIUM))
    assert sorted(found) == ["0000:0b:00.0", "0000:13:00.0"]
    assert found["0000:13:00.0"].lost
    assert not found["0000:0b:00.0"].lost
    source.close()


def test_cards_in_the_same_slot_of_two_machines_are_two(tmp_path: Path) -> None:
    uuids = []
    for name in ("a", "b"):
        machine = IntelMachine(tmp_path / name)
        add_b580(machine)
        (machine.root / "etc").mkdir(parents=True)
        (machine.root / "etc/machine-id").write_text(f"{name}\n")
        uuids += [device.uuid for device in read_intel(machine).devices]
    assert len(set(uuids)) == 2


def test_the_version_of_the_driver(machine: IntelMachine) -> None:
    add_b580(machine)
    assert read_intel(machine).drivers["intel"].driver_version == "6.8.0-45-generic"
    assert read_intel(machine).drivers["intel"].gpu_count == 1
