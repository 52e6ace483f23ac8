"""Which adapters feed which GPU: those behind the same PCIe switch, or else on the same NUMA node.

Input: an `InfinibandReading` and the GPUs of a snapshot; output: names of adapters by GPU. A GPU whose slot is
not known, or that has neither a bridge nor a NUMA node in common with an adapter (most virtual machines), has
none: it is not known then. The root complex is no bridge: half of a machine hangs on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.model.readings import ABSENT, Device, Uuid
from gpuscope.model.readings.infiniband import InfinibandReading, PciFunction


def gpu_slots(reading: InfinibandReading, gpus: Sequence[Device]) -> dict[Uuid, PciFunction]:
    """The PCI function of each GPU that the bus shows."""
    by_slot = {slot_of(function.address): function for function in reading.gpu_slots}
    slots = {gpu.uuid: by_slot.get(slot_of(gpu.pci_bus_id)) for gpu in gpus if gpu.pci_bus_id is not ABSENT}
    return {uuid: function for uuid, function in slots.items() if function is not None}


def rails_of_gpus(reading: InfinibandReading, slots: dict[Uuid, PciFunction]) -> dict[Uuid, tuple[str, ...]]:
    adapters = {device.name: device.pci for device in reading.devices}
    rails = {}
    for uuid, slot in slots.items():
        near = {name: _nearness(slot, pci) for name, pci in adapters.items() if pci is not ABSENT}
        nearest = max(near.values(), default=0)
        if nearest:
            rails[uuid] = tuple(name for name, distance in near.items() if distance == nearest)
    return rails


def _nearness(gpu: PciFunction, adapter: PciFunction) -> int:
    """0: nothing in common; 1: the NUMA node; more: how many bridges, from the root, both are behind."""
    common = 0
    for first, second in zip(gpu.bridges, adapter.bridges, strict=False):
        if first != second:
            break
        common += 1
    if common:
        return 1 + common
    return int(gpu.numa_node is not ABSENT and gpu.numa_node == adapter.numa_node)


def slot_of(address: str) -> str:
    """Domain, bus and device, without the function: `0000:8d:00.0` and `00000000:8D:00.0` are one slot."""
    domain, _, rest = address.partition(":")
    try:
        return f"{int(domain, 16):x}:{rest.lower().partition('.')[0]}"
    except ValueError:
        return address
