"""Parses a line of NVIDIA's driver in the kernel log: XID code and GPU, or the UUID of a GPU.

The start of an XID line is the same from driver 470 to 610: `NVRM: Xid (PCI:0000:8d:00): 79, …`, with the ids
of the MIG instance after the address if one is affected. The text after the code varies (`pid=1234`,
`pid='<unknown>'`, `name=…` or nothing) and is not parsed, because a process chooses its own name. `SXid` lines
are about an NVSwitch, not a GPU.
"""

from __future__ import annotations

import re
from typing import Final

from gpuscope.model.readings import Uuid
from gpuscope.model.vendor import KernelLogLine

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


def parse_kernel_line(text: str) -> KernelLogLine | None:
    """The driver logs a GPU's UUID before its first XID; this identifies GPUs that are lost now."""
    xid = _XID.match(text)
    if xid is not None:
        message, domain, bus, device, code = xid.groups()
        address = _pci_bus_id(domain, bus, device)
        return KernelLogLine(address, str(int(code)), message.rstrip()[:MAX_MESSAGE_CHARACTERS])
    gpu = _GPU.match(text)
    if gpu is None:
        return None
    domain, bus, device, uuid = gpu.groups()
    return KernelLogLine(_pci_bus_id(domain, bus, device), uuid=Uuid("GPU-" + uuid[4:].lower()))


def _pci_bus_id(domain: str, bus: str, device: str) -> str:
    return f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.0"
