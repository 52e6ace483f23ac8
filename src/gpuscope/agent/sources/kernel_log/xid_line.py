"""Parses a line of the kernel log: XID code and GPU, or the UUID of a GPU.

The start of an XID line is the same from driver 470 to 610: `NVRM: Xid (PCI:0000:8d:00): 79, …`, with the ids
of the MIG instance after the address if one is affected. The text after the code varies (`pid=1234`,
`pid='<unknown>'`, `name=…` or nothing) and is not parsed, because a process chooses its own name. `SXid` lines
are about an NVSwitch, not a GPU.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gpuscope.model.readings import Uuid

MAX_MESSAGE_CHARACTERS: Final = 1000

_ADDRESS = r"(?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?"
_XID = re.compile(
    rf"\s*NVRM: (Xid \({_ADDRESS}(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (\d{{1,5}})(?![\w.]).*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_GPU = re.compile(
    rf"\s*NVRM: GPU at {_ADDRESS}: (GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})\s*\Z",
    re.ASCII | re.IGNORECASE,
)


class XidLine(NamedTuple):
    xid: int
    pci_bus_id: str  # as NVML writes it
    message: str


class GpuLine(NamedTuple):
    """The driver logs a GPU's UUID before its first XID; this identifies GPUs that are lost now."""

    pci_bus_id: str
    uuid: Uuid


def parse_xid_line(text: str) -> XidLine | None:
    found = _XID.match(text)
    if found is None:
        return None
    message, domain, bus, device, xid = found.groups()
    return XidLine(int(xid), _pci_bus_id(domain, bus, device), message.rstrip()[:MAX_MESSAGE_CHARACTERS])


def parse_gpu_line(text: str) -> GpuLine | None:
    found = _GPU.match(text)
    if found is None:
        return None
    domain, bus, device, uuid = found.groups()
    return GpuLine(_pci_bus_id(domain, bus, device), Uuid("GPU-" + uuid[4:].lower()))


def _pci_bus_id(domain: str, bus: str, device: str) -> str:
    return f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.0"
