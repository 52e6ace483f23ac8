"""The adapters of /sys/class/infiniband: identity, state, rate and counters of each port.

Input: sysfs; output: `InfinibandDevice` rows. Each counter is a query of the adapter's firmware, so that they
are not read every second. What an adapter does not have is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpuscope.agent.sources.host.proc_files import valid_text
from gpuscope.agent.sources.infiniband.pci import (
    MAX_TEXT_CHARACTERS,
    list_names,
    read_label,
    read_number,
    read_pci_function,
    read_text,
)
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.host import ACTIVE_STATE, InfinibandDevice, InfinibandPort

MAX_DEVICES: Final = 64  # a machine with eight GPUs has up to 32; virtual functions would be hundreds
MAX_PORTS: Final = 4
MAX_COUNTERS: Final = 96
BYTES_PER_GIGABIT: Final = 125_000_000

_COUNTER_NAME = re.compile(r"\w{1,64}\Z", re.ASCII)
_INTERFACE = re.compile(r"(?!\.)[\w.:-]{1,15}\Z", re.ASCII)
_STATE = re.compile(r"(\d{1,2}): ", re.ASCII)
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec", re.ASCII)


def list_devices(sysfs: str) -> list[InfinibandDevice]:
    """With their identity and PCI link, without ports. Those of virtual functions come last."""
    folder = f"{sysfs}/class/infiniband"
    devices = []
    for name in list_names(folder):
        path = f"{folder}/{name}"
        devices.append(
            InfinibandDevice(
                name=valid_text(name)[:MAX_TEXT_CHARACTERS],
                board_id=read_label(f"{path}/board_id"),
                firmware_version=read_label(f"{path}/fw_ver"),
                hca_type=read_label(f"{path}/hca_type"),
                node_guid=read_label(f"{path}/node_guid"),
                pci=read_pci_function(f"{path}/device"),
            )
        )
    return devices


def is_virtual(sysfs: str, device: InfinibandDevice) -> bool:
    return bool(list_names(f"{sysfs}/class/infiniband/{device.name}/device/physfn"))


class PortReader:
    """Reads the ports of a device, and counts how often each link went down."""

    def __init__(self, sysfs: str) -> None:
        self._sysfs = sysfs
        self._before: dict[tuple[str, str], tuple[InfinibandPort, Maybe[int]]] = {}

    def read(self, device: InfinibandDevice) -> InfinibandDevice:
        return replace(device, ports=tuple(self._read_ports(device.name)))

    def forget_others(self, devices: list[InfinibandDevice]) -> None:
        names = {device.name for device in devices}
        self._before = {key: value for key, value in self._before.items() if key[0] in names}

    def _read_ports(self, device: str) -> Iterator[InfinibandPort]:
        folder = f"{self._sysfs}/class/infiniband/{device}"
        ports = [name for name in list_names(f"{folder}/ports") if name.isascii() and name.isdigit()]
        for name in ports[:MAX_PORTS]:
            path = f"{folder}/ports/{name}"
            interface = _parse_interface(read_text(f"{path}/gid_attrs/ndevs/0"))
            port = InfinibandPort(
                port=str(int(name)),
                link_layer=read_label(f"{path}/link_layer") or ABSENT,
                interface=interface,
                state=_parse_state(read_text(f"{path}/state")),
                physical_state=_parse_state(read_text(f"{path}/phys_state")),
                rate_bytes_per_second=_parse_rate(read_text(f"{path}/rate")),
                counters=_read_counters(f"{path}/counters"),
                legacy_counters=_read_counters(f"{path}/counters_ext"),
                hw_counters=_read_counters(f"{path}/hw_counters"),
            )
            carrier_downs: Maybe[int] = ABSENT
            if interface is not ABSENT and port.link_layer == "Ethernet":  # whose `link_downed` stays 0
                carrier_downs = read_number(f"{self._sysfs}/class/net/{interface}/carrier_down_count")
            yield self._with_link_downs(device, port, carrier_downs)

    def _with_link_downs(self, device: str, port: InfinibandPort, carrier_downs: Maybe[int]) -> InfinibandPort:
        known = self._before.get((device, port.port))
        if known is not None:
            before, carrier_before = known
            downs = max(
                int(_is_active(before) and port.state is not ABSENT and not _is_active(port)),
                _increase(before.counters.get("link_downed", ABSENT), port.counters.get("link_downed", ABSENT)),
                _increase(carrier_before, carrier_downs),
            )
            port = replace(port, link_downs=before.link_downs + downs)
        self._before[device, port.port] = port, carrier_downs
        return port


def _is_active(port: InfinibandPort) -> bool:
    return port.state == ACTIVE_STATE


def _increase(before: Maybe[int], now: Maybe[int]) -> int:
    """0 if either is not known, and when the counter was cleared."""
    return 0 if before is ABSENT or now is ABSENT else max(0, now - before)


def _parse_interface(text: Maybe[str]) -> Maybe[str]:
    return text if text is not ABSENT and _INTERFACE.match(text) else ABSENT


def _read_counters(folder: str) -> dict[str, int]:
    counters = {}
    for name in list_names(folder)[:MAX_COUNTERS]:
        if _COUNTER_NAME.match(name):
            value = read_number(f"{folder}/{name}")
            if value is not ABSENT:
                counters[name] = value
    return counters


def _parse_state(text: Maybe[str]) -> Maybe[int]:
    """`4: ACTIVE`."""
    found = None if text is ABSENT else _STATE.match(text)
    return ABSENT if found is None else int(found[1])


def _parse_rate(text: Maybe[str]) -> Maybe[float]:
    """`400 Gb/sec (4X NDR)`."""
    found = None if text is ABSENT else _RATE.match(text)
    return ABSENT if found is None else float(int(float(found[1]) * BYTES_PER_GIGABIT))
