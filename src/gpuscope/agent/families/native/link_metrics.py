"""Native metrics of InfiniBand and RoCE ports, their PCIe links, and the GPUs that each adapter feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuscope.agent.families.host.infiniband_table import HW_COUNTERS
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache, NativeMetric
from gpuscope.model.readings import ABSENT, Device, Maybe, Snapshot, Uuid
from gpuscope.model.readings.host import ACTIVE_STATE, InfinibandPort, InfinibandReading, PciFunction

# The native metrics of InfiniBand and RoCE ports and PCIe links, one row each; `link_metrics.py` fills them.
#
# Counters that node_exporter has are in the family `host` under its names; here is what it lacks, and what
# findings need beside the numbers of the GPUs.


def _gauge(name: str, help_text: str, *labels: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_infiniband_{name}", "gauge", "", help_text, labels, unit)


def _counter(name: str, help_text: str, *labels: str) -> NativeMetric:
    return NativeMetric(f"gpuscope_infiniband_{name}_total", "counter", "", help_text, labels)


_PORT = ("device", "port")

PORT_INFO = NativeMetric(
    "gpuscope_infiniband_port_info",
    "info",
    "",
    "A port of an InfiniBand or RoCE adapter; the value is always 1.",
    (*_PORT, "link_layer", "interface", "board_id", "node_guid", "pci_bus_id", "numa_node"),
)
PORT_UP = _gauge(
    "port_up",
    "1 if the port is active; 0 if it is down or waits for the subnet manager.",
    *_PORT,
    unit="0 or 1",
)
PORT_RATE = _gauge(
    "port_rate_bytes_per_second", "Signal rate of the port; absent while it is not active.", *_PORT
)
LINK_DOWNS = _counter(
    "link_downs", "How often the link went down since the agent started; this counter never stops.", *_PORT
)
PORT_ERRORS = _counter(
    "port_errors",
    "Errors of the link: symbol, receive, remote physical, integrity and overrun errors, and recoveries.",
    *_PORT,
)
SATURATED_COUNTERS = _gauge(
    "saturated_counters",
    "How many counters of the port are at their maximum and do not count any more until they are cleared.",
    *_PORT,
    unit="count",
)
COUNTER_SATURATED = _gauge(
    "counter_saturated",
    "1: this counter of the port is at its maximum; its last value is not a quiet link.",
    *_PORT,
    "counter",
    unit="0 or 1",
)
HW_COUNTER = _counter(
    "hw_counter", "Counters of the adapter's driver that node_exporter does not have.", *_PORT, "counter"
)
PCIE_GENERATION = _gauge(
    "pcie_link_generation", "PCIe generation of the adapter's link now.", "device", unit="generation"
)
PCIE_GENERATION_MAX = _gauge(
    "pcie_link_generation_max",
    "Highest PCIe generation of the adapter in this slot.",
    "device",
    unit="generation",
)
PCIE_WIDTH = _gauge("pcie_link_width", "PCIe lanes of the adapter in use now.", "device", unit="lanes")
PCIE_WIDTH_MAX = _gauge(
    "pcie_link_width_max", "PCIe lanes of the adapter in this slot.", "device", unit="lanes"
)
_AER = (
    "PCIe errors that the kernel counted for the link, by the end that reported them (device, upstream_port) "
    "and severity (correctable, nonfatal, fatal)."
)
ADAPTER_AER_ERRORS = _counter("pcie_aer_errors", _AER, "device", "reporter", "severity")
GPU_AER_ERRORS = NativeMetric(
    "gpuscope_gpu_pcie_aer_errors_total", "counter", "", _AER, ("gpu", "uuid", "reporter", "severity")
)
RAIL_INFO = NativeMetric(
    "gpuscope_infiniband_rail_info",
    "info",
    "",
    "The adapters nearest to a GPU: behind the same PCIe switch, or else on its NUMA node; always 1.",
    ("device", "gpu", "uuid"),
)

LINK_METRICS: tuple[NativeMetric, ...] = (
    PORT_INFO, PORT_UP, PORT_RATE, LINK_DOWNS, PORT_ERRORS, SATURATED_COUNTERS, COUNTER_SATURATED, HW_COUNTER,
    PCIE_GENERATION, PCIE_GENERATION_MAX, PCIE_WIDTH, PCIE_WIDTH_MAX, ADAPTER_AER_ERRORS, GPU_AER_ERRORS,
    RAIL_INFO,
)  # fmt: skip


# Which adapters feed which GPU: those behind the same PCIe switch, or else on the same NUMA node.
#
# Input: an `InfinibandReading` and the GPUs of a snapshot; output: names of adapters by GPU. A GPU whose slot
# is not known, or that has neither a bridge nor a NUMA node in common with an adapter (most virtual
# machines), has none: it is not known then. The root complex is no bridge: half of a machine hangs on it.


def gpu_slots(reading: InfinibandReading, gpus: Sequence[Device]) -> dict[Uuid, PciFunction]:
    """The PCI function of each GPU that the bus shows."""
    by_slot = {slot_of(function.address): function for function in reading.gpu_slots}
    slots = {gpu.uuid: by_slot.get(slot_of(gpu.pci_bus_id)) for gpu in gpus if gpu.pci_bus_id is not ABSENT}
    return {uuid: function for uuid, function in slots.items() if function is not None}


def rails_of_gpus(reading: InfinibandReading, slots: dict[Uuid, PciFunction]) -> dict[Uuid, tuple[str, ...]]:
    adapters = {device.name: device.pci for device in reading.devices}
    rails = {}
    for uuid, slot in slots.items():
        near = {name: _nearness(slot, pci) for name, pci in adapters.items() if pci is not ABSENT}
        nearest = max(near.values(), default=0)
        if nearest:
            rails[uuid] = tuple(name for name, distance in near.items() if distance == nearest)
    return rails


def _nearness(gpu: PciFunction, adapter: PciFunction) -> int:
    """0: nothing in common; 1: the NUMA node; more: how many bridges, from the root, both are behind."""
    common = 0
    for first, second in zip(gpu.bridges, adapter.bridges, strict=False):
        if first != second:
            break
        common += 1
    if common:
        return 1 + common
    return int(gpu.numa_node is not ABSENT and gpu.numa_node == adapter.numa_node)


def slot_of(address: str) -> str:
    """Domain, bus and device, without the function: `0000:8d:00.0` and `00000000:8D:00.0` are one slot."""
    domain, _, rest = address.partition(":")
    try:
        return f"{int(domain, 16):x}:{rest.lower().partition('.')[0]}"
    except ValueError:
        return address


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
        yield self._cache.family(PORT_INFO, info)
        yield self._cache.family(PORT_UP, {key: _up(port) for key, port in ports.items()})
        yield self._cache.family(
            PORT_RATE,
            {key: port.rate_bytes_per_second for key, port in ports.items() if port.state == ACTIVE_STATE},
        )
        yield self._cache.family(LINK_DOWNS, {key: port.link_downs for key, port in ports.items()})
        yield self._cache.family(PORT_ERRORS, {key: _errors(port) for key, port in ports.items()})
        yield self._cache.family(
            SATURATED_COUNTERS, {key: len(port.saturated) for key, port in ports.items() if port.counters}
        )
        yield self._cache.family(
            COUNTER_SATURATED,
            {(*key, counter): 1 for key, port in ports.items() for counter in port.saturated},
        )
        yield self._cache.family(
            HW_COUNTER,
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
            (PCIE_GENERATION, "link_generation"),
            (PCIE_GENERATION_MAX, "link_generation_max"),
            (PCIE_WIDTH, "link_width"),
            (PCIE_WIDTH_MAX, "link_width_max"),
        ):
            yield self._cache.family(row, {key: getattr(link, attribute) for key, link in links.items()})
        yield self._cache.family(
            ADAPTER_AER_ERRORS,
            {(*key, *kind): count for key, link in links.items() for kind, count in link.aer_errors.items()},
        )

    def _gpus(self, snapshot: Snapshot, reading: InfinibandReading) -> Iterator[MetricFamily]:
        index = {gpu.uuid: str(gpu.index) for gpu in snapshot.devices}
        slots = gpu_slots(reading, snapshot.devices)
        yield self._cache.family(
            GPU_AER_ERRORS,
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
        yield self._cache.family(RAIL_INFO, rails)


def _text(value: Maybe[str] | Maybe[int]) -> str:
    return "" if value is ABSENT else str(value)


def _up(port: InfinibandPort) -> Maybe[int]:
    return ABSENT if port.state is ABSENT else int(port.state == ACTIVE_STATE)


def _errors(port: InfinibandPort) -> Maybe[int]:
    counts = [port.counters[name] for name in LINK_ERRORS if name in port.counters]
    return sum(counts) if counts else ABSENT
