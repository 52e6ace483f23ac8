"""Which GPUs Slurm gave to jobs in a time range, from the series of the agent that reads Slurm.

The agent of a compute node knows them only with a prolog; without one its accounts have a job's processes and
nothing of the GPUs that the job left alone. Input: the history. Output: the units of each job, by the node's
instance and UUID, found as in `health/slurm_join`. An index that cannot be mapped to a GPU is left out. Shards
and MPS shares are left out too: how much of a GPU they are is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuscope.engines.query_engine import QueryEngine, labelled_values
from gpuscope.health.slurm_join import gpus_by_index, to_index
from gpuscope.prometheus_duration import duration_text
from gpuscope.slurm_gpu_index import NumberedGpu, is_of_model, short_node_name

UnitKey = tuple[str, str]
"""Scraped instance and UUID."""
JOB_GRES = "gpuscope_slurm_job_gres_info"


async def allocated_units(
    engine: QueryEngine, matchers: str, start_ms: int, end_ms: int
) -> dict[str, set[UnitKey]]:
    """By job; `matchers` is the inside of a selector's braces."""
    given = await engine.series([f'{JOB_GRES}{{{matchers},gres="gpu"}}'], start_ms, end_ms)
    if not given:
        return {}
    nodes = await _gpus_of_nodes(engine, start_ms, end_ms)
    units: dict[str, set[UnitKey]] = defaultdict(set)
    for pairs in given:
        labels = dict(pairs)
        for instance, by_index in nodes.get(short_node_name(labels.get("node", "")), {}).items():
            gpu = by_index.get(to_index(labels.get("index", "")))
            if gpu is not None and is_of_model(gpu, labels.get("model", "")):
                units[labels.get("slurm_job", "")].add((instance, gpu.uuid))
    return dict(units)


async def _gpus_of_nodes(
    engine: QueryEngine, start_ms: int, end_ms: int
) -> dict[str, dict[str, Mapping[int, NumberedGpu]]]:
    """By short node name and instance: the GPUs by Slurm's index."""
    infos: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    names: dict[str, str] = {}  # MIG instances have no label `node`
    for pairs in await engine.series(["gpuscope_gpu_info", "gpuscope_mig_info"], start_ms, end_ms):
        labels = dict(pairs)
        instance = labels.get("instance", "")
        names[instance] = labels.get("node", "") or names.get(instance, "")
        infos[instance][labels.get("uuid", "")] = labels
    window = duration_text(max(end_ms - start_ms, 1000))
    counted = await engine.instant(
        f'sum by (node) (last_over_time(gpuscope_slurm_node_gpus{{gres="gpu"}}[{window}]))', end_ms
    )
    counts = {short_node_name(labels.get("node", "")): int(count) for labels, count in labelled_values(counted)}
    nodes: dict[str, dict[str, Mapping[int, NumberedGpu]]] = defaultdict(dict)
    for instance, gpus in infos.items():
        name = short_node_name(names[instance] or instance)
        nodes[name][instance] = gpus_by_index(gpus, counts.get(name))
    return nodes
