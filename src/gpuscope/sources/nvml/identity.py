"""What a GPU is: name, serial number, place on the bus, versions. Read once; only another GPU changes it."""

from __future__ import annotations

from typing import Any, Final

from gpuscope.readings import ABSENT
from gpuscope.sources import Tier
from gpuscope.sources.nvml.call_table import Give, Row, item, one, part, read_rows
from gpuscope.sources.nvml.driver_calls import Gate

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


def _byte(raw: bytes) -> str:
    return str(ord(raw))


def _ask(field: str, call: str, *arguments: Any, convert: Any = _text, label: str | None = None) -> Row:
    return one(Tier.SLOW, field, call, *arguments, convert=convert, label=label)


AFFINITY_WORDS: Final = 4  # of 64 CPUs or NUMA nodes each, as many as DCGM has fields for
NUMA_NODE: Final = 0  # the scope


def _affinity(field: str, call: str, *arguments: int) -> Row:
    """One bit mask in words; the driver fills in the whole array at once."""
    words = (Give(field, item(word, int), str(word)) for word in range(AFFINITY_WORDS))
    return Row(Tier.SLOW, ((call, (AFFINITY_WORDS, *arguments)),), tuple(words))


IDENTITY_ROWS: Final = (
    _ask("model", "nvmlDeviceGetName"),
    _ask("brand", "nvmlDeviceGetBrand", convert=lambda raw: BRANDS.get(raw, ABSENT)),
    _ask("serial", "nvmlDeviceGetSerial"),
    _ask(
        "architecture",
        "nvmlDeviceGetArchitecture",
        convert=lambda raw: ARCHITECTURES.get(raw, ABSENT),
    ),
    _ask(
        "compute_capability",
        "nvmlDeviceGetCudaComputeCapability",
        convert=lambda raw: f"{raw[0]}.{raw[1]}",
    ),
    Row(
        Tier.SLOW,
        (("nvmlDeviceGetPciInfo", ()),),
        (
            Give("pci_bus_id", lambda raw: _text(raw.busId)),
            Give("pci_ids", part("pciDeviceId", int), "device"),
            Give("pci_ids", part("pciSubSystemId", int), "sub_device"),
        ),
    ),
    Row(
        Tier.SLOW,
        (("nvmlDeviceGetPciInfoExt", ()),),
        (
            Give("pci_ids", part("baseClass", int), "base_class"),
            Give("pci_ids", part("subClass", int), "sub_class"),
        ),
    ),
    Row(
        Tier.SLOW,
        (("nvmlDeviceGetPlatformInfo", ()),),
        (
            Give("platform", part("chassisSerialNumber", _text), "chassis"),
            Give("platform", part("slotNumber", _byte), "slot"),
            Give("platform", part("trayIndex", _byte), "tray"),
            Give("platform", part("hostId", _byte), "host"),
            Give("platform", part("moduleId", _byte), "module"),
        ),
    ),
    _ask("minor_number", "nvmlDeviceGetMinorNumber", convert=int),
    _affinity("cpu_affinity", "nvmlDeviceGetCpuAffinity"),
    _affinity("memory_affinity", "nvmlDeviceGetMemoryAffinity", NUMA_NODE),
    _ask("vbios_version", "nvmlDeviceGetVbiosVersion"),
    _ask("board_part_number", "nvmlDeviceGetBoardPartNumber"),
    _ask("inforom_versions", "nvmlDeviceGetInforomImageVersion", label="image"),
    *(
        _ask("inforom_versions", "nvmlDeviceGetInforomVersion", number, label=name)
        for name, number in {"oem": 0, "ecc": 1, "power": 2}.items()
    ),
)


def read_identity(gate: Gate) -> dict[str, Any]:
    values: dict[str, Any] = {}
    read_rows(gate, IDENTITY_ROWS, values)
    return values


def read_profile(gate: Gate) -> Any:
    """A MIG instance's profile, "1g.10gb": the end of its name, else put together from its size."""
    name = gate.answer(("nvmlDeviceGetName", ()))
    if name is not ABSENT and " MIG " in name:
        return _text(name.rpartition(" MIG ")[2])
    size = gate.answer(("nvmlDeviceGetAttributes_v2", ()))
    if size is ABSENT:
        return ABSENT
    gpu_slices, compute_slices = size.gpuInstanceSliceCount, size.computeInstanceSliceCount
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{round(size.memorySizeMB / 1024)}gb"
