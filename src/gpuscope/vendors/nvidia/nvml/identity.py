"""The identity of a GPU: name, serial number, bus address, versions. Read once, because it does not change."""

from __future__ import annotations

from typing import Any, Final

from gpuscope.model.readings import ABSENT
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.call_table import CallField, CallRow, call_row, item, member, read_rows
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls

BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA vApps",
    8: "NVIDIA VPC",
    9: "NVIDIA vCS",
    10: "NVIDIA RTX vWS",
    11: "NVIDIA Cloud Gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
}
ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def _text(raw: str | bytes) -> Any:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text.strip() or ABSENT


def _pci_bus_id(raw: str | bytes) -> Any:
    """With eight digits of the domain: the older structure has room for four."""
    text = _text(raw)
    if text is ABSENT:
        return ABSENT
    domain, colon, rest = text.partition(":")
    return domain.rjust(8, "0") + colon + rest


def _byte(raw: bytes) -> str:
    return str(ord(raw))


def _identity_row(
    field: str, call: str, *arguments: Any, convert: Any = _text, label: str | None = None
) -> CallRow:
    return call_row(Tier.SLOW, field, call, *arguments, convert=convert, label=label)


AFFINITY_WORDS: Final = 4  # 64 CPUs or NUMA nodes each; DCGM has four fields
NUMA_NODE: Final = 0  # nvmlAffinityScope_t


def _affinity(field: str, call: str, *arguments: int) -> CallRow:
    """A bit mask in 64-bit words, all returned by one call."""
    words = (CallField(field, item(word, int), str(word)) for word in range(AFFINITY_WORDS))
    return CallRow(Tier.SLOW, ((call, (AFFINITY_WORDS, *arguments)),), tuple(words))


IDENTITY_ROWS: Final = (
    _identity_row("model", "nvmlDeviceGetName"),
    _identity_row("brand", "nvmlDeviceGetBrand", convert=lambda raw: BRANDS.get(raw, ABSENT)),
    _identity_row("serial", "nvmlDeviceGetSerial"),
    _identity_row(
        "architecture",
        "nvmlDeviceGetArchitecture",
        convert=lambda raw: ARCHITECTURES.get(raw, ABSENT),
    ),
    _identity_row(
        "compute_capability",
        "nvmlDeviceGetCudaComputeCapability",
        convert=lambda raw: f"{raw[0]}.{raw[1]}",
    ),
    CallRow(
        Tier.SLOW,
        (("nvmlDeviceGetPciInfo", ()), ("nvmlDeviceGetPciInfo_v2", ())),  # the latter on the oldest drivers
        (
            CallField("pci_bus_id", lambda raw: _pci_bus_id(raw.busId)),
            CallField("pci_ids", member("pciDeviceId", int), "device"),
            CallField("pci_ids", member("pciSubSystemId", int), "sub_device"),
        ),
    ),
    CallRow(
        Tier.SLOW,
        (("nvmlDeviceGetPciInfoExt", ()),),
        (
            CallField("pci_ids", member("baseClass", int), "base_class"),
            CallField("pci_ids", member("subClass", int), "sub_class"),
        ),
    ),
    CallRow(
        Tier.SLOW,
        (("nvmlDeviceGetPlatformInfo", ()),),
        (
            CallField("platform", member("chassisSerialNumber", _text), "chassis"),
            CallField("platform", member("slotNumber", _byte), "slot"),
            CallField("platform", member("trayIndex", _byte), "tray"),
            CallField("platform", member("hostId", _byte), "host"),
            CallField("platform", member("moduleId", _byte), "module"),
        ),
    ),
    _identity_row("minor_number", "nvmlDeviceGetMinorNumber", convert=int),
    _affinity("cpu_affinity", "nvmlDeviceGetCpuAffinity"),
    _affinity("memory_affinity", "nvmlDeviceGetMemoryAffinity", NUMA_NODE),
    _identity_row("vbios_version", "nvmlDeviceGetVbiosVersion"),
    _identity_row("board_part_number", "nvmlDeviceGetBoardPartNumber"),
    _identity_row("inforom_versions", "nvmlDeviceGetInforomImageVersion", label="image"),
    *(
        _identity_row("inforom_versions", "nvmlDeviceGetInforomVersion", number, label=name)
        for name, number in {"oem": 0, "ecc": 1, "power": 2}.items()
    ),
)


def read_identity(calls: DriverCalls) -> dict[str, Any]:
    values: dict[str, Any] = {}
    read_rows(calls, IDENTITY_ROWS, values)
    return values


def read_profile(calls: DriverCalls) -> Any:
    """A MIG instance's profile, "1g.10gb": the end of its name, or built from its size."""
    name = calls.result(("nvmlDeviceGetName", ()))
    if name is not ABSENT and " MIG " in name:
        return _text(name.rpartition(" MIG ")[2])
    size = calls.result(("nvmlDeviceGetAttributes_v2", ()))
    if size is ABSENT:
        return ABSENT
    gpu_slices, compute_slices = size.gpuInstanceSliceCount, size.computeInstanceSliceCount
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{round(size.memorySizeMB / 1024)}gb"
