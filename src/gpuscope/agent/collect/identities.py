"""The identity of a lost GPU (model, serial number, PCI address, …), kept from when it answered.

Some sources give no identity of a lost GPU (a row without values, or no row at all). Its info
series must stay the same series, so missing fields are filled in here for every source. A lost GPU whose slot
has another card was replaced: it is forgotten, though a source may remember it for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from gpuscope.agent.collect.error_ledger import normal_pci_bus_id
from gpuscope.model.readings import ABSENT, Device, Uuid, VendorValues
from gpuscope.model.readings.device import identity_names

MAX_GPUS: Final = 256
R = TypeVar("R", Device, VendorValues)


class Identities:
    def __init__(self) -> None:
        self._known: dict[Uuid, Device] = {}  # each GPU as it was when it last answered
        self._replaced: set[Uuid] = set()  # until they answer again, or no source lists them

    def complete(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        self._replaced &= {device.uuid for device in devices if device.lost}
        if any(device.lost for device in devices):
            devices = [self._complete(device) if device.lost else device for device in devices]
            devices = self._without_replaced(devices)
        for device in devices:
            if device.uuid in self._known or len(self._known) < MAX_GPUS:
                self._known[device.uuid] = device
        return tuple(devices)

    def _without_replaced(self, devices: Sequence[Device]) -> list[Device]:
        present = [device for device in devices if not device.lost]
        addresses = {
            normal_pci_bus_id(device.pci_bus_id) for device in present if device.pci_bus_id is not ABSENT
        }
        # An index moves to the next GPU when one is lost: only a card that was never seen has taken the slot.
        indices = (
            {device.index for device in present if device.uuid not in self._known} if self._known else set()
        )
        kept = []
        for device in devices:
            address = device.pci_bus_id
            is_taken = device.index in indices if address is ABSENT else normal_pci_bus_id(address) in addresses
            if device.lost and is_taken:
                self._replaced.add(device.uuid)
            if device.uuid in self._replaced:
                self._known.pop(device.uuid, None)
            else:
                kept.append(device)
        return kept

    def _complete(self, device: Device) -> Device:
        known = self._known.get(device.uuid)
        return device if known is None else _completed(device, known)


def _completed(lost: R, known: R) -> R:
    """With the fields of its identity that it does not have any more."""
    missing: dict[str, Any] = {}
    for name in identity_names(type(known)):
        now, before = getattr(lost, name, ABSENT), getattr(known, name)
        if isinstance(before, Mapping):
            if isinstance(now, Mapping) and before.keys() - now.keys():
                missing[name] = {**before, **now}
        elif now is ABSENT and before is not ABSENT:
            missing[name] = before
    if isinstance(lost, Device) and isinstance(known, Device):
        mine, before = lost.vendor_values, known.vendor_values
        missing["vendor_values"] = _completed(mine if type(mine) is type(before) else type(before)(), before)
    return replace(lost, **missing) if missing else lost
