"""The native metrics of owners: of most rows `reading` is an attribute of `OwnerUse` or of `Unattributed`."""

from __future__ import annotations

from gpuscope.metrics.families.native.metric import NativeMetric

OWNER_LABELS = ("kind", "namespace", "name", "gpu", "uuid")


def _owner(name: str, kind: str, reading: str, help_text: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_owner_{name}", kind, reading, help_text, OWNER_LABELS, unit)


OWNER_METRICS: tuple[NativeMetric, ...] = (
    _owner("processes", "gauge", "processes", "Processes of a user, pod or job on the GPU.", unit="count"),
    _owner("memory_bytes", "gauge", "memory_bytes", "GPU memory the processes of a user, pod or job hold."),
    _owner("sm_ratio", "gauge", "sm_ratio", "Share of the SMs' time their processes used."),
    _owner(
        "allocated",
        "gauge",
        "allocated",
        "1 if the kubelet gave the GPU to the pod, 0 if the pod uses it without.",
        unit="0 or 1",
    ),
    _owner(
        "held_seconds_total",
        "counter",
        "held_seconds",
        "Time the owner had the GPU: a process on it, or an allocation.",
    ),
    _owner("busy_seconds_total", "counter", "busy_seconds", "SM time the owner's processes used."),
    _owner(
        "energy_joules_total",
        "counter",
        "energy_joules",
        "The GPU's energy by the share of SM time used; what is left is gpuscope_owner_unattributed_*.",
    ),
)
OWNER_GPUS = NativeMetric(
    "gpuscope_owner_gpus_held",
    "gauge",
    "",
    "GPUs and MIG instances a user, pod or job holds: by its processes, or by allocation.",
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
    _unattributed("memory_bytes", "gauge", "memory_bytes", "Memory in use by no owner of this kind."),
    _unattributed("sm_ratio", "gauge", "sm_ratio", "Utilisation by no owner of this kind."),
    _unattributed("busy_seconds_total", "counter", "busy_seconds", "Busy time of no owner of this kind."),
    _unattributed("energy_joules_total", "counter", "energy_joules", "Energy charged to no such owner."),
)
ALLOCATION_USED = NativeMetric(
    "gpuscope_allocation_used",
    "gauge",
    "",
    "A GPU or MIG instance the scheduler handed out: 1 if its holder has a process on it, 0 if it lies unused.",
    ("gpu", "uuid", "resource", "replica", "namespace", "pod", "container", "slurm_job"),
    "0 or 1",
)
OWNER_FAILURES = NativeMetric(
    "gpuscope_owner_lookup_failures_total",
    "counter",
    "",
    "Questions about processes' owners that got no answer, by what was asked.",
    ("part",),
)

OWNERSHIP_METRICS: tuple[NativeMetric, ...] = (
    *OWNER_METRICS, OWNER_GPUS, *UNATTRIBUTED_METRICS, ALLOCATION_USED, OWNER_FAILURES,
)  # fmt: skip
