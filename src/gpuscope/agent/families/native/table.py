"""The table of native metrics, from which HELP, TYPE and the docs are generated.

`reading` is usually an attribute of `Device` (and `Instance`), `Counters` or `Process`; with `labels` the
attribute is a mapping whose keys are the label values, and `NAME.KEY` is one number of such a mapping. Such a
metric needs only a row. Rows without a `reading` are filled by their own code. Rows that only one vendor has
come from its folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.agent.families.native.collective_metrics import COLLECTIVE_METRICS
from gpuscope.agent.families.native.link_metrics import LINK_METRICS
from gpuscope.agent.families.native.owner_table import OWNERSHIP_METRICS
from gpuscope.agent.families.native.slurm_table import SLURM_CLUSTER_METRICS
from gpuscope.model.native_metric import NativeMetric as NativeMetric
from gpuscope.model.native_metric import gpu_counter as _counter
from gpuscope.model.native_metric import gpu_gauge as _gauge
from gpuscope.model.vendor import ErrorCatalogue, vendors

GPU_METRICS: tuple[NativeMetric, ...] = (
    _gauge(
        "utilization_ratio",
        "utilization_ratio",
        "Share of the last sample period in which at least one kernel ran; 1 does not mean all SMs worked.",
    ),
    _gauge(
        "memory_utilization_ratio", "memory_utilization_ratio", "Share of time the memory was read or written."
    ),
    _gauge(
        "encoder_utilization_ratio", "encoder_utilization_ratio", "Share of time the video encoder was busy."
    ),
    _gauge(
        "decoder_utilization_ratio", "decoder_utilization_ratio", "Share of time the video decoder was busy."
    ),
    _gauge("jpeg_utilization_ratio", "jpeg_utilization_ratio", "Share of time the JPEG engine was busy."),
    _gauge("ofa_utilization_ratio", "ofa_utilization_ratio", "Share of time the optical flow engine was busy."),
    _gauge("encoder_sessions", "encoder_sessions", "Video encoding sessions open now.", unit="count"),
    _gauge("memory_total_bytes", "memory_total_bytes", "Memory of the GPU or the MIG instance."),
    _gauge("memory_used_bytes", "memory_used_bytes", "Memory in use."),
    _gauge("memory_free_bytes", "memory_free_bytes", "Memory free."),
    _gauge("memory_reserved_bytes", "memory_reserved_bytes", "Memory reserved by the driver."),
    _gauge("bar1_total_bytes", "bar1_total_bytes", "Size of BAR1, through which other devices map GPU memory."),
    _gauge("bar1_used_bytes", "bar1_used_bytes", "BAR1 memory in use."),
    _gauge("temperature_celsius", "temperature_celsius", "Temperature by sensor.", "sensor"),
    _gauge(
        "temperature_threshold_celsius",
        "temperature_threshold_celsius",
        "Temperature at which the GPU slows down, shuts down, or exceeds its operating range.",
        "threshold",
    ),
    _gauge(
        "temperature_margin_celsius",
        "temperature_margin_celsius",
        "Degrees left before the GPU slows down.",
    ),
    _gauge(
        "temperature_margin_threshold_celsius",
        "temperature_margin_threshold_celsius",
        "Degrees of margin at which the GPU slows down or shuts down.",
        "threshold",
    ),
    _gauge("power_watts", "power_watts", "Power draw, as nvidia-smi shows it."),
    _gauge("power_instant_watts", "power_instant_watts", "Power draw at this instant."),
    _gauge("power_average_watts", "power_average_watts", "Power draw averaged over the last second."),
    _gauge("power_limit_watts", "power_limit_watts", "Power limits of the board.", "limit"),
    _gauge("clock_hertz", "clock_hertz", "Current clock frequency.", "clock"),
    _gauge("clock_max_hertz", "clock_max_hertz", "Highest clock frequency of this GPU.", "clock"),
    _gauge(
        "clock_application_hertz", "clock_application_hertz", "Clock frequency set for applications.", "clock"
    ),
    _gauge("performance_state", "performance_state", "P-state, 0 (fastest) to 15.", unit="state"),
    _gauge("fan_speed_ratio", "fan_speed_ratio", "Fan speed as a share of its maximum.", "fan"),
    _gauge("fan_rpm", "fan_rpm", "Fan speed in revolutions per minute.", "fan", unit="rpm"),
    _gauge("pcie_link_generation", "pcie_link_generation", "PCIe generation in use now.", unit="generation"),
    _gauge(
        "pcie_link_generation_max",
        "pcie_link_generation_max",
        "Highest PCIe generation of this GPU in this slot.",
        unit="generation",
    ),
    _gauge("pcie_link_width", "pcie_link_width", "PCIe lanes in use now.", unit="lanes"),
    _gauge("pcie_link_width_max", "pcie_link_width_max", "PCIe lanes of this GPU in this slot.", unit="lanes"),
    _gauge("pcie_bytes_per_second", "pcie_bytes_per_second", "PCIe traffic, measured over 20 ms.", "direction"),
    _counter("pcie_replays", "pcie_replays", "Retransmitted PCIe packets."),
    *(row for vendor in vendors().values() for row in vendor.link_metrics),
    _gauge("ecc_enabled", "ecc_enabled", "1 if ECC is on.", unit="0 or 1"),
    _gauge("ecc_pending", "ecc_pending", "1 if ECC will be on after the next reboot.", unit="0 or 1"),
    _counter(
        "ecc_errors", "ecc_errors", "ECC errors since boot (volatile) or ever (aggregate).", "error", "lifetime"
    ),
    _counter(
        "ecc_location_errors",
        "ecc_location_errors",
        "ECC errors by location.",
        "error",
        "lifetime",
        "location",
    ),
    *(row for vendor in vendors().values() for row in vendor.metrics),
)

COUNTER_METRICS: tuple[NativeMetric, ...] = (
    _counter("busy_seconds", "busy_seconds", "Time the GPU was busy, integrated from its utilisation."),
    _counter("energy_joules", "energy_joules", "Energy used; the driver's counter if it has one."),
    _counter("throttled_seconds", "throttled_seconds", "Time with reduced clocks, by reason.", "reason"),
)

TREND_METRICS: tuple[NativeMetric, ...] = (
    _gauge(
        "utilization_minute_ratio",
        "utilization_minute_ratio",
        "Mean utilisation over the last minute.",
    ),
    _gauge("power_minute_watts", "power_minute_watts", "Mean power draw over the last minute."),
    _gauge(
        "hung_seconds",
        "hung_seconds",
        "How long the GPU has reported full utilisation with little power and no traffic; 0 if it does not.",
    ),
    _gauge(
        "free_for_seconds",
        "free_seconds",
        "How long the GPU or MIG instance has had no process and no allocation; 0 while it is held.",
    ),
    _gauge(
        "hung_since_seconds", "hung_since", "Deprecated: time since which gpuscope_gpu_hung_seconds counts."
    ),
    _gauge(
        "free_since_seconds", "free_since", "Deprecated: time since which gpuscope_gpu_free_for_seconds counts."
    ),
)
"""`reading` is an attribute of `GpuTrend`."""
INSTANCE_TREND_METRICS = tuple(row for row in TREND_METRICS if row.reading in ("free_seconds", "free_since"))

PROCESS_LABELS = (
    "gpu", "uuid", "pid", "type", "command", "user", "namespace", "pod", "container", "slurm_job",
)  # fmt: skip


def _process(name: str, reading: str, help_text: str) -> NativeMetric:
    return NativeMetric(f"gpuscope_process_{name}", "gauge", reading, help_text, PROCESS_LABELS)


PROCESS_METRICS: tuple[NativeMetric, ...] = (
    _process("memory_bytes", "memory_bytes", "GPU memory the process holds."),
    _process("sm_ratio", "sm_ratio", "Share of SM time the process used."),
    _process("memory_ratio", "memory_ratio", "Share of memory access time the process used."),
    _process("encoder_ratio", "encoder_ratio", "Share of video encoder time the process used."),
    _process("decoder_ratio", "decoder_ratio", "Share of video decoder time the process used."),
    _process("jpeg_ratio", "jpeg_ratio", "Share of JPEG engine time the process used."),
    _process("ofa_ratio", "ofa_ratio", "Share of optical flow engine time the process used."),
    _process("active", "active", "1 if the process worked recently, 0 if it is idle; absent if unknown."),
    _process("age_seconds", "age_seconds", "How long the process has run."),
    _process(
        "idle_seconds",
        "idle_seconds",
        "How long the process has not worked on the GPU; 0 while it works, absent if that is not known.",
    ),
    _process("start_time_seconds", "started_at", "Start time of the process, by the machine's clock."),
    _process(
        "idle_since_seconds",
        "idle_since",
        "Deprecated, use gpuscope_process_idle_seconds: time since which an idle process has not worked.",
    ),
)
PROCESS_WORK_METRICS: tuple[NativeMetric, ...] = (
    _process("cpu_ratio", "cpu_ratio", "CPU time of the process as a share of one core, over the last minute."),
    _process("run_ratio", "run_ratio", "Share of the last minute in which its main thread ran on a CPU."),
    _process(
        "busiest_thread_ratio",
        "busiest_thread_ratio",
        "Share of the last minute in which its busiest thread ran or waited for a core; children count too.",
    ),
    _process(
        "io_wait_ratio",
        "io_wait_ratio",
        "Share of the last minute in which the process, or the child that waits most, was blocked by I/O.",
    ),
    _process(
        "network_wait_ratio",
        "network_wait_ratio",
        "Share of the last minute in which it, or the child that waits most, waited for the network.",
    ),
    _process("resident_memory_bytes", "resident_memory_bytes", "Main memory of the process."),
    NativeMetric(
        "gpuscope_process_children",
        "gauge",
        "children",
        "Child processes of its main thread.",
        PROCESS_LABELS,
        "count",
    ),
    _process(
        "children_cpu_ratio",
        "children_cpu_ratio",
        "CPU time of its children as a share of one core, over the last minute.",
    ),
    NativeMetric(
        "gpuscope_process_read_bytes_total",
        "counter",
        "read_bytes",
        "Bytes that the process and its children read from files, pipes and, except by recv(), from sockets.",
        PROCESS_LABELS,
    ),
)
"""`reading` is an attribute of `ProcessWork`."""
PROCESS_INFO = NativeMetric(
    "gpuscope_process_info",
    "info",
    "",
    "Further labels of a process and its owner; program is equal for processes that belong together; pod "
    "labels as label_*. The value is always 1.",
    (
        "gpu", "uuid", "pid", "group", "container_id", "image", "pod_uid", "job_step", "job_array",
        "job_account", "job_partition", "program",
    ),
)  # fmt: skip
GPU_PROCESSES = _gauge(
    "processes", "", "Processes on the GPU or the MIG instance, by state.", "state", unit="count"
)

GPU_INFO = NativeMetric(
    "gpuscope_gpu_info",
    "info",
    "",
    "The identity of a GPU; the value is always 1.",
    (
        "gpu", "uuid", "model", "node", "driver_version", "cuda_version", "simulated", "pci_bus_id", "serial",
        "brand", "architecture", "compute_capability", "vbios_version", "minor",
    ),
)  # fmt: skip
GPU_UP = _gauge("up", "", "0 if the GPU is known but does not answer.", unit="0 or 1")
THROTTLE_REASON = _gauge(
    "throttle_reason", "throttle_reasons", "1 while this reason reduces the clocks.", "reason", unit="0 or 1"
)


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """Of one vendor's errors, under its word for them."""

    total: NativeMetric
    age: NativeMetric
    last: NativeMetric


