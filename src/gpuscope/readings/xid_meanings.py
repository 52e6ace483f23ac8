"""What an XID means, in a few words, by NVIDIA's catalogue of XID errors.

For log lines and tables. A code that is not here has no meaning we know: `xid_meaning` says so. What
dcgm-exporter prints for a code is another list, kept letter by letter (`metrics/catalogue`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

XID_MEANINGS: Final[Mapping[int, str]] = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception, mostly a fault of the program",
    16: "display engine hung",
    18: "bus mastering disabled in PCI configuration space",
    24: "GPU semaphore timeout",
    25: "invalid or illegal push buffer stream",
    27: "video processor exception",
    31: "GPU memory page fault, mostly a fault of the program",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing, mostly a fault of the program",
    44: "graphics engine fault during context switch",
    45: "preemptive cleanup after earlier errors or a killed program",
    48: "double-bit ECC error",
    56: "display engine error",
    57: "error programming the video memory interface",
    58: "unstable video memory interface or EDC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping failed",
    65: "video processor exception",
    66: "illegal access by driver",
    67: "illegal access by driver",
    68: "NVDEC exception",
    69: "graphics engine class error",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    81: "VGA subsystem error",
    92: "high single-bit ECC error rate",
    93: "non-fatal violation of the provisioned InfoROM wear limit",
    94: "contained ECC error",
    95: "uncontained ECC error",
    96: "NVDEC error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    122: "SPI PMU RPC read failure",
    123: "SPI PMU RPC write failure",
    124: "SPI PMU RPC erase failure",
    125: "InfoROM failure",
    136: "link training failed",
    137: "NVLink FLA privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW_CTRL error",
    149: "NVLink NETIR error",
    150: "NVLink MSE error",
    151: "key rotation error",
    154: "GPU recovery action changed",
    155: "NVLink software-defined error",
    156: "resource retirement event",
    157: "resource retirement failure",
    158: "GPU fatal timeout",
    160: "channel retirement event",
    161: "channel retirement failure",
    170: "interrupt seen in confidential computing mode",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}


def xid_meaning(xid: int) -> str:
    return XID_MEANINGS.get(xid, "a code that is not in NVIDIA's catalogue")
