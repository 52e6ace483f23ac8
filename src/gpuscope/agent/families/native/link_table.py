"""The native metrics of InfiniBand and RoCE ports and PCIe links, one row each; `link_metrics.py` fills them.

Counters that node_exporter has are in the family `host` under its names; here is what it lacks, and what
findings need beside the numbers of the GPUs.
"""

from __future__ import annotations

from gpuscope.model.native_metric import NativeMetric


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
