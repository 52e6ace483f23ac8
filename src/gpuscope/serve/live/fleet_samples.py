"""The samples of the live picture by node, so that later steps work only on nodes that changed.

Input: samples from the collectors, the store or an engine. Output: a list per node. While nothing of a node
changes, its list is the same object in every update. Lists are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpuscope.judge.checks.facts import (
    AGENT_AGE,
    ERROR_AGES,
    IDLE_SECONDS,
    NODE_JOB_METRICS,
    SLURM_ADDERS,
    TAKEN_AT,
    Sample,
)

FleetSamples = Mapping[str, Sequence[Sample]]
"""By the label `instance`; samples without it are under the empty name."""

SortLater = Callable[[], FleetSamples]
"""Makes them, in a worker thread: it takes long for a large fleet."""

SOURCE_UP: Final = "gpuscope_source_up"
GPU_INFO: Final = "gpuscope_gpu_info"
_PRESENCE: Final = frozenset({TAKEN_AT, SOURCE_UP, GPU_INFO})


def by_node(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        instance = sample[1].get("instance", "")
        try:
            found[instance].append(sample)
        except KeyError:
            found[instance] = [sample]
    return found


class PresenceSamples:
    """Of each node the few samples that show whether it is there and whether its GPUs are read."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[Sample], list[Sample]]] = {}

    def select(self, fleet: FleetSamples) -> list[Sample]:
        known = self._known
        self._known = {
            instance: before
            if (before := known.get(instance)) is not None and before[0] is samples
            else (samples, _presence(samples))
            for instance, samples in fleet.items()
        }
        return [sample for _, found in self._known.values() for sample in found]


def _presence(samples: Iterable[Sample]) -> list[Sample]:
    found: list[Sample] = []
    has_gpu = False
    # First all in one pass that costs next to nothing: hardly any sample of a large node is one of these.
    for sample in [sample for sample in samples if sample[0] in _PRESENCE]:
        name = sample[0]
        if name == TAKEN_AT or (name == SOURCE_UP and sample[2] == 0):
            found.append(sample)
        elif name == GPU_INFO and not has_gpu:  # one is enough
            has_gpu = True
            found.append(sample)
    return found


FAST_METRICS: Final = (
    "gpuscope_agent_info", TAKEN_AT, AGENT_AGE, "gpuscope_source_up",
    "gpuscope_gpus_seen", "gpuscope_gpus_expected", "gpuscope_gpu_up", "gpuscope_gpu_utilization_ratio",
    "gpuscope_gpu_memory_used_bytes", "gpuscope_gpu_power_watts", "gpuscope_gpu_temperature_celsius",
    "gpuscope_gpu_sm_active_ratio", "gpuscope_gpu_tensor_active_ratio", "gpuscope_gpu_dram_active_ratio",
    "gpuscope_process_memory_bytes", "gpuscope_process_sm_ratio", "gpuscope_process_active",
    "gpuscope_process_start_time_seconds", IDLE_SECONDS,
    "gpuscope_allocation_used", "gpuscope_node_cpu_utilization_ratio", "node_load1",
    "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes", *NODE_JOB_METRICS,
)  # fmt: skip
"""Read for every picture."""
SLOW_METRICS: Final = frozenset(
    {
        "gpuscope_gpu_info", "gpuscope_mig_info", "gpuscope_gpu_processes", "gpuscope_gpu_memory_total_bytes",
        "gpuscope_gpu_power_limit_watts", "gpuscope_gpu_pcie_link_width_max", *ERROR_AGES,
        "gpuscope_gpu_unallocated_processes", "gpuscope_gpu_utilization_minute_ratio",
        "gpuscope_process_cpu_ratio", "gpuscope_process_run_ratio", "gpuscope_process_busiest_thread_ratio",
        "gpuscope_process_io_wait_ratio", "gpuscope_process_network_wait_ratio",
        "gpuscope_process_resident_memory_bytes", "gpuscope_process_children",
        "gpuscope_process_children_cpu_ratio", *SLURM_ADDERS,
    }
)  # fmt: skip
"""Limits, identities, means over a minute, Slurm's jobs: they change at most every 5 s."""
LIVE_METRICS: Final = tuple(sorted({*FAST_METRICS, *SLOW_METRICS}))

NEEDED_VALUES: Final = {"gpuscope_gpu_power_limit_watts": frozenset({"enforced", "default"})}
"""Of these metrics only samples whose further label has one of these values are read."""
