"""Processes on AMD's GPUs: of ROCm, of graphics, on partitions, on processors, in several sources' readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from tests.vendors.amd.families import (
    UNIQUE_ID,
    add_apu,
    add_mi300x,
    add_old,
    add_rx7900,
    gpu_id_of,
    split_mi300x,
)
from tests.vendors.amd.rig import ALL, FAST, TickingClock, blocked, processes, read, source_of
from tests.vendors.amd.trees import GIB, AmdMachine, write

FIRST = "GPU-5f8c1b2a3d4e5f60"
SECOND = "GPU-5f8c1b2a3d4e5f61"


@pytest.fixture
def machine(tmp_path: Path) -> AmdMachine:
    made = AmdMachine(tmp_path)
    made.add_cpu_node()
    return made


def two_mi300x(machine: AmdMachine) -> None:
    add_mi300x(machine, "0000:c1:00.0")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)


def test_a_process_of_rocm_has_memory_and_no_share_of_compute(machine: AmdMachine) -> None:
    two_mi300x(machine)
    machine.add_kfd_process(100, {gpu_id_of(0): 80 * GIB, gpu_id_of(1): 2 * GIB})
    machine.add_kfd_process(200, {gpu_id_of(0): 0, gpu_id_of(1): 0})
    found = processes(read(machine))
    assert {key: process.memory_bytes for key, process in found.items()} == {
        (100, FIRST): 80.0 * GIB, (100, SECOND): 2.0 * GIB,
    }  # fmt: skip
    process = found[100, FIRST]
    assert (process.kind, process.sm_ratio, process.encoder_ratio) == ("C", ABSENT, ABSENT)


def test_a_process_that_rocm_and_drm_know_counts_once(machine: AmdMachine) -> None:
    two_mi300x(machine)
    machine.add_kfd_process(100, {gpu_id_of(0): 80 * GIB})
    machine.add_drm_client(100, 5, pdev="0000:c1:00.0", client=4, drm_resident_vram="81 GiB")
    machine.add_drm_client(100, 6, pdev="0000:c2:00.0", client=5, render=129, drm_resident_vram="1 MiB")
    found = processes(read(machine))
    assert {key: process.memory_bytes for key, process in found.items()} == {(100, FIRST): 80.0 * GIB}


def test_a_graphics_process_has_a_share_of_its_engines(machine: AmdMachine) -> None:
    card = add_rx7900(machine)
    clock = TickingClock()
    source = source_of(machine, clock)

    def draw(gfx: float, dec: float) -> None:
        machine.add_drm_client(
            100, 5, pdev=card.address, client=4, drm_resident_vram="2 GiB", drm_resident_gtt="1 GiB",
            drm_engine_gfx=f"{gfx * 1e9:.0f} ns", drm_engine_dec=f"{dec * 1e9:.0f} ns",
        )  # fmt: skip

    draw(0, 0)
    (process,) = processes(source.read(ALL)).values()
    assert (process.kind, process.memory_bytes, process.sm_ratio) == ("G", 2.0 * GIB, ABSENT)
    clock.skipped += 1000.0
    draw(500.0, 100.0)
    (process,) = processes(source.read(FAST)).values()
    assert process.sm_ratio == pytest.approx(0.5, abs=0.01)
    assert process.decoder_ratio == pytest.approx(0.1, abs=0.01)
    assert process.encoder_ratio == 0.0
    source.close()


def test_a_monitor_that_keeps_a_card_open_does_not_use_it(machine: AmdMachine) -> None:
    card = add_rx7900(machine)
    machine.add_drm_client(100, 5, pdev=card.address, client=4, drm_resident_gtt="2 MiB")
    assert processes(read(machine)) == {}


def test_processes_on_partitions(machine: AmdMachine) -> None:
    card = split_mi300x(machine)
    machine.add_kfd_process(100, {60_000 + number: GIB if number == 3 else 0 for number in range(8)})
    machine.add_drm_client(
        200, 5, pdev=card.address, client=4, render=165, drm_resident_vram="1 GiB", drm_engine_compute="1 ns"
    )
    found = processes(read(machine))
    assert set(found) == {(100, f"{FIRST}-3"), (200, f"{FIRST}-5")}
    assert found[100, f"{FIRST}-3"].gpu_uuid == FIRST


def test_a_model_on_a_processor_is_in_the_machines_memory(machine: AmdMachine) -> None:
    card = add_apu(machine)
    machine.add_kfd_process(100, {gpu_id_of(0): 100 << 20})
    machine.add_drm_client(
        100, 5, pdev=card.address, client=4, drm_resident_vram="100 MiB", drm_resident_gtt="4 GiB"
    )
    (process,) = processes(read(machine)).values()
    assert process.memory_bytes == (100 << 20) + 4 * GIB


def test_without_kfd_the_clients_of_the_card_are_all_there_is(machine: AmdMachine) -> None:
    card = add_old(machine)
    machine.add_drm_client(100, 5, pdev=card.address, client=4, drm_resident_vram="1 GiB")
    reading = read(machine)
    assert len(processes(reading)) == 1
    assert reading.devices[0].processes_known


def test_processes_that_do_not_answer_are_not_known(machine: AmdMachine) -> None:
    two_mi300x(machine)
    folder = machine.add_kfd_process(100, {gpu_id_of(0): GIB})
    source = source_of(machine)
    source.read(ALL)
    with blocked(folder / f"vram_{gpu_id_of(0)}"):
        reading = source.read(FAST)
        assert reading.devices[0].utilization_ratio == 0.87
        assert reading.processes is ABSENT
        assert not source.read(FAST).devices[0].processes_known
    source.close()


def test_a_use_of_a_card_that_is_not_listed_is_left_out(machine: AmdMachine) -> None:
    add_mi300x(machine)
    machine.add_kfd_process(100, {424_242: GIB})
    machine.add_drm_client(200, 5, pdev="0000:99:00.0", client=4, render=199, drm_resident_vram="1 GiB")
    assert processes(read(machine)) == {}


def test_hostile_names_and_numbers_harm_nobody(machine: AmdMachine) -> None:
    two_mi300x(machine)
    machine.add_kfd_process(100, {gpu_id_of(0): GIB})
    folder = machine.add_kfd_process(200, {gpu_id_of(0): GIB})
    write(folder / f"vram_{gpu_id_of(0)}", "-1\n")
    machine.add_drm_client(
        300, 5, pdev="0000:c1:00.0", client=4, drm_client_name='"} 1\n\x1b[31m', drm_resident_vram="1 GiB"
    )
    found = processes(read(machine))
    assert found[100, FIRST].memory_bytes == 1.0 * GIB
    assert found[300, FIRST].memory_bytes == 1.0 * GIB
