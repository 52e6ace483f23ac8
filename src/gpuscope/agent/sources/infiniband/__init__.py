"""Source `infiniband`: ports of InfiniBand and RoCE adapters, and PCIe errors of adapters and GPUs, from sysfs.

One read returns an `InfinibandReading`; on a machine without adapters it has only the slots of the GPUs. The
list of adapters, their identity and their PCIe links are read once a minute, states and counters every ten
seconds. In a container the machine's sysfs must be mounted and named with --path-sysfs.
"""

from __future__ import annotations

from typing import Final

from gpuscope.agent.sources.infiniband.adapter_ports import MAX_DEVICES, PortReader, is_virtual, list_devices
from gpuscope.agent.sources.infiniband.pci import read_gpu_slots
from gpuscope.base.settings import Settings
from gpuscope.model.readings import Reading
from gpuscope.model.readings.host import InfinibandDevice, InfinibandReading, PciFunction
from gpuscope.model.source import SourceSpec, Tier

DEADLINE_SECONDS: Final = 60.0


class InfinibandSource:
    def __init__(self, settings: Settings) -> None:
        self._sysfs = settings.path_sysfs.rstrip("/")
        self._ports = PortReader(self._sysfs)
        self._devices: list[InfinibandDevice] = []
        self._left_out = 0
        self._gpu_slots: tuple[PciFunction, ...] = ()

    def read(self, due: frozenset[Tier]) -> Reading:
        if Tier.SLOW in due:
            self._list_devices()
            self._gpu_slots = read_gpu_slots(self._sysfs)
        devices = tuple(self._ports.read(device) for device in self._devices)
        return Reading(
            infiniband=InfinibandReading(devices=devices, gpu_slots=self._gpu_slots),
            failures={f"more than {MAX_DEVICES} adapters": self._left_out} if self._left_out else {},
        )

    def close(self) -> None:
        pass

    def _list_devices(self) -> None:
        devices = list_devices(self._sysfs)
        if len(devices) > MAX_DEVICES:
            devices.sort(key=lambda device: is_virtual(self._sysfs, device))
        self._left_out = len(devices[MAX_DEVICES:])
        self._devices = devices[:MAX_DEVICES]
        self._ports.forget_others(self._devices)


SOURCE = SourceSpec(
    name="infiniband",
    summary="InfiniBand and RoCE ports, PCIe errors of adapters and GPUs from sysfs",
    open=InfinibandSource,
    interval_seconds=lambda settings: max(float(Tier.MEDIUM.value), settings.interval),
    deadline_seconds=lambda settings: max(DEADLINE_SECONDS, 4 * settings.interval),
)
