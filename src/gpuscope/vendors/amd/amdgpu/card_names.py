"""The name of a card's model: what the card says, what the machine's lists of names say, or its PCI ids.

Instinct cards have a name in their own memory; it is missing in virtual machines. Radeon cards have none:
libdrm's list has names by device and revision. A card without any name is called by its PCI ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe

LISTS: Final = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""Below the machine's root."""
MAX_LIST_BYTES: Final = 1 << 20

INSTINCT: Final = {
    0x66A1: "AMD Instinct MI60 / MI50",
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X / MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74B6: "AMD Instinct MI308X VF",
    0x74B9: "AMD Instinct MI325X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
"""By device id, for virtual machines and machines without libdrm's list."""


def model_name(product: Maybe[str], device: int, revision: int, rootfs: str) -> str:
    if product is not ABSENT:
        return product
    listed = _read_lists(rootfs).get((device, revision))
    if listed:
        return listed
    return INSTINCT.get(device) or f"AMD 1002:{device:04x}"


@cache
def _read_lists(rootfs: str) -> Mapping[tuple[int, int], str]:
    names: dict[tuple[int, int], str] = {}
    for path in LISTS:
        try:
            with Path(rootfs, path).open("rb") as file:
                text = file.read(MAX_LIST_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        names = {**parse_names(text.splitlines()), **names}
    return names


def parse_names(lines: Iterable[str]) -> dict[tuple[int, int], str]:
    """`744C, C8, AMD Radeon RX 7900 XTX` on each line; other lines are comments or the version."""
    names = {}
    for line in lines:
        parts = line.split(",", 2)
        if len(parts) != 3 or line.startswith("#"):
            continue
        try:
            names[int(parts[0], 16), int(parts[1], 16)] = parts[2].strip()
        except ValueError:
            continue
    return names
