"""Lost GPUs keep their identity; one whose slot has another card is forgotten at once."""

from __future__ import annotations

from gpuscope.agent.collect.composer import Identities
from gpuscope.model.readings import ABSENT, Device, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device


def gpu(uuid: str, index: int = 0, address: Maybe[str] = ABSENT, *, lost: bool = False) -> Device:
    return make_device(uuid=Uuid(uuid), index=index, pci_bus_id=address, lost=lost)


def uuids(devices: tuple[Device, ...]) -> list[str]:
    return [device.uuid for device in devices]


def test_a_replaced_card_is_forgotten() -> None:
    identities = Identities()
    identities.complete([gpu("old", 0, "00000000:8D:00.0"), gpu("other", 1, "00000000:9D:00.0")])
    lost = identities.complete([gpu("old", lost=True), gpu("other", 1, "00000000:9D:00.0")])
    assert uuids(lost) == ["old", "other"], "the slot is empty"
    for _ in range(3):  # a source without addresses still remembers it
        found = identities.complete([gpu("old", lost=True), gpu("new", 0, "0000:8d:00.0")])
        assert uuids(found) == ["new"]


def test_a_card_that_answers_in_another_slot_is_itself_again() -> None:
    identities = Identities()
    identities.complete([gpu("old", 0, "00000000:8D:00.0")])
    identities.complete([gpu("old", lost=True), gpu("new", 0, "00000000:8D:00.0")])
    identities.complete([gpu("old", 1, "00000000:9D:00.0"), gpu("new", 0, "00000000:8D:00.0")])
    again = identities.complete([gpu("old", 1, lost=True), gpu("new", 0, "00000000:8D:00.0")])
    assert uuids(again) == ["old", "new"]


def test_without_addresses_only_a_new_card_takes_an_index() -> None:
    identities = Identities()
    identities.complete([gpu("a", 0), gpu("b", 1)])
    moved = identities.complete([gpu("a", 0, lost=True), gpu("b", 0)])
    assert uuids(moved) == ["a", "b"], "the driver counts on without the lost one"
    assert uuids(identities.complete([gpu("a", 0, lost=True), gpu("b", 1), gpu("c", 0)])) == ["b", "c"]
