"""What the doctor says about AMD's and Intel's GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuscope.base.settings import Settings
from gpuscope.model.doctor_check import CheckResult, DoctorContext
from gpuscope.model.readings import Device, Snapshot, Uuid
from gpuscope.vendors.drm import doctor
from tests.vendors.amd.families import add_mi300x
from tests.vendors.amd.trees import AmdMachine, write
from tests.vendors.intel.trees import IntelMachine, add_b580


def context(root: Path, *devices: Device, **environment: str) -> DoctorContext:
    return DoctorContext(Settings(), Snapshot(node="n", taken_at=1.0, devices=devices), root, environment)


def words(results: Iterable[CheckResult]) -> list[str]:
    return [f"{each.verdict.value}: {each.what} -> {each.fix}" for each in results]


def test_a_machine_without_such_gpus_says_nothing(tmp_path: Path) -> None:
    for check in doctor.CHECKS:
        assert words(check(context(tmp_path))) == []


def test_gpus_with_a_driver(tmp_path: Path) -> None:
    add_b580(IntelMachine(tmp_path))
    assert words(doctor.bound_driver(context(tmp_path))) == ["ok: Intel: GPUs with a driver: 1 -> "]


def test_gpus_without_one_with_another_and_in_a_virtual_machine(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    for address, driver in (("0000:c1:00.0", ""), ("0000:c2:00.0", "radeon"), ("0000:c3:00.0", "vfio-pci")):
        card = add_mi300x(machine, address)
        (card.folder / "driver").unlink()
        if driver:
            (card.folder / "driver").symlink_to(machine.sys / "bus/pci/drivers" / driver)
    none, other, passed = words(doctor.bound_driver(context(tmp_path)))
    assert none.startswith("problem: the AMD GPU 0000:c1:00.0 has no driver -> sudo modprobe amdgpu")
    assert other.startswith("note: the AMD GPU 0000:c2:00.0 has the driver radeon, which is not read")
    assert passed == "note: the AMD GPU 0000:c3:00.0 is given to a virtual machine -> "


def test_a_container_without_the_devices(tmp_path: Path) -> None:
    add_mi300x(AmdMachine(tmp_path))
    assert [line.rpartition(" -> ")[2] for line in words(doctor.program_access(context(tmp_path)))] == [
        "dmesg says whether the driver started"
    ] * 2
    write(tmp_path / ".dockerenv", "")
    assert [line.rpartition(" -> ")[2] for line in words(doctor.program_access(context(tmp_path)))] == [
        "docker run --device /dev/kfd", "docker run --device /dev/dri",
    ]  # fmt: skip
    in_a_pod = context(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert "amd.com/gpu" in words(doctor.program_access(in_a_pod))[0]


def test_a_user_without_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_b580(IntelMachine(tmp_path))
    write(tmp_path / "dev/dri/renderD128", "")
    assert words(doctor.program_access(context(tmp_path))) == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(doctor, "group_of", lambda path: "render")
    assert words(doctor.program_access(context(tmp_path))) == [
        "note: programs of this user may not open /dev/dri/renderD128; the agent needs none of them -> "
        "sudo usermod -aG render $USER, then log in again"
    ]


def test_processes_that_cannot_be_looked_at(tmp_path: Path) -> None:
    devices = [
        Device(uuid=Uuid(f"GPU-{index}"), index=index, vendor=vendor, processes_known=known)
        for index, (vendor, known) in enumerate((("intel", False), ("intel", True), ("nvidia", False)))
    ]
    (line,) = words(doctor.hidden_clients(context(tmp_path, *devices)))
    assert line.startswith("problem: GPU 0: processes of other users cannot be looked at")
    assert "CAP_SYS_PTRACE" in line


def test_a_kernel_without_sensors_and_a_sleeping_card(tmp_path: Path) -> None:
    card = add_b580(IntelMachine(tmp_path))
    bare = Device(uuid=Uuid("GPU-0"), index=0, vendor="intel", pci_bus_id=card.address)
    (line,) = words(doctor.missing_sensors(context(tmp_path, bare)))
    assert line.startswith("note: GPU 0: 6.8.0-45-generic shows no power of this card -> a newer kernel")
    card.write("power/runtime_status", "suspended\n")
    (line,) = words(doctor.missing_sensors(context(tmp_path, bare)))
    assert line.startswith("note: GPU 0 sleeps")
    measured = Device(uuid=Uuid("GPU-0"), index=0, vendor="intel", pci_bus_id=card.address, energy_joules=0.0)
    assert words(doctor.missing_sensors(context(tmp_path, measured))) == []
    card.remove("hwmon")
    assert words(doctor.missing_sensors(context(tmp_path, bare))) == []


def test_a_processors_gpu_without_a_driver_is_no_problem_beside_other_gpus(tmp_path: Path) -> None:
    card = add_b580(IntelMachine(tmp_path))
    (card.folder / "driver").unlink()
    (alone,) = words(doctor.bound_driver(context(tmp_path)))
    assert alone.startswith("problem: the Intel GPU 0000:03:00.0 has no driver -> sudo modprobe xe")
    other = Device(uuid=Uuid("GPU-0"), index=0, vendor="nvidia")
    (beside,) = words(doctor.bound_driver(context(tmp_path, other)))
    assert beside.startswith("note: ")
