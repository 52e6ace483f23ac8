"""From the device ids that schedulers use to the visible GPUs: one row of the table for each form of an id.

An id that matches no row, or that of a GPU that is not visible here, is no error: the allocation is shown
without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Device, Maybe, MigInstance, Uuid


@dataclass(frozen=True, slots=True)
class MatchedDevice:
    """A GPU or instance, and the number of the share if it is shared."""

    gpu: Device
    instance: MigInstance | None = None
    replica: Maybe[str] = ABSENT


class DeviceIndex:
    """The visible GPUs by UUID, minor number, index and PCI address."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self.by_uuid: dict[str, MatchedDevice] = {}
        self._by_minor: dict[int, Device] = {}
        self._by_index: dict[int, Device] = {}
        self._by_address: dict[str, Device] = {}
        for device in devices:
            self.by_uuid[device.uuid] = MatchedDevice(device)
            self.by_uuid.update(
                (instance.uuid, MatchedDevice(device, instance)) for instance in device.instances
            )
            self._by_index[device.index] = device
            if device.minor_number is not ABSENT:
                self._by_minor[device.minor_number] = device
            if device.pci_bus_id is not ABSENT:
                self._by_address[_address(device.pci_bus_id)] = device

    def by_number(self, number: int) -> Device | None:
        """`/dev/nvidiaN`: the minor number, which need not be nvidia-smi's index."""
        return self._by_minor.get(number) if self._by_minor else self._by_index.get(number)

    def by_address(self, address: str) -> Device | None:
        return self._by_address.get(_address(address))

    def find(self, device_id: str) -> MatchedDevice | None:
        known = self.by_uuid.get(device_id)
        if known is not None:
            return known
        for row in ID_PATTERNS:
            match = row.pattern.fullmatch(device_id)
            if match:
                return row.resolve(self, match)
        return None


def _address(text: str) -> str:
    """Without leading zeros of the domain: sysfs writes four digits, the driver eight."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


Resolve = Callable[[DeviceIndex, re.Match[str]], MatchedDevice | None]


@dataclass(frozen=True, slots=True)
class IdPattern:
    used_by: str
    pattern: re.Pattern[str]
    resolve: Resolve


def _instance(device: Device | None, gi: int, ci: int | None = None) -> MatchedDevice | None:
    if device is None:
        return None
    for instance in device.instances:
        if instance.gpu_instance == gi and ci in (None, instance.compute_instance):
            return MatchedDevice(device, instance)
    return None


def _with_replica(target: MatchedDevice | None, replica: str | None) -> MatchedDevice | None:
    if target is None or replica is None:
        return target
    return MatchedDevice(target.gpu, target.instance, replica)


def _old_mig(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    parent = index.by_uuid.get(match["gpu"])
    found = _instance(parent.gpu if parent else None, int(match["gi"]), int(match["ci"]))
    return _with_replica(found, match["replica"])


def _replica(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    return _with_replica(index.by_uuid.get(match["id"]), match["replica"])


def _device_file(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    device, named = index.by_number(int(match["minor"])), match.groupdict()
    if named["gi"] is not None:
        return _with_replica(_instance(device, int(named["gi"])), named.get("replica"))
    return _with_replica(None if device is None else MatchedDevice(device), named.get("replica"))


def _dra_mig(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    device = index.by_number(int(match["minor"]))
    if device is None:
        return None
    # The name has profile and placement but no id: the instance is known only if no other has its profile.
    same_profile = [
        i for i in device.instances if i.profile is not ABSENT and _plain(i.profile) == match["profile"]
    ]
    return MatchedDevice(device, same_profile[0]) if len(same_profile) == 1 else MatchedDevice(device)


def _plain(profile: str) -> str:
    return re.sub(r"[^a-z0-9]", "", profile.lower())


def _number(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    device = index.by_number(int(match["minor"]))
    return None if device is None else MatchedDevice(device)


def _pci(index: DeviceIndex, match: re.Match[str]) -> MatchedDevice | None:
    device = index.by_address(match[0])
    return None if device is None else MatchedDevice(device)


def _id_pattern(used_by: str, pattern: str, resolve: Resolve) -> IdPattern:
    return IdPattern(used_by, re.compile(pattern, re.ASCII), resolve)


_N: Final = r"\d{1,4}"
ID_PATTERNS: Final[Sequence[IdPattern]] = (
    _id_pattern(
        "MIG before driver 470",
        rf"MIG-(?P<gpu>GPU-[^/:]+)/(?P<gi>{_N})/(?P<ci>{_N})(?:::(?P<replica>{_N}))?",
        _old_mig,
    ),
    _id_pattern("time-slicing and MPS", rf"(?P<id>(?:GPU|MIG)-.+)::(?P<replica>{_N})", _replica),
    _id_pattern("HAMi", rf"(?P<id>GPU-\w+-\w+-\w+-\w+-\w+)-(?P<replica>{_N})", _replica),
    _id_pattern("GKE", rf"nvidia(?P<minor>{_N})(?:/gi(?P<gi>{_N}))?(?:/vgpu(?P<replica>{_N}))?", _device_file),
    _id_pattern("dynamic resource allocation", rf"gpu-(?P<minor>{_N})", _number),
    _id_pattern(
        "dynamic resource allocation, MIG",
        rf"gpu-(?P<minor>{_N})-mig-(?P<profile>[a-z0-9]+)-{_N}-{_N}",
        _dra_mig,
    ),
    _id_pattern("PCI address", r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", _pci),
    _id_pattern("a number: Slurm's, or an index", rf"(?P<minor>{_N})", _number),
    _id_pattern("Slurm's prolog, MIG", rf"(?P<minor>{_N})\.(?P<gi>{_N})", _device_file),
)


def uuid_of(target: MatchedDevice) -> tuple[Uuid, Maybe[Uuid]]:
    return target.gpu.uuid, ABSENT if target.instance is None else target.instance.uuid
