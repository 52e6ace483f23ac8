"""The native metrics of owners. `reading` is usually an attribute of `OwnerUse` or `Unattributed`."""

from __future__ import annotations

from gpuscope.model.native_metric import NativeMetric

OWNER_LABELS = ("kind", "namespace", "name", "gpu", "uuid")


def _owner(name: str, kind: str, reading: str, help_text: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_owner_{name}", kind, reading, help_text, OWNER_LABELS, unit)


OWNER_METRICS: tuple[NativeMetric, ...] = (
    _owner(
        "processes", "gauge", "processes", "Processes of a user, pod, job or account on the GPU.", unit="count"
    ),
    _owner(
        "memory_bytes", "gauge", "memory_bytes", "GPU memory the processes of a user, pod, job or account hold."
    ),
    _owner(
        "sm_ratio",
        "gauge",
        "sm_ratio",
        "Share of SM time used by the processes of a user, pod, job or account.",
    ),
    _owner(
        "allocated",
        "gauge",
        "allocated",
        "1 if the GPU is allocated to the pod or job, 0 if it is used without an allocation.",
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
    _owner(
        "busy_seconds_total",
        "counter",
        "busy_seconds",
        "SM time the owner's processes used; of a MIG instance with one owner its activity, by slices.",
    ),
    _owner(
        "unknown_seconds_total",
        "counter",
        "unknown_seconds",
        "Of gpu_seconds: time in which the owner's SM time is not known, as on a shared MIG instance.",
        unit="GPU-seconds",
    ),
    _owner(
        "idle_gpu_seconds_total",
        "counter",
        "idle_gpu_seconds",
        "Of gpu_seconds: stretches of 15 minutes and more without work on any engine.",
        unit="GPU-seconds",
    ),
    _owner(
        "idle_seconds",
        "gauge",
        "idle_seconds",
        "How long the owner has held the GPU without work on any engine; 0 while it works.",
    ),
    _owner(
        "energy_joules_total",
        "counter",
        "energy_joules",
        "The GPU's energy by SM time, that of pauses to the holders; of a MIG instance an estimate.",
    ),
)
OWNER_GPUS = NativeMetric(
    "gpuscope_owner_gpus_held",
    "gauge",
    "",
    "GPUs and MIG instances held by a user, pod, job or account, by processes or by allocation.",
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
UNIT_METRICS: tuple[NativeMetric, ...] = (
    NativeMetric(
        "gpuscope_gpu_held_busy_seconds_total",
        "counter",
        "busy_seconds",
        "SM time that all holders together used; a MIG instance counts by its slices.",
        ("gpu", "uuid"),
        "GPU-seconds",
    ),
    NativeMetric(
        "gpuscope_gpu_held_unknown_seconds_total",
        "counter",
        "unknown_seconds",
        "Of the held seconds: time in which the SM time of the holders is not known.",
        ("gpu", "uuid"),
        "GPU-seconds",
    ),
    NativeMetric(
        "gpuscope_gpu_held_idle_seconds_total",
        "counter",
        "idle_seconds",
        "Of the held seconds: stretches of 15 minutes and more without work on any engine.",
        ("gpu", "uuid"),
        "GPU-seconds",
    ),
    NativeMetric(
        "gpuscope_gpu_held_energy_joules_total",
        "counter",
        "energy_joules",
        "Energy of the held GPU or MIG instance; of an instance an estimate.",
        ("gpu", "uuid"),
    ),
)
"""What all holders of a GPU or MIG instance did together; `reading` is an attribute of `UnitTime`."""
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
UNLISTED_MEMORY = NativeMetric(
    "gpuscope_gpu_unlisted_memory_bytes",
    "gauge",
    "",
    "Memory in use that no process listed by the driver has; absent unless the memory of each is known.",
    ("gpu", "uuid"),
)
UNALLOCATED_PROCESSES = NativeMetric(
    "gpuscope_gpu_unallocated_processes",
    "gauge",
    "",
    "Processes on the GPU or MIG instance that belong to no job it is allocated to; only on Slurm nodes.",
    ("gpu", "uuid"),
    "count",
)
JOB_INFO = NativeMetric(
    "gpuscope_job_info",
    "info",
    "",
    "A Slurm job that holds or uses a GPU of this node, and whose it is; the value is always 1.",
    ("slurm_job", "array", "user", "account", "partition"),
)
JOB_END = NativeMetric(
    "gpuscope_job_end_timestamp_seconds",
    "gauge",
    "",
    "When the job's time limit ends it.",
    ("slurm_job",),
)
POD_LABELS = NativeMetric(
    "gpuscope_pod_labels",
    "info",
    "",
    "Labels of a pod that holds a GPU, those of --pod-labels; the value is always 1.",
    ("namespace", "pod"),
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
    *UNIT_METRICS, STRANDED_SECONDS, ALLOCATION_USED, UNALLOCATED_PROCESSES, UNLISTED_MEMORY, JOB_INFO, JOB_END,
    POD_LABELS, OWNER_FAILURES,
)  # fmt: skip
