"""The PCIe side of a device: where it is plugged in, how fast its link runs, and the errors of the link.

Input: a device folder of sysfs; output: a `PciFunction`, or ABSENT for a device without PCI (a software
adapter). Linux has no counter of link retraining; a link that came back slower shows in `link_width` and
`link_generation`. AER counts exist since Linux 4.19 where the platform gives the kernel control of them.
"""

from __future__ import annotations

import os
import re
from typing import Final

from gpuscope.agent.sources.host.proc_files import valid_text
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.host import PciFunction

# Reads single values of sysfs: a file that is not there, not readable or not in its format is ABSENT.
#
# A driver may answer `N/A (no PMA)` or refuse a counter with EINVAL: both mean that it does not have the
# number.

MAX_FILE_BYTES: Final = 4096
MAX_TEXT_CHARACTERS: Final = 64

_NUMBER = re.compile(r"\d{1,20}\Z", re.ASCII)


def read_text(path: str) -> Maybe[str]:
    # os.open and os.read: a file object costs three times as much, hundreds of times a read.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ABSENT
    try:
        return os.read(handle, MAX_FILE_BYTES).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ABSENT
    finally:
        os.close(handle)


def read_label(path: str) -> str:
    """For a label: empty if there is none."""
    text = read_text(path)
    return "" if text is ABSENT else valid_text(text)[:MAX_TEXT_CHARACTERS]


def read_number(path: str) -> Maybe[int]:
    text = read_text(path)
    return int(text) if text is not ABSENT and _NUMBER.match(text) else ABSENT


def list_names(path: str) -> list[str]:
    """In order; empty if there is no such folder."""
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - a Path for each of hundreds of names costs more
    except OSError:
        return []


MAX_GPU_FUNCTIONS: Final = 64
AER_FILES: Final = {
    "correctable": ("aer_dev_correctable", "TOTAL_ERR_COR"),
    "nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
}
GENERATIONS: Final = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""By GT/s, as the kernel prints them."""
GPU_CLASSES: Final = ("0x03", "0x12")  # display controllers, processing accelerators

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z", re.ASCII)


def read_pci_function(folder: str) -> Maybe[PciFunction]:
    path = os.path.realpath(folder)
    addresses = [part for part in path.split("/") if _ADDRESS.match(part)]
    if not addresses or not path.endswith(addresses[-1]):
        return ABSENT
    bridges, address = addresses[:-1], addresses[-1]
    slot = path.rpartition("/")[0] if bridges else None
    return PciFunction(
        address=address,
        bridges=tuple(bridges),
        numa_node=read_number(f"{path}/numa_node"),  # -1, which is no number here, where there is none
        link_generation=_generation(f"{path}/current_link_speed"),
        link_generation_max=_smaller(
            _generation(f"{path}/max_link_speed"), _generation(f"{slot}/max_link_speed") if slot else ABSENT
        ),
        link_width=_width(f"{path}/current_link_width"),
        link_width_max=_smaller(
            _width(f"{path}/max_link_width"), _width(f"{slot}/max_link_width") if slot else ABSENT
        ),
        aer_errors={
            **_aer_errors(path, "device"),
            **(_aer_errors(slot, "upstream_port") if slot else {}),
        },
    )


def read_gpu_slots(sysfs: str) -> tuple[PciFunction, ...]:
    """Display and accelerator functions; which of them is which GPU follows from the address."""
    folder = f"{sysfs}/bus/pci/devices"
    slots: list[PciFunction] = []
    for name in list_names(folder):
        kind = read_text(f"{folder}/{name}/class")
        if kind is not ABSENT and kind.startswith(GPU_CLASSES) and len(slots) < MAX_GPU_FUNCTIONS:
            function = read_pci_function(f"{folder}/{name}")
            if function is not ABSENT:
                slots.append(function)
    return tuple(slots)


def _aer_errors(folder: str, reporter: str) -> dict[tuple[str, str], int]:
    errors = {}
    for severity, (file, total) in AER_FILES.items():
        text = read_text(f"{folder}/{file}")
        count = ABSENT if text is ABSENT else parse_aer_total(text, total)
        if count is not ABSENT:
            errors[reporter, severity] = count
    return errors


def parse_aer_total(text: str, total: str) -> Maybe[int]:
    """The number on the line `TOTAL_ERR_COR 2`, which counts messages; the lines before it count causes."""
    name, _, number = text.rpartition("\n")[2].partition(" ")
    return int(number) if name == total and number.isascii() and number.isdigit() else ABSENT


def _generation(path: str) -> Maybe[int]:
    text = read_text(path)  # "32.0 GT/s PCIe", or "Unknown"
    return ABSENT if text is ABSENT else GENERATIONS.get(text.partition(" ")[0], ABSENT)


def _width(path: str) -> Maybe[int]:
    width = read_number(path)
    return ABSENT if width is ABSENT or not 0 < width <= 32 else width  # 0 and 255: unknown


def _smaller(one: Maybe[int], other: Maybe[int]) -> Maybe[int]:
    if one is ABSENT or other is ABSENT:
        return one
    return min(one, other)
