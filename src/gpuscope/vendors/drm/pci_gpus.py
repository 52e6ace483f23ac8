"""GPUs on the PCI bus, by vendor: whether to read a vendor's driver, and whether a processor's GPU is alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Final

from gpuscope.vendors.drm.card_files import read_whole

DEVICES: Final = "bus/pci/devices"
AMD: Final = "0x1002"
INTEL: Final = "0x8086"
GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D and other display controllers; processing accelerators, as Instinct cards are."""
MAKERS: Final = (AMD, "0x10de", INTEL)
"""AMD, NVIDIA, Intel: other display controllers are those of servers' management."""


def gpu_addresses(sysfs: str, maker: str) -> list[str]:
    return [address for vendor, address in _gpus(sysfs) if vendor == maker]


def other_gpus(sysfs: str, integrated: Collection[str]) -> bool:
    """Whether there is a GPU at another address than these."""
    return any(address not in integrated for _, address in _gpus(sysfs))


def _gpus(sysfs: str) -> Iterator[tuple[str, str]]:
    folder = f"{sysfs}/{DEVICES}"
    try:
        addresses = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return
    for address in addresses:
        vendor = _text(f"{folder}/{address}/vendor")
        if vendor in MAKERS and _text(f"{folder}/{address}/class").startswith(GPU_CLASSES):
            yield vendor, address


def _text(path: str) -> str:
    try:
        return read_whole(path, 64).decode("ascii", "replace").strip().lower()
    except OSError:
        return ""
