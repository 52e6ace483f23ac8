"""The identity of a lost GPU (model, serial number, PCI address, …), kept from when it answered.

Some sources give no identity of a lost GPU (DCGM's row is empty, nvidia-smi has no line for it). Its info
series must stay the same series, so missing fields are filled in here for every source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpuscope.readings import ABSENT, Device, Uuid

MAX_GPUS: Final = 256
IDENTITY: Final = (
    "model",
    "brand",
    "serial",
    "architecture",
    "compute_capability",
    "pci_bus_id",
    "pci_ids",
    "minor_number",
    "vbios_version",
    "inforom_versions",
    "board_part_number",
    "platform",
)


class Identities:
    def __init__(self) -> None:
        self._known: dict[Uuid, Device] = {}  # each GPU as it was when it last answered

    def complete(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        if any(device.lost for device in devices):
            devices = [self._complete(device) if device.lost else device for device in devices]
        for device in devices:
            if device.uuid in self._known or len(self._known) < MAX_GPUS:
                self._known[device.uuid] = device
        return tuple(devices)

    def _complete(self, device: Device) -> Device:
        known = self._known.get(device.uuid)
        if known is None:
            return device
        missing: dict[str, Any] = {}
        for name in IDENTITY:
            now, before = getattr(device, name), getattr(known, name)
            if isinstance(now, Mapping):
                if before.keys() - now.keys():
                    missing[name] = {**before, **now}
            elif now is ABSENT and before is not ABSENT:
                missing[name] = before
        return replace(device, **missing) if missing else device
