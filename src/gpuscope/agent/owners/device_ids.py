"""From the device ids that schedulers use to the visible GPUs, by the forms of ids that are known.

Forms of every vendor are here, those of one vendor in its folder. An id that has no known form, or that of a
GPU that is not visible here, is no error: the allocation is shown without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpuscope.model.readings import ABSENT, Device, Instance, Maybe, Uuid
from gpuscope.model.vendor import DeviceIdForm, vendors

NUMBER = r"\d{1,4}"
COMMON_FORMS = (
    DeviceIdForm("dynamic resource allocation", rf"gpu-(?P<number>{NUMBER})"),
    DeviceIdForm("PCI address", r"(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"),
    DeviceIdForm("a number: Slurm's, or an index", rf"(?P<number>{NUMBER})"),
    DeviceIdForm("Slurm's prolog, an instance", rf"(?P<number>{NUMBER})\.(?P<ids>{NUMBER})"),
)


@dataclass(frozen=True, slots=True)
class MatchedDevice:
    """A GPU or instance, and the number of the share if it is shared."""

    gpu: Device
    instance: Instance | None = None
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

    def find(self, device_id: str) -> MatchedDevice | None:
        known = self.by_uuid.get(device_id)
        if known is not None:
            return known
        for _, pattern in id_forms():
            match = pattern.fullmatch(device_id)
            if match:
                return self._resolve(match.groupdict())
        return None

    def _resolve(self, parts: dict[str, str | None]) -> MatchedDevice | None:
        unit = self._unit(parts)
        if unit is None:
            return None
        if ids := parts.get("ids"):
            unit = _with_ids(unit.gpu, tuple(map(int, re.split(r"\D", ids))))
        elif profile := parts.get("profile"):
            unit = _with_profile(unit.gpu, profile)
        replica = parts.get("replica")
        return unit if unit is None or replica is None else MatchedDevice(unit.gpu, unit.instance, replica)

    def _unit(self, parts: dict[str, str | None]) -> MatchedDevice | None:
        if uuid := parts.get("uuid"):
            return self.by_uuid.get(uuid)
        if address := parts.get("address"):
            device = self._by_address.get(_address(address))
        else:
            device = self._by_number(int(parts["number"] or 0))
        return None if device is None else MatchedDevice(device)

    def _by_number(self, number: int) -> Device | None:
        """That of the device file, which need not be the index."""
        return self._by_minor.get(number) if self._by_minor else self._by_index.get(number)


@cache
def id_forms() -> tuple[tuple[DeviceIdForm, re.Pattern[str]], ...]:
    forms = (*(form for vendor in vendors().values() for form in vendor.id_forms), *COMMON_FORMS)
    return tuple((form, re.compile(form.pattern, re.ASCII)) for form in forms)


def _address(text: str) -> str:
    """Without leading zeros of the domain: sysfs writes four digits, the driver eight."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


def _with_ids(device: Device, ids: tuple[int, ...]) -> MatchedDevice | None:
    """The first instance whose ids begin with these."""
    fitting = (instance for instance in device.instances if instance.ids[: len(ids)] == ids)
    instance = next(fitting, None)
    return None if instance is None else MatchedDevice(device, instance)


def _with_profile(device: Device, profile: str) -> MatchedDevice:
    """The name has a profile and no id: the instance is known only if no other has its profile."""
    same = [
        instance
        for instance in device.instances
        if instance.profile is not ABSENT and re.sub(r"[^a-z0-9]", "", instance.profile.lower()) == profile
    ]
    return MatchedDevice(device, same[0] if len(same) == 1 else None)


def uuid_of(target: MatchedDevice) -> tuple[Uuid, Maybe[Uuid]]:
    return target.gpu.uuid, ABSENT if target.instance is None else target.instance.uuid
