"""Native metrics of Slurm's nodes: state and flags, reason, CPUs, memory, and GPUs by node and partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpuscope.agent.families.native import slurm_table as rows
from gpuscope.agent.families.slurm_counts import gpus_of_node
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import Maybe
from gpuscope.model.readings.slurm import SlurmNode

BASE_STATES: Final = ("allocated", "down", "idle", "mixed", "unknown")  # shown as 0 too; others only as 1


def node_families(cache: LabelCache, nodes: tuple[SlurmNode, ...]) -> Iterator[MetricFamily]:
    yield cache.family(rows.NODE_STATE, _states(nodes))
    yield cache.family(rows.NODE_FLAG, {(node.name, flag): 1 for node in nodes for flag in sorted(node.flags)})
    reasons = [node for node in nodes if node.reason]
    yield cache.family(rows.NODE_REASON, {(node.name, node.reason, node.reason_by): 1 for node in reasons})
    yield cache.family(rows.NODE_REASON_TIME, {(node.name,): node.reason_at for node in reasons})
    yield cache.family(
        rows.NODE_PARTITION, {(node.name, name): 1 for node in nodes for name in node.partitions}
    )
    cpus: dict[tuple[str, ...], Maybe[float]] = {}
    for node in nodes:
        cpus[node.name, "allocated"] = node.cpus_allocated
        cpus[node.name, "idle"] = node.cpus_idle
        cpus[node.name, "other"] = node.cpus_other
    yield cache.family(rows.NODE_CPUS, cpus)
    yield cache.family(rows.NODE_MEMORY, {(node.name,): node.memory_bytes for node in nodes})
    yield cache.family(
        rows.NODE_MEMORY_ALLOCATED, {(node.name,): node.memory_allocated_bytes for node in nodes}
    )
    yield cache.family(rows.NODE_MEMORY_FREE, {(node.name,): node.memory_free_bytes for node in nodes})
    yield cache.family(rows.NODE_LOAD, {(node.name,): node.cpu_load for node in nodes})
    yield from _gpu_families(cache, nodes)


def _states(nodes: tuple[SlurmNode, ...]) -> dict[tuple[str, ...], Maybe[float]]:
    """One series per node and state, so that a change of state does not end a series."""
    values: dict[tuple[str, ...], Maybe[float]] = {}
    for node in nodes:
        if not node.base_state:
            continue
        for state in BASE_STATES:
            values[node.name, state] = int(state == node.base_state)
        values[node.name, node.base_state] = 1  # also a state that only a newer Slurm has
    return values


def _gpu_families(cache: LabelCache, nodes: tuple[SlurmNode, ...]) -> Iterator[MetricFamily]:
    by_node: dict[tuple[str, ...], Maybe[float]] = {}
    by_partition: Counter[tuple[str, ...]] = Counter()
    cluster: Counter[tuple[str, ...]] = Counter()
    uncounted: set[tuple[str, ...]] = set()  # a sum without one of its nodes would be too low
    for node in nodes:
        uncounted |= node.gres_uncounted
        uncounted |= {(name, *gres) for name in node.partitions for gres in node.gres_uncounted}
        for (kind, model, state), count in gpus_of_node(node).items():
            by_node[node.name, kind, model, state] = count
            cluster[kind, model, state] += count
            for partition in node.partitions:
                by_partition[partition, kind, model, state] += count
    yield cache.family(rows.NODE_GPUS, by_node)
    for row, sums in ((rows.PARTITION_GPUS, by_partition), (rows.GPUS, cluster)):
        yield cache.family(row, {labels: n for labels, n in sums.items() if labels[:-1] not in uncounted})
