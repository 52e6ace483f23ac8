"""How many GPUs this machine should have, counted on the PCI bus, to compare with what the driver sees.

Counts the functions that are GPUs of a vendor with a folder: a GPU that fell off the bus is still in sysfs.
ABSENT if sysfs cannot be read. Virtual functions of a GPU and GPUs passed to a virtual machine are not counted:
the driver of this machine never shows them.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.vendor import vendors

PASSTHROUGH_DRIVER = "vfio-pci"


def expected_gpus(settings: Settings) -> Maybe[int]:
    if settings.expected_gpus is not None:
        return settings.expected_gpus
    try:
        functions = list(Path(settings.path_sysfs, "bus/pci/devices").iterdir())
    except OSError:
        return ABSENT
    return sum(_is_gpu(function) for function in functions)


def _is_gpu(function: Path) -> bool:
    try:
        pci_id = (function / "vendor").read_text("ascii").strip().lower()
        classes = tuple(
            start for vendor in vendors().values() if vendor.pci_id == pci_id for start in vendor.pci_classes
        )
        if not (function / "class").read_text("ascii").strip().lower().startswith(classes):
            return False
    except (OSError, UnicodeDecodeError):  # unplugged in the meantime, or not a PCI function
        return False
    virtual = (function / "physfn").exists()
    return not virtual and (function / "driver").resolve().name != PASSTHROUGH_DRIVER
