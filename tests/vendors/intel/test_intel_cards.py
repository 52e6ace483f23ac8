"""Which Intel cards there are, what they are called, and where Intel's drivers are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.collect.expected import expected_gpus
from gpuscope.agent.owners.allocation_matching import DeviceIndex
from gpuscope.agent.owners.pod_resources import is_gpu
from gpuscope.base.errors import SourceMissing
from gpuscope.base.source_plan import source_plans
from gpuscope.model.readings import ABSENT
from gpuscope.model.vendor import throttle_reasons, vendors
from gpuscope.vendors.intel.intel_gpu.graphics_parts import REASONS
from gpuscope.vendors.intel.intel_gpu.intel_cards import find_model, list_intel_cards
from tests.vendors.amd.rig import ALL, devices
from tests.vendors.amd.trees import write
from tests.vendors.intel.rig import intel_source, read_intel
from tests.vendors.intel.trees import IntelMachine, add_a770, add_b580, add_flex170, add_integrated, add_max1550


@pytest.fixture
def machine(tmp_path: Path) -> IntelMachine:
    return IntelMachine(tmp_path)


def test_cards_of_both_drivers_by_their_addresses(machine: IntelMachine) -> None:
    add_a770(machine)
    add_b580(machine)
    cards = list_intel_cards(str(machine.sys))
    assert [(card.index, card.address, card.driver, card.number, card.render_minor) for card in cards] == [
        (0, "0000:03:00.0", "xe", 1, 129), (1, "0000:0b:00.0", "i915", 0, 128),
    ]  # fmt: skip
    assert cards[0].device_files == {"card1", "renderD129"}


def test_what_is_no_card(machine: IntelMachine) -> None:
    vfio, no_driver, no_vendor, nvidia = (add_b580(machine, f"0000:{bus}:00.0") for bus in (11, 12, 13, 14))
    (vfio.folder / "driver").unlink()
    (vfio.folder / "driver").symlink_to(machine.sys / "bus/pci/drivers/vfio-pci")
    (no_driver.folder / "driver").unlink()
    no_vendor.remove("vendor")
    nvidia.write("vendor", "0x10de\n")
    (machine.sys / "class/drm/card9").symlink_to("/nowhere")
    write(machine.sys / "class/drm/version", "drm 1.1.0\n")
    (machine.sys / "class/drm/card0-DP-1").mkdir()
    assert list_intel_cards(str(machine.sys)) == ()
    with pytest.raises(SourceMissing, match="no card of the driver xe or i915"):
        intel_source(machine)


def test_a_machine_without_drm(tmp_path: Path) -> None:
    assert list_intel_cards(str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("device", "name", "architecture"),
    [
        (0x56A0, "Intel Arc A770", "Xe-HPG"),
        (0xE20B, "Intel Arc B580", "Xe2-HPG"),
        (0x0BD5, "Intel Data Center GPU Max 1550", "Xe-HPC"),
        (0x4680, "Intel 8086:4680", ABSENT),
        (ABSENT, ABSENT, ABSENT),
    ],
)
def test_names_of_models(device: int, name: str, architecture: str) -> None:
    assert find_model(device) == (name, architecture)


def test_a_processors_gpu_is_at_its_address_and_has_no_sensors(machine: IntelMachine) -> None:
    add_integrated(machine)
    (card,) = list_intel_cards(str(machine.sys))
    assert card.is_integrated
    (machine.intel[0].folder / "hwmon").mkdir()  # a card that was passed to a virtual machine
    assert not card.is_integrated


def test_a_processors_gpu_counts_where_there_is_no_other(machine: IntelMachine) -> None:
    add_integrated(machine)
    assert list(devices(read_intel(machine))) == ["0000:00:02.0"]
    add_b580(machine)
    assert list(devices(read_intel(machine))) == ["0000:03:00.0"]
    always = intel_source(machine, integrated="always").read(ALL)
    assert list(devices(always)) == ["0000:00:02.0", "0000:03:00.0"]


def test_auto_reads_intels_drivers_only_for_a_gpu_that_counts(machine: IntelMachine) -> None:
    in_auto = source_plans()["intel-gpu"].in_auto
    assert not in_auto(machine.settings())
    add_integrated(machine)
    assert in_auto(machine.settings())
    assert not in_auto(machine.settings(integrated_gpus="never"))
    write(machine.sys / "bus/pci/devices/0000:c1:00.0/vendor", "0x10de\n")
    write(machine.sys / "bus/pci/devices/0000:c1:00.0/class", "0x030200\n")
    assert not in_auto(machine.settings())
    assert in_auto(machine.settings(integrated_gpus="always"))
    add_a770(machine)
    assert in_auto(machine.settings())


def test_cards_without_a_display_are_expected(machine: IntelMachine) -> None:
    """A processor's GPU is a VGA controller: where it is not read, it must not seem to be missing."""
    add_integrated(machine)
    add_b580(machine)
    assert expected_gpus(machine.settings()) == 0
    add_max1550(machine)
    add_flex170(machine)
    assert expected_gpus(machine.settings()) == 2


@pytest.mark.parametrize("device_id", ["card0-0", "card0-3", "0000-0b-00-0-0x56a0", "0000:0b:00.0"])
def test_ids_of_schedulers(machine: IntelMachine, device_id: str) -> None:
    add_a770(machine)
    add_b580(machine)
    matched = DeviceIndex(read_intel(machine).devices).find(device_id)
    assert matched is not None
    assert matched.gpu.pci_bus_id == "0000:0b:00.0"


def test_resources_of_kubernetes() -> None:
    assert is_gpu("gpu.intel.com/xe")
    assert is_gpu("gpu.intel.com/i915")
    assert not is_gpu("gpu.intel.com/millicores")


def test_every_reason_of_the_kernel_is_explained() -> None:
    assert {row.reason for row in vendors()["intel"].throttles} == set(REASONS.values())
    assert throttle_reasons()["prochot"].hinders
    assert not throttle_reasons()["pl1"].hinders
