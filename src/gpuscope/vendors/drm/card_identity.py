"""Who a card is, from the files of its PCI function: ids, the processors and memory beside it, a UUID.

A card without an id of its own (Intel's, those in processors, old ones) has a UUID that is made of the id of
the machine and its PCI address.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Maybe, Uuid
from gpuscope.vendors.drm.card_files import CardFiles

MACHINE_ID: Final = "etc/machine-id"
WORD_BITS: Final = 64
MAX_WORDS: Final = 64


def make_uuid(address: str, rootfs: str) -> Uuid:
    """Of a card without an id: the same as long as it is in this slot of this machine."""
    try:
        machine = Path(rootfs, MACHINE_ID).read_text("ascii", "replace").strip()
    except OSError:
        machine = ""
    digest = hashlib.blake2b(f"{machine} {address}".encode(), digest_size=8)
    return Uuid(f"GPU-{digest.hexdigest()}")


def read_pci_identity(files: CardFiles) -> dict[str, Any]:
    """Fields of a `Device` that every PCI function has."""
    ids = {
        "device": _joined(files.number("device", 16), files.number("vendor", 16)),
        "sub_device": _joined(files.number("subsystem_device", 16), files.number("subsystem_vendor", 16)),
    }
    return {
        "pci_ids": {name: float(number) for name, number in ids.items() if number is not ABSENT},
        "cpu_affinity": parse_cpu_mask(files.text("local_cpus")),
        "memory_affinity": _numa_nodes(files),
    }


def parse_cpu_mask(text: Maybe[str]) -> dict[str, int]:
    """`0000ffff,00000000` in words of 64 bits, the lowest first; words without a CPU are left out."""
    if text is ABSENT:
        return {}
    try:
        mask = int(text.replace(",", ""), 16)
    except ValueError:
        return {}
    words = ((place, mask >> WORD_BITS * place & (1 << WORD_BITS) - 1) for place in range(MAX_WORDS))
    return {str(place): word for place, word in words if word}


def _numa_nodes(files: CardFiles) -> dict[str, int]:
    node = files.number("numa_node")
    if node is ABSENT or not 0 <= node < WORD_BITS * MAX_WORDS:
        return {}  # -1: the machine has one node
    return {str(node // WORD_BITS): 1 << node % WORD_BITS}


def _joined(high: Maybe[int], low: Maybe[int]) -> Maybe[int]:
    return ABSENT if high is ABSENT or low is ABSENT else high << 16 | low
