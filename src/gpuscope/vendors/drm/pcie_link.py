"""The PCIe link between a card and the machine.

Graphics cards have a switch of their own: the link of the GPU itself ends there and always runs at the same
speed. The link to the slot is that of the highest bridge of the card, which has the vendor's id. The root ports
of Intel's processors have it too and are not part of a card. What is possible in the slot is what the bridge
and the port above it both can.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles, Fields, read_whole

BRIDGE_CLASS: Final = "0x0604"
GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""By gigatransfers per second."""
MAX_BRIDGES: Final = 4


def find_card_port(device: Path, vendor: str) -> tuple[Path, Path | None]:
    """The PCI function of the card that is connected to the slot, and the port of the slot."""
    port = device
    for _ in range(MAX_BRIDGES):
        above = port.parent
        if _text(above / "vendor") != vendor or not _text(above / "class").startswith(BRIDGE_CLASS):
            break
        if not _text(above.parent / "vendor"):
            break  # a root port
        port = above
    slot = port.parent
    return port, slot if _text(slot / "max_link_width") else None


def read_link(port: CardFiles, slot: CardFiles | None) -> Fields:
    generation, width = _read(port, "current_link_speed"), _width(port, "current_link_width")
    generation_max, width_max = _read(port, "max_link_speed"), _width(port, "max_link_width")
    if slot is not None:
        generation_max = _lower(generation_max, _read(slot, "max_link_speed"))
        width_max = _lower(width_max, _width(slot, "max_link_width"))
    fields = {
        "pcie_link_generation": generation,
        "pcie_link_width": width,
        "pcie_link_generation_max": generation_max,
        "pcie_link_width_max": width_max,
        "pcie_link_generation_gpu_max": _read(port, "max_link_speed"),
    }
    return {name: value for name, value in fields.items() if value is not ABSENT}


def parse_link_speed(text: str) -> Maybe[float]:
    """`16.0 GT/s PCIe` is generation 4; what is no known speed is ABSENT."""
    try:
        speed = float(text.split()[0])
    except (ValueError, IndexError):
        return ABSENT
    generation = GENERATIONS.get(speed)
    return ABSENT if generation is None else float(generation)


def _read(files: CardFiles, name: str) -> Maybe[float]:
    text = files.text(name)
    return ABSENT if text is ABSENT else parse_link_speed(text)


def _width(files: CardFiles, name: str) -> Maybe[float]:
    """255 is what sysfs writes for a width that it does not know; 0 is a link that is down."""
    number = files.number(name)
    return ABSENT if number is ABSENT or number > 32 else float(number)


def _lower(first: Maybe[float], second: Maybe[float]) -> Maybe[float]:
    if first is ABSENT or second is ABSENT:
        return first if second is ABSENT else second
    return min(first, second)


def _text(path: Path) -> str:
    try:
        return read_whole(str(path), 64).decode("ascii", "replace").strip()
    except OSError:
        return ""
