"""Which Intel cards this machine has, from `/sys/class/drm`, and what they are called.

A card is a PCI function of Intel that the driver xe or i915 has. The GPU of a processor is always at the
address 0000:00:02.0; every other one has a memory of its own. Cards have no name: it is known by the PCI id.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import read_whole
from gpuscope.vendors.drm.pci_gpus import INTEL

DRM: Final = "class/drm"
XE: Final = "xe"
I915: Final = "i915"
DRIVERS: Final = (XE, I915)
INTEGRATED: Final = "0000:00:02.0"
MAX_CARDS: Final = 256

_CARD: Final = re.compile(r"card(\d+)", re.ASCII)
_RENDER: Final = re.compile(r"renderD(\d+)", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Model(NamedTuple):
    name: str
    architecture: str


_HPG: Final = "Xe-HPG"
_XE2: Final = "Xe2-HPG"
_HPC: Final = "Xe-HPC"
MODELS: Final = {
    0x4905: Model("Intel Iris Xe MAX", "Xe-LP"),
    0x5690: Model("Intel Arc A770M", _HPG),
    0x5691: Model("Intel Arc A730M", _HPG),
    0x5692: Model("Intel Arc A550M", _HPG),
    0x5693: Model("Intel Arc A370M", _HPG),
    0x5694: Model("Intel Arc A350M", _HPG),
    0x5696: Model("Intel Arc A570M", _HPG),
    0x5697: Model("Intel Arc A530M", _HPG),
    0x56A0: Model("Intel Arc A770", _HPG),
    0x56A1: Model("Intel Arc A750", _HPG),
    0x56A2: Model("Intel Arc A580", _HPG),
    0x56A5: Model("Intel Arc A380", _HPG),
    0x56A6: Model("Intel Arc A310", _HPG),
    0x56B0: Model("Intel Arc Pro A30M", _HPG),
    0x56B1: Model("Intel Arc Pro A40 / A50", _HPG),
    0x56B2: Model("Intel Arc Pro A60M", _HPG),
    0x56B3: Model("Intel Arc Pro A60", _HPG),
    0x56C0: Model("Intel Data Center GPU Flex 170", _HPG),
    0x56C1: Model("Intel Data Center GPU Flex 140", _HPG),
    0x0BD5: Model("Intel Data Center GPU Max 1550", _HPC),
    0x0BDA: Model("Intel Data Center GPU Max 1100", _HPC),
    0xE20B: Model("Intel Arc B580", _XE2),
    0xE20C: Model("Intel Arc B570", _XE2),
    0xE211: Model("Intel Arc Pro B60", _XE2),
    0xE212: Model("Intel Arc Pro B50", _XE2),
}
"""By device id; a card that is not listed is called by its PCI ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelCard:
    index: int
    address: str
    """On the PCI bus: `0000:03:00.0`."""
    folder: str
    """Of its files."""
    driver: str
    """xe or i915."""
    number: Maybe[int] = ABSENT
    """N of cardN."""
    render_minor: Maybe[int] = ABSENT

    @property
    def name(self) -> str:
        """In log lines."""
        return f"GPU {self.index} ({self.address})"

    @property
    def is_integrated(self) -> bool:
        """Whether it is part of a processor and uses the machine's memory. A card that is passed to a virtual
        machine may have a processor's address; only cards have sensors."""
        return self.address == INTEGRATED and not Path(self.folder, "hwmon").exists()

    @property
    def device_files(self) -> frozenset[str]:
        """Names below `/dev/dri`."""
        names = (("card", self.number), ("renderD", self.render_minor))
        return frozenset(f"{start}{number}" for start, number in names if number is not ABSENT)


def list_intel_cards(sysfs: str) -> tuple[IntelCard, ...]:
    """In the order of their addresses."""
    found: dict[str, tuple[str, str]] = {}
    for name in _names(f"{sysfs}/{DRM}"):
        if not _CARD.fullmatch(name):
            continue  # connectors and render nodes
        folder = os.path.realpath(f"{sysfs}/{DRM}/{name}/device")
        address, driver = os.path.basename(folder), _driver(folder)  # noqa: PTH119
        if _ADDRESS.fullmatch(address) and driver in DRIVERS:
            found[address] = folder, driver
    return tuple(
        IntelCard(
            index=index,
            address=address,
            folder=folder,
            driver=driver,
            number=_number(folder, _CARD),
            render_minor=_number(folder, _RENDER),
        )
        for index, (address, (folder, driver)) in enumerate(sorted(found.items())[:MAX_CARDS])
    )


def find_model(device: Maybe[int]) -> tuple[Maybe[str], Maybe[str]]:
    """Name and architecture."""
    if device is ABSENT:
        return ABSENT, ABSENT
    model = MODELS.get(device)
    return (f"Intel 8086:{device:04x}", ABSENT) if model is None else model


def _driver(folder: str) -> str:
    """Empty if the function is another vendor's or has no driver."""
    try:
        vendor = read_whole(f"{folder}/vendor", 64).decode("ascii", "replace").strip()
        return Path(folder, "driver").readlink().name if vendor.lower() == INTEL else ""
    except OSError:
        return ""


def _number(folder: str, pattern: re.Pattern[str]) -> Maybe[int]:
    """Of the card's entry whose name has this form."""
    matched = (pattern.fullmatch(name) for name in _names(f"{folder}/drm"))
    return next((int(match[1]) for match in matched if match), ABSENT)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - hundreds of names
    except OSError:
        return []
