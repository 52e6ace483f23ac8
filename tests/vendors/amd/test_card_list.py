"""Which cards there are, and which nodes of KFD belong to them."""

from __future__ import annotations

from pathlib import Path

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.amd.amdgpu.card_list import CardList, list_cards
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdTopology, nodes_by_card, to_node
from tests.vendors.amd.families import add_mi250, add_mi300x, add_old, add_rx7900, gpu_id_of, split_mi300x
from tests.vendors.amd.trees import GIB, AmdMachine, write


def listed(machine: AmdMachine) -> CardList:
    return list_cards(str(machine.sys), KfdTopology(str(machine.sys)).read())


def test_cards_are_numbered_by_their_addresses(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    machine.add_cpu_node()
    for address in ("0000:c1:00.0", "0000:05:00.0", "0001:01:00.0"):
        add_mi300x(machine, address)
    cards = listed(machine).cards
    assert [(card.index, card.address) for card in cards] == [
        (0, "0000:05:00.0"), (1, "0000:c1:00.0"), (2, "0001:01:00.0"),
    ]  # fmt: skip
    assert [card.render_minor for card in cards] == [129, 128, 130]
    assert [node.gpu_id for card in cards for node in card.nodes] == [gpu_id_of(1), gpu_id_of(0), gpu_id_of(2)]
    assert cards[0].name == "GPU 0 (0000:05:00.0)"


def test_what_a_node_says(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    machine.add_cpu_node()
    add_mi300x(machine)
    add_mi250(machine)
    add_rx7900(machine)
    nodes = KfdTopology(str(machine.sys)).read()
    assert [node.architecture for node in nodes] == ["gfx942", "gfx90a", "gfx1100"]
    assert [node.compute_units for node in nodes] == [304, 104, 96]
    assert [node.number for node in nodes] == [1, 2, 3]
    assert nodes[0].memory_bytes == 192 * GIB
    assert nodes[0].unique_id == 0x5F8C1B2A3D4E5F60
    assert nodes[0].hive == 77


def test_partitions_of_a_card_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    split_mi300x(machine)
    found = listed(machine)
    assert len(found.cards) == 1
    assert [node.gpu_id for node in found.cards[0].nodes] == [60_000 + number for number in range(8)]
    assert [node.partition for node in found.cards[0].nodes] == list(range(8))
    assert [node.compute_units for node in found.cards[0].nodes] == [38] * 8
    assert {minor: device.name for minor, device in found.partition_devices.items()} == {
        160 + number: f"amdgpu_xcp_{29 + number}" for number in range(1, 8)
    }


def test_partitions_of_a_driver_that_numbers_them_in_the_address(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    split_mi300x(machine, in_function=True)
    nodes = listed(machine).cards[0].nodes
    assert [node.gpu_id for node in nodes] == [60_000 + number for number in range(8)]


def test_a_card_without_kfd(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    add_old(machine)
    (card,) = listed(machine).cards
    assert card.nodes == ()


def test_other_drivers_other_vendors_and_broken_entries_are_no_cards(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    nvidia, radeon, no_driver, no_vendor = (
        add_rx7900(machine, f"0000:{bus:02x}:00.0") if not bus % 2 else add_old(machine, f"0000:{bus:02x}:00.0")
        for bus in (0x11, 0x13, 0x15, 0x17)
    )
    nvidia.write("vendor", "0x10de\n")
    (radeon.folder / "driver").unlink()
    (radeon.folder / "driver").symlink_to(machine.sys / "bus/pci/drivers/radeon")
    (no_driver.folder / "driver").unlink()
    no_vendor.remove("vendor")
    (machine.sys / "class/drm/card9").symlink_to("/nowhere")
    write(machine.sys / "class/drm/version", "drm 1.1.0\n")
    (machine.sys / "class/drm/card0-DP-1").mkdir()
    assert listed(machine).cards == ()


def test_a_machine_without_drm(tmp_path: Path) -> None:
    assert list_cards(str(tmp_path), ()) == CardList((), {})
    assert KfdTopology(str(tmp_path)).read() == ()


def test_nodes_are_read_again_only_when_they_have_changed(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    add_mi300x(machine)
    topology = KfdTopology(str(machine.sys))
    before = topology.read()
    assert topology.read() is before
    add_mi300x(machine, "0000:c2:00.0")
    assert len(topology.read()) == 2


def test_a_node_without_an_address_is_none() -> None:
    assert to_node(1, 7, {"simd_count": 4}) is None
    node = to_node(1, 7, {"location_id": 0xC100})
    assert node is not None
    assert (node.address, node.compute_units, node.architecture) == ("0000:c1:00.0", 0, ABSENT)


def test_a_node_of_no_card_belongs_to_none() -> None:
    node = to_node(1, 7, {"location_id": 0xC101})
    assert node is not None
    assert nodes_by_card([node], ["0000:c1:00.1"]) == {"0000:c1:00.1": (node,)}
    assert nodes_by_card([node], ["0000:c1:00.0"]) == {"0000:c1:00.0": (node,)}
    assert nodes_by_card([node], ["0000:c2:00.0"]) == {}