def _error_metrics(catalogue: ErrorCatalogue) -> ErrorMetrics:
    key, word, age = catalogue.key, catalogue.word, catalogue.age_metric
    return ErrorMetrics(
        _counter(f"{key}_errors", "", f"{word} errors by code, each counted once.", key),
        _gauge(
            f"{key}_age_seconds",
            "",
            f"How long ago this {word} occurred last; absent if that was before the machine's last boot.",
            key,
        ),
        _gauge(
            f"{key}_last_timestamp_seconds",
            "",
            f"Deprecated, use {age}: time of the last occurrence of this {word}.",
            key,
        ),
    )


ERROR_METRICS = {
    vendor.name: _error_metrics(vendor.errors) for vendor in vendors().values() if vendor.errors is not None
}
INSTANCE_INFOS = {
    vendor.name: vendor.instance_info for vendor in vendors().values() if vendor.instance_info is not None
}


def _agent(name: str, kind: str, help_text: str, *labels: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_{name}", kind, "", help_text, labels, unit)


SOURCE_UP = _agent(
    "source_up", "gauge", "1 if the source answers and its numbers are fresh.", "source", unit="0 or 1"
)
SOURCE_FAILURES = _agent("source_failures_total", "counter", "Failed reads and calls of the source.", "source")
SOURCE_DURATION = _agent("source_duration_seconds", "gauge", "Duration of the last successful read.", "source")
SOURCE_LAST_SUCCESS = _agent(
    "source_last_success_timestamp_seconds", "gauge", "Time of the last successful read.", "source"
)
GPUS_SEEN = _agent("gpus_seen", "gauge", "GPUs that answer.", unit="count")
GPUS_EXPECTED = _agent(
    "gpus_expected", "gauge", "GPUs of this machine according to its PCI bus or settings.", unit="count"
)
NODE_CPU = _agent(
    "node_cpu_utilization_ratio",
    "gauge",
    "Share of the machine's CPU time that was not idle since the previous reading.",
)
AGENT_INFO = _agent("agent_info", "info", "This agent; the value is always 1.", "version", "node", "simulated")
AGENT_SNAPSHOT_AGE = _agent(
    "agent_snapshot_age_seconds",
    "gauge",
    "How old these numbers were when they were served, written or sent.",
)
AGENT_SNAPSHOT_TIME = _agent(
    "agent_snapshot_timestamp_seconds",
    "gauge",
    "Deprecated, use gpuscope_agent_snapshot_age_seconds: time of this snapshot.",
)
AGENT_START_TIME = _agent("agent_start_time_seconds", "gauge", "Start time of the agent.")
AGENT_SNAPSHOTS = _agent("agent_snapshots_total", "counter", "Snapshots published.")
AGENT_CPU = _agent("agent_cpu_seconds_total", "counter", "CPU time used by the agent.")
AGENT_MEMORY = _agent("agent_memory_bytes", "gauge", "Resident memory of the agent.")

NATIVE_METRICS: tuple[NativeMetric, ...] = (
    GPU_INFO, *INSTANCE_INFOS.values(), GPU_UP, *GPU_METRICS, *COUNTER_METRICS, *TREND_METRICS, THROTTLE_REASON,
    *(row for rows in ERROR_METRICS.values() for row in (rows.total, rows.age, rows.last)),
    *PROCESS_METRICS, *PROCESS_WORK_METRICS, PROCESS_INFO, GPU_PROCESSES, *OWNERSHIP_METRICS,
    *LINK_METRICS, *COLLECTIVE_METRICS, SOURCE_UP, SOURCE_FAILURES, SOURCE_DURATION, SOURCE_LAST_SUCCESS,
    GPUS_SEEN, GPUS_EXPECTED, NODE_CPU, AGENT_INFO, AGENT_SNAPSHOT_AGE, AGENT_SNAPSHOT_TIME, AGENT_START_TIME,
    AGENT_SNAPSHOTS, AGENT_CPU, AGENT_MEMORY, *SLURM_CLUSTER_METRICS,
)  # fmt: skip
