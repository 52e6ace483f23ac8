"""Processes of ROCm, from trees of KFD."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.kfd_processes import KfdProcesses, KfdUse
from tests.vendors.amd.trees import GIB, AmdMachine, write

ALL = frozenset(Tier)
FAST = frozenset({Tier.FAST})


@pytest.fixture
def machine(tmp_path: Path) -> AmdMachine:
    return AmdMachine(tmp_path)


def uses(processes: KfdProcesses, due: frozenset[Tier] = ALL) -> dict[tuple[int, int], KfdUse]:
    found = processes.read(due)
    assert found is not ABSENT
    return {(use.pid, use.gpu_id): use for use in found}


def test_memory_of_each_process_on_each_gpu(machine: AmdMachine) -> None:
    machine.add_kfd_process(100, {7: 80 * GIB, 8: 0, 9: 2 * GIB})
    machine.add_kfd_process(200, {7: GIB, 8: 0, 9: 0})
    found = uses(KfdProcesses(str(machine.sys)))
    assert {key: use.vram_bytes for key, use in found.items()} == {
        (100, 7): 80.0 * GIB, (100, 9): 2.0 * GIB, (200, 7): 1.0 * GIB,
    }  # fmt: skip


def test_a_process_that_has_only_opened_kfd_uses_nothing(machine: AmdMachine) -> None:
    machine.add_kfd_process(100, {7: 0, 8: 0})
    assert uses(KfdProcesses(str(machine.sys))) == {}


def test_a_queue_makes_a_user_without_memory(machine: AmdMachine) -> None:
    machine.add_kfd_process(100, {7: 0, 8: 0}, queues=[8, 8])
    found = uses(KfdProcesses(str(machine.sys)))
    assert {key: use.vram_bytes for key, use in found.items()} == {(100, 8): 0.0}


def test_occupied_compute_units_and_copies(machine: AmdMachine) -> None:
    folder = machine.add_kfd_process(100, {7: GIB})
    write(folder / "stats_7/cu_occupancy", 30)
    write(folder / "sdma_7", 2_500_000)
    processes = KfdProcesses(str(machine.sys))
    (use,) = uses(processes).values()
    assert (use.compute_units, use.copy_seconds) == (30, 2.5)
    write(folder / "stats_7/cu_occupancy", 0)
    write(folder / "sdma_7", 9_000_000)
    (use,) = uses(processes, FAST).values()
    assert (use.compute_units, use.copy_seconds) == (0, 2.5), "copies are read in the medium tier"


def test_a_card_that_does_not_count_compute_units(machine: AmdMachine) -> None:
    shutil.rmtree(machine.add_kfd_process(100, {7: GIB}) / "stats_7")
    (use,) = uses(KfdProcesses(str(machine.sys))).values()
    assert use.compute_units is ABSENT


def test_contexts_of_a_process_are_added(machine: AmdMachine) -> None:
    machine.add_kfd_process(100, {7: GIB, 8: 0})
    machine.add_kfd_process(100, {7: 2 * GIB, 8: GIB}, context=1)
    found = uses(KfdProcesses(str(machine.sys)))
    assert {key: use.vram_bytes for key, use in found.items()} == {(100, 7): 3.0 * GIB, (100, 8): 1.0 * GIB}


def test_between_medium_tiers_users_and_new_processes_are_read(machine: AmdMachine) -> None:
    folder = machine.add_kfd_process(100, {7: GIB, 8: 0})
    processes = KfdProcesses(str(machine.sys))
    uses(processes)
    write(folder / "vram_7", 3 * GIB)
    write(folder / "vram_8", GIB)
    machine.add_kfd_process(200, {7: GIB, 8: 0})
    assert {key: use.vram_bytes for key, use in uses(processes, FAST).items()} == {
        (100, 7): 3.0 * GIB, (200, 7): 1.0 * GIB,
    }  # fmt: skip
    assert (100, 8) in uses(processes)


def test_a_process_that_ends_is_gone_and_one_that_is_ending_has_no_number(machine: AmdMachine) -> None:
    first = machine.add_kfd_process(100, {7: GIB})
    second = machine.add_kfd_process(200, {7: GIB})
    processes = KfdProcesses(str(machine.sys))
    uses(processes)
    shutil.rmtree(first)
    (second / "vram_7").unlink()
    assert uses(processes, FAST) == {(200, 7): KfdUse(pid=200, gpu_id=7, copy_seconds=0.0)}  # type: ignore[arg-type]


def test_broken_files_cost_their_numbers(machine: AmdMachine) -> None:
    folder = machine.add_kfd_process(100, {7: GIB}, queues=[7])
    write(folder / "vram_7", "many\n")
    write(folder / "vram_x", "1\n")
    write(folder / "queues/0/gpuid", "7")
    write(machine.sys / "class/kfd/kfd/proc/strange/vram_7", "1\n")
    (use,) = uses(KfdProcesses(str(machine.sys))).values()
    assert (use.pid, use.gpu_id, use.vram_bytes) == (100, 7, ABSENT)


def test_a_kernel_without_kfd(tmp_path: Path) -> None:
    assert KfdProcesses(str(tmp_path)).read(ALL) is ABSENT
