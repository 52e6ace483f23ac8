"""Lost GPUs keep their identity; one whose slot has another card is forgotten at once."""

from __future__ import annotations

from gpuscope.agent.collect.composer import Identities
from gpuscope.model.readings import ABSENT, Device, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device, own


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


def test_a_lost_gpu_keeps_what_is_known_of_it_and_only_that() -> None:
    known = make_device(
        uuid=Uuid("a"), index=0, model="NVIDIA H100", serial="7", pci_ids={"device": 1.0, "subsystem": 2.0},
        inforom_versions={"image": "G520"}, power_watts=300.0,
    )  # fmt: skip
    identities = Identities()
    identities.complete([known, gpu("b", 1)])
    gone = make_device(uuid=Uuid("a"), index=0, serial="8", pci_ids={"device": 3.0}, lost=True)
    lost, other = identities.complete([gone, gpu("b", 1)])
    assert (lost.model, lost.serial, lost.pci_ids) == ("NVIDIA H100", "8", {"device": 3.0, "subsystem": 2.0})
    assert own(lost).inforom_versions == {"image": "G520"}
    assert (lost.lost, lost.power_watts, lost.brand) == (True, ABSENT, ABSENT)
    assert other == gpu("b", 1)
    bare = Device(uuid=Uuid("a"), index=0, lost=True)  # of a source that does not know whose it is
    assert own(identities.complete([bare])[0]).inforom_versions == {"image": "G520"}


def test_a_gpu_that_answers_is_what_it_says() -> None:
    identities = Identities()
    identities.complete([make_device(uuid=Uuid("a"), index=0, model="NVIDIA H100")])
    answers, _ = identities.complete([gpu("a"), gpu("b", 1, lost=True)])
    assert answers.model is ABSENT


def test_what_is_known_of_a_lost_gpu_is_bounded() -> None:
    identities = Identities()
    for number in range(257):
        identities.complete([make_device(uuid=Uuid(f"g{number}"), index=number, model="NVIDIA H100")])
    for number, model in ((0, "NVIDIA H100"), (255, "NVIDIA H100"), (256, ABSENT)):
        (lost,) = identities.complete([gpu(f"g{number}", number, lost=True)])
        assert lost.model == model
    identities.complete([make_device(uuid=Uuid("g0"), index=0, model="NVIDIA H200")])
    assert identities.complete([gpu("g0", lost=True)])[0].model == "NVIDIA H200", (
        "a known one is kept up to date"
    )


def test_a_replaced_card_that_returns_lost_has_no_identity() -> None:
    identities = Identities()
    identities.complete(
        [make_device(uuid=Uuid("old"), index=0, model="NVIDIA H100", pci_bus_id="00000000:8D:00.0")]
    )
    new = gpu("new", 0, "00000000:8D:00.0")
    assert uuids(identities.complete([gpu("old", lost=True), new])) == ["new"]
    identities.complete([new])  # no source lists the old one any more
    (_, lost) = identities.complete([new, gpu("old", 1, lost=True)])
    assert (lost.model, lost.pci_bus_id) == (ABSENT, ABSENT)
