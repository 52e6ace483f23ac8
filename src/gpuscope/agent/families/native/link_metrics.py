"""Native metrics of InfiniBand and RoCE ports, their PCIe links, and the GPUs that each adapter feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpuscope.agent.collect.rails import gpu_slots, rails_of_gpus
from gpuscope.agent.families.host.infiniband_table import HW_COUNTERS
from gpuscope.agent.families.native import link_table as rows
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import ABSENT, Maybe, Snapshot
from gpuscope.model.readings.infiniband import ACTIVE_STATE, InfinibandPort, InfinibandReading

LINK_ERRORS: Final = (
    "symbol_error",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
)
"""Counters that show a bad cable or transceiver; discards and waits are congestion."""
_NO_HW_COUNTERS: Final = frozenset({*HW_COUNTERS, "lifespan"})

Values = dict[tuple[str, ...], Maybe[float]]


class LinkMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._cache = LabelCache()
        self._built_from: tuple[object, ...] = ()
        self._families: tuple[MetricFamily, ...] = ()

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        reading = snapshot.infiniband
        if reading is ABSENT:
            return iter(())
        # Ports are read every ten seconds, snapshots are built every second.
        gpus = tuple((gpu.uuid, gpu.index, gpu.pci_bus_id) for gpu in snapshot.devices)
        if not self._built_from or self._built_from[0] is not reading or self._built_from[1] != gpus:
            self._built_from = reading, gpus
            built = (*self._ports(reading), *self._adapters(reading), *self._gpus(snapshot, reading))
            self._families = tuple(family for family in built if family.name in self._only)
        return iter(self._families)

    def _ports(self, reading: InfinibandReading) -> Iterator[MetricFamily]:
        ports = {(device.name, port.port): port for device in reading.devices for port in device.ports}
        info: Values = {}
        for device in reading.devices:
            for port in device.ports:
                where = ("", "") if device.pci is ABSENT else (device.pci.address, _text(device.pci.numa_node))
                kind = (_text(port.link_layer), _text(port.interface), device.board_id, device.node_guid)
                info[device.name, port.port, *kind, *where] = 1
        yield self._cache.family(rows.PORT_INFO, info)
        yield self._cache.family(rows.PORT_UP, {key: _up(port) for key, port in ports.items()})
        yield self._cache.family(
            rows.PORT_RATE,
            {key: port.rate_bytes_per_second for key, port in ports.items() if port.state == ACTIVE_STATE},
        )
        yield self._cache.family(rows.LINK_DOWNS, {key: port.link_downs for key, port in ports.items()})
        yield self._cache.family(rows.PORT_ERRORS, {key: _errors(port) for key, port in ports.items()})
        yield self._cache.family(
            rows.SATURATED_COUNTERS, {key: len(port.saturated) for key, port in ports.items() if port.counters}
        )
        yield self._cache.family(
            rows.COUNTER_SATURATED,
            {(*key, counter): 1 for key, port in ports.items() for counter in port.saturated},
        )
        yield self._cache.family(
            rows.HW_COUNTER,
            {
                (*key, counter): count
                for key, port in ports.items()
                for counter, count in port.hw_counters.items()
                if counter not in _NO_HW_COUNTERS
            },
        )

    def _adapters(self, reading: InfinibandReading) -> Iterator[MetricFamily]:
        links = {(device.name,): device.pci for device in reading.devices if device.pci is not ABSENT}
        for row, attribute in (
            (rows.PCIE_GENERATION, "link_generation"),
            (rows.PCIE_GENERATION_MAX, "link_generation_max"),
            (rows.PCIE_WIDTH, "link_width"),
            (rows.PCIE_WIDTH_MAX, "link_width_max"),
        ):
            yield self._cache.family(row, {key: getattr(link, attribute) for key, link in links.items()})
        yield self._cache.family(
            rows.ADAPTER_AER_ERRORS,
            {(*key, *kind): count for key, link in links.items() for kind, count in link.aer_errors.items()},
        )

    def _gpus(self, snapshot: Snapshot, reading: InfinibandReading) -> Iterator[MetricFamily]:
        index = {gpu.uuid: str(gpu.index) for gpu in snapshot.devices}
        slots = gpu_slots(reading, snapshot.devices)
        yield self._cache.family(
            rows.GPU_AER_ERRORS,
            {
                (index[uuid], uuid, *kind): count
                for uuid, slot in slots.items()
                for kind, count in slot.aer_errors.items()
            },
        )
        rails: Mapping[tuple[str, ...], int] = {
            (adapter, index[uuid], uuid): 1
            for uuid, adapters in rails_of_gpus(reading, slots).items()
            for adapter in adapters
        }
        yield self._cache.family(rows.RAIL_INFO, rails)


def _text(value: Maybe[str] | Maybe[int]) -> str:
    return "" if value is ABSENT else str(value)


def _up(port: InfinibandPort) -> Maybe[int]:
    return ABSENT if port.state is ABSENT else int(port.state == ACTIVE_STATE)


def _errors(port: InfinibandPort) -> Maybe[int]:
    counts = [port.counters[name] for name in LINK_ERRORS if name in port.counters]
    return sum(counts) if counts else ABSENT
