"""UUID, serial number and PCI address of a simulated GPU, derived from the seed, in the real formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuscope.demo.jobs import as_uuid, digest
from gpuscope.demo.models import Model
from gpuscope.model.readings import Uuid

DRIVER_VERSION: Final = "580.95.05"
NVML_VERSION: Final = "13.580.95.05"
CUDA_VERSION: Final = "13.0"

# PCI bus numbers of eight-GPU boards by generation; further GPUs get the following numbers.
_HGX_H100: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_HGX_A100: Final = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
_PLAIN: Final = (0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)


@dataclass(frozen=True, slots=True)
class Identity:
    uuid: Uuid
    serial: str
    pci_bus_id: str
    quality: float  # power that this chip needs, as a share of the model's worst chip
    warmth: float  # degrees Celsius that its place in the airflow adds


def identify(seed: int, node: int, gpu: int, model: Model) -> Identity:
    salt = digest("gpu", seed, node, gpu)
    return Identity(
        uuid=Uuid("GPU-" + as_uuid(salt)),
        serial=f"165{int(salt[32:44], 16) % 10**10:010d}",
        pci_bus_id=_pci_bus_id(model, gpu),
        quality=0.95 + 0.05 * int(salt[44:48], 16) / 0xFFFF,
        warmth=6.0 * int(salt[48:52], 16) / 0xFFFF,
    )


def instance_uuid(seed: int, node: int, gpu: int, gpu_instance: int) -> Uuid:
    return Uuid("MIG-" + as_uuid(digest("mig", seed, node, gpu, gpu_instance)))


def _pci_bus_id(model: Model, gpu: int) -> str:
    if model.key == "gb200":  # two GPUs per Grace CPU, each in its own PCI domain
        domain = (0x08, 0x09, 0x18, 0x19)[gpu % 4] + 0x20 * (gpu // 4)
        return f"{domain:08X}:01:00.0"
    buses = _HGX_A100 if model.key.startswith("a100") else _HGX_H100 if model.nvlinks else _PLAIN
    return f"{gpu // len(buses):08X}:{buses[gpu % len(buses)]:02X}:00.0"
