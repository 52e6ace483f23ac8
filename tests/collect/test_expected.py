from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.collect.expected import expected_gpus
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT


def add_function(sysfs: Path, address: str, vendor: str, class_code: str) -> Path:
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(class_code + "\n")
    return folder


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    add_function(tmp_path, "0000:00:02.0", "0x8086", "0x030000")  # the mainboard's own display
    add_function(tmp_path, "0000:8d:00.0", "0x10de", "0x030200")
    add_function(tmp_path, "0000:8e:00.0", "0x10de", "0x030000")
    add_function(tmp_path, "0000:8e:00.1", "0x10de", "0x040300")  # its audio
    add_function(tmp_path, "0000:90:00.0", "0x10de", "0x068000")  # an NVSwitch
    return tmp_path


def seen(sysfs: Path) -> object:
    return expected_gpus(Settings(path_sysfs=str(sysfs)))


def test_counts_nvidia_display_and_3d_functions(sysfs: Path) -> None:
    assert seen(sysfs) == 2


def test_no_gpu_is_zero_and_unreadable_is_absent(tmp_path: Path) -> None:
    assert seen(tmp_path) is ABSENT
    add_function(tmp_path, "0000:00:02.0", "0x8086", "0x030000")
    assert seen(tmp_path) == 0


def test_the_setting_wins(sysfs: Path) -> None:
    assert expected_gpus(Settings(path_sysfs=str(sysfs), expected_gpus=8)) == 8
    assert expected_gpus(Settings(path_sysfs=str(sysfs), expected_gpus=0)) == 0


def test_virtual_functions_and_passed_through_gpus_are_not_ours(sysfs: Path) -> None:
    virtual = add_function(sysfs, "0000:8d:00.4", "0x10de", "0x030200")
    (virtual / "physfn").symlink_to("../0000:8d:00.0")
    given_away = add_function(sysfs, "0000:a0:00.0", "0x10de", "0x030200")
    driver = sysfs / "bus/pci/drivers/vfio-pci"
    driver.mkdir(parents=True)
    (given_away / "driver").symlink_to(driver)
    assert seen(sysfs) == 2


def test_a_broken_function_is_skipped(sysfs: Path) -> None:
    (sysfs / "bus/pci/devices/0000:ff:00.0").mkdir()
    garbled = add_function(sysfs, "0000:fe:00.0", "0x10de", "0x030200")
    (garbled / "class").write_bytes(b"\xff\xfe\x00")
    assert seen(sysfs) == 2
