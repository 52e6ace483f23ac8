"""Which AMD cards this machine has: from `/sys/class/drm`, joined with KFD's nodes.

A card is a PCI function that the driver amdgpu has. MI300 cards have further entries in `/sys/class/drm`, one
for each possible partition; those are platform devices, which give the name by which Kubernetes' device plugin
knows a partition. Cards are numbered in the order of their PCI addresses, as amd-smi does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdNode, nodes_by_card
from gpuscope.vendors.drm.card_files import read_whole
from gpuscope.vendors.drm.pci_gpus import AMD

DRM: Final = "class/drm"
DRIVER: Final = "amdgpu"
MAX_CARDS: Final = 256

_CARD: Final = re.compile(r"card(\d+)", re.ASCII)
_RENDER: Final = re.compile(r"renderD(\d+)", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_PARTITION: Final = re.compile(r"amdgpu_xcp_\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCard:
    index: int
    address: str
    """On the PCI bus: `0000:c1:00.0`."""
    folder: str
    """Of its files."""
    number: Maybe[int] = ABSENT
    """N of cardN."""
    render_minor: Maybe[int] = ABSENT
    nodes: tuple[KfdNode, ...] = ()
    """Of KFD: one, or one for each partition."""

    @property
    def name(self) -> str:
        """In log lines."""
        return f"GPU {self.index} ({self.address})"


class PartitionDevice(NamedTuple):
    """A platform device of the driver, for one partition."""

    name: str
    """`amdgpu_xcp_30`."""
    folder: str
    card_number: Maybe[int]


@dataclass(frozen=True, slots=True)
class CardList:
    cards: tuple[ListedCard, ...] = ()
    partition_devices: Mapping[int, PartitionDevice] = field(default_factory=dict)
    """By render minor."""


def list_cards(sysfs: str, nodes: Iterable[KfdNode]) -> CardList:
    folders: dict[str, str] = {}
    partition_devices: dict[int, PartitionDevice] = {}
    for name in _names(f"{sysfs}/{DRM}"):
        is_card, render = _CARD.fullmatch(name), _RENDER.fullmatch(name)
        if not is_card and not render:
            continue  # connectors and other parts
        folder = os.path.realpath(f"{sysfs}/{DRM}/{name}/device")
        device = os.path.basename(folder)  # noqa: PTH119
        if is_card and _ADDRESS.fullmatch(device) and _is_amdgpu(folder):
            folders[device] = folder
        elif render and _PARTITION.fullmatch(device):
            partition_devices[int(render[1])] = PartitionDevice(device, folder, _number(folder, _CARD))
    addresses = sorted(folders)[:MAX_CARDS]
    by_card = nodes_by_card(nodes, addresses)
    cards = tuple(
        ListedCard(
            index=index,
            address=address,
            folder=folders[address],
            number=_number(folders[address], _CARD),
            render_minor=_number(folders[address], _RENDER),
            nodes=by_card.get(address, ()),
        )
        for index, address in enumerate(addresses)
    )
    return CardList(cards, partition_devices)


def _is_amdgpu(folder: str) -> bool:
    try:
        vendor = read_whole(f"{folder}/vendor", 64).decode("ascii", "replace").strip()
        driver = Path(folder, "driver").readlink().name
    except OSError:
        return False
    return vendor.lower() == AMD and driver == DRIVER


def _number(folder: str, pattern: re.Pattern[str]) -> Maybe[int]:
    """Of the card's entry whose name has this form."""
    matched = (pattern.fullmatch(name) for name in _names(f"{folder}/drm"))
    return next((int(match[1]) for match in matched if match), ABSENT)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - hundreds of names
    except OSError:
        return []
