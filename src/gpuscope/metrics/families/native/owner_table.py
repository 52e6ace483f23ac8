"""The native metrics of owners. `reading` is usually an attribute of `OwnerUse` or `Unattributed`."""

from __future__ import annotations

from gpuscope.metrics.families.native.metric import NativeMetric

OWNER_LABELS = ("kind", "namespace", "name", "gpu", "uuid")


def _owner(name: str, kind: str, reading: str, help_text: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_owner_{name}", kind, reading, help_text, OWNER_LABELS, unit)


OWNER_METRICS: tuple[NativeMetric, ...] = (
    _owner("processes", "gauge", "processes", "Processes of a user, pod or job on the GPU.", unit="count"),
    _owner("memory_bytes", "gauge", "memory_bytes", "GPU memory the processes of a user, pod or job hold."),
    _owner("sm_ratio", "gauge", "sm_ratio", "Share of SM time used by the processes of a user, pod or job."),
    _owner(
        "allocated",
        "gauge",
        "allocated",
        "1 if the kubelet allocated the GPU to the pod, 0 if the pod uses it without an allocation.",
        unit="0 or 1",
    ),
    _owner(
        "held_seconds_total",
        "counter",
        "held_seconds",
        "Time the owner held the GPU, by a process on it or by an allocation.",
    ),
    _owner(
        "gpu_seconds_total",
        "counter",
        "gpu_seconds",
        "The owner's share of the GPU's time: shared GPUs are split, a MIG instance counts by its slices.",
        unit="GPU-seconds",
    ),
    _owner("busy_seconds_total", "counter", "busy_seconds", "SM time the owner's processes used."),
    _owner(
        "energy_joules_total",
        "counter",
        "energy_joules",
        "The GPU's energy in proportion to SM time; the rest is in gpuscope_owner_unattributed_*.",
    ),
)
OWNER_GPUS = NativeMetric(
    "gpuscope_owner_gpus_held",
    "gauge",
    "",
    "GPUs and MIG instances held by a user, pod or job, by processes or by allocation.",
    ("kind", "namespace", "name"),
    "count",
)

UNATTRIBUTED_LABELS = ("kind", "gpu", "uuid")


def _unattributed(name: str, kind: str, reading: str, help_text: str, unit: str = "") -> NativeMetric:
    return NativeMetric(
        f"gpuscope_owner_unattributed_{name}", kind, reading, help_text, UNATTRIBUTED_LABELS, unit
    )


UNATTRIBUTED_METRICS: tuple[NativeMetric, ...] = (
    _unattributed("processes", "gauge", "processes", "Processes without an owner of this kind.", unit="count"),
    _unattributed("memory_bytes", "gauge", "memory_bytes", "Used memory without an owner of this kind."),
    _unattributed("sm_ratio", "gauge", "sm_ratio", "Utilisation without an owner of this kind."),
    _unattributed(
        "gpu_seconds_total",
        "counter",
        "gpu_seconds",
        "Time in which the GPU was held, and not by an owner of this kind.",
        unit="GPU-seconds",
    ),
    _unattributed("busy_seconds_total", "counter", "busy_seconds", "Busy time without an owner of this kind."),
    _unattributed("energy_joules_total", "counter", "energy_joules", "Energy without an owner of this kind."),
)
OBSERVED_SECONDS = NativeMetric(
    "gpuscope_gpu_observed_seconds_total",
    "counter",
    "",
    "Time in which the GPU was read: the sum of its held, free and stranded seconds.",
    ("gpu", "uuid"),
)
HELD_SECONDS = NativeMetric(
    "gpuscope_gpu_held_seconds_total",
    "counter",
    "",
    "Time in which somebody held the GPU or MIG instance; an instance counts by its slices.",
    ("gpu", "uuid"),
    "GPU-seconds",
)
FREE_SECONDS = NativeMetric(
    "gpuscope_gpu_free_seconds_total",
    "counter",
    "",
    "Time in which nobody held the GPU or MIG instance; an instance counts by its slices.",
    ("gpu", "uuid"),
    "GPU-seconds",
)
STRANDED_SECONDS = NativeMetric(
    "gpuscope_gpu_stranded_seconds_total",
    "counter",
    "",
    "Time of the compute slices of a split GPU that no MIG instance has.",
    ("gpu", "uuid"),
    "GPU-seconds",
)
ALLOCATION_USED = NativeMetric(
    "gpuscope_allocation_used",
    "gauge",
    "",
    "An allocated GPU or MIG instance: 1 if its owner has a process on it, 0 if it is unused.",
    ("gpu", "uuid", "resource", "replica", "namespace", "pod", "container", "slurm_job"),
    "0 or 1",
)
OWNER_FAILURES = NativeMetric(
    "gpuscope_owner_lookup_failures_total",
    "counter",
    "",
    "Failed lookups of process owners, by kind of lookup.",
    ("part",),
)

OWNERSHIP_METRICS: tuple[NativeMetric, ...] = (
    *OWNER_METRICS, OWNER_GPUS, *UNATTRIBUTED_METRICS, OBSERVED_SECONDS, HELD_SECONDS, FREE_SECONDS,
    STRANDED_SECONDS, ALLOCATION_USED, OWNER_FAILURES,
)  # fmt: skip
