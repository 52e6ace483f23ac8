"""The identity of a GPU: name, serial number, bus address, versions. Read once, because it does not change."""

from __future__ import annotations

from typing import Any, Final

from gpuscope.model.readings import ABSENT, Instance, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import make_instance
from gpuscope.vendors.nvidia.nvml.call_table import (
    GPU_OR_INSTANCE_ROWS,
    CallField,
    CallRow,
    call_row,
    item,
    member,
    read_rows,
)
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCall, DriverCalls, GpuLostError, address
from gpuscope.vendors.nvidia.nvml.nvml_fields import TierReader

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


# The MIG instances of a GPU, listed again whenever they may have changed.
#
# A handle becomes invalid when its instance is destroyed, and the driver reuses GPU and compute instance ids:
# two instances are the same only if UUID and handle are equal.

_UUID: Final[DriverCall] = ("nvmlDeviceGetUUID", ())
_IDENTITY: Final[tuple[DriverCall, ...]] = (
    _UUID,
    ("nvmlDeviceGetGpuInstanceId", ()),
    ("nvmlDeviceGetComputeInstanceId", ()),
)


class NvmlInstance:
    def __init__(self, calls: DriverCalls, uuid: Uuid, gpu_instance: int, compute_instance: int) -> None:
        self.calls = calls
        self.uuid = uuid
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.index = -1  # MIG device index on this GPU
        self._profile = read_profile(calls)
        self._reader = TierReader(calls, GPU_OR_INSTANCE_ROWS, {})
        self.answers = True

    def read(self, tier: Tier) -> None:
        """An invalid handle returns nothing; the GPU itself may still work."""
        try:
            self._reader.read(tier)
            if tier is Tier.FAST:
                if self._reader.has_not_read(Tier.SLOW):
                    self._reader.read(Tier.SLOW)
                self.answers = self.calls.is_stuck(_UUID) or self.calls.result(_UUID) == self.uuid
        except GpuLostError:
            self._reader.clear()
            self.answers = False

    def retry_refused(self) -> None:
        self._reader.retry_refused()

    def to_reading(self, profiled: dict[str, Any], processes_known: bool) -> Instance:
        return make_instance(
            uuid=self.uuid,
            gpu_instance=self.gpu_instance,
            compute_instance=self.compute_instance,
            profile=self._profile,
            **self._reader.values(),
            **profiled,
            processes_known=processes_known,
        )


def find_instances(parent: DriverCalls, known: list[NvmlInstance]) -> list[NvmlInstance]:
    """The current instances in the driver's order; unchanged instances of `known` are kept.

    While the call for an index is stuck, the known instance at that index is kept.
    """
    by_index = {instance.index: instance for instance in known}
    count: DriverCall = ("nvmlDeviceGetMaxMigDeviceCount", ())
    size = parent.result(count)
    if parent.is_stuck(count):
        return known
    found = []
    for index in range(0 if size is ABSENT else size):
        call: DriverCall = ("nvmlDeviceGetMigDeviceHandleByIndex", (index,))
        # For an unused index the driver may return "invalid argument"; the call must still be repeated.
        parent.retry(call)
        handle = parent.result(call)
        if handle is not ABSENT:
            calls = DriverCalls(
                parent.library, parent.runner, handle, f"{parent.device_name}, MIG device {index}"
            )
            instance = _identify(calls, index, known)
        else:
            instance = by_index.get(index) if parent.is_stuck(call) else None
        if instance is not None:
            found.append(instance)
    return found


def _identify(calls: DriverCalls, index: int, known: list[NvmlInstance]) -> NvmlInstance | None:
    same = next((each for each in known if address(each.calls.handle) == address(calls.handle)), None)
    try:
        results = [calls.result(call) for call in _IDENTITY]
        if any(calls.is_stuck(call) for call in _IDENTITY):
            return same
        if ABSENT in results:
            return None
        uuid, gpu_instance, compute_instance = results
        if same is None or not same.answers or (same.uuid, same.gpu_instance) != (uuid, gpu_instance):
            same = NvmlInstance(calls, Uuid(uuid), gpu_instance, compute_instance)
        same.index = index
        return same
    except GpuLostError:
        return None  # the instance was destroyed meanwhile
