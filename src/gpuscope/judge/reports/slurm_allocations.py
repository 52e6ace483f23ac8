"""Which GPUs Slurm gave to jobs in a time range, from the series of the agent that reads Slurm.

The agent of a compute node knows them only with a prolog; without one its accounts have a job's processes and
nothing of the GPUs that the job left alone. Input: the history. Output: the units of each job, by the node's
instance and UUID, found as in `judge/checks/slurm_join`. An index that cannot be mapped to a GPU is left out.
Shards and MPS shares are left out too: how much of a GPU they are is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuscope.base.go_quote import quote
from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import QueryEngine, labelled_values
from gpuscope.history.promql.frame import Bools, Floats
from gpuscope.judge.checks.finding import GpuKey
from gpuscope.judge.checks.slurm_join import gpus_by_index, to_index
from gpuscope.judge.reports.counter_growth import ChunkGrid, counter_growth
from gpuscope.judge.reports.gpu_identities import gpu_key
from gpuscope.judge.reports.gpu_reporters import GpuReporters
from gpuscope.model.slurm_gpu_index import NumberedGpu, is_of_model, short_node_name

NodeGpus = Mapping[str, Mapping[str, Mapping[int, NumberedGpu]]]
"""By short node name and instance: the GPUs by Slurm's index."""
JOB_GRES: Final = "gpuscope_slurm_job_gres_info"
MIN_UNUSED_SECONDS: Final = 60.0
"""Slurm's placements are read once a minute: less comes from the different read times."""
MAX_ALLOCATIONS: Final = 10_000
"""Series of one report; their samples are counted in two queries."""


class TooManyAllocations(Exception):
    """Not an error: the report goes on without them, and says so."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} allocations")
        self.count = count


async def allocated_units(
    engine: QueryEngine, matchers: str, start_ms: int, end_ms: int
) -> dict[str, set[GpuKey]]:
    """By job; `matchers` is the inside of a selector's braces."""
    # A list of series may have those of a time around the range: another run of the job.
    span = duration_text(max(end_ms - start_ms, 1000))
    given = await engine.instant(f'count_over_time({JOB_GRES}{{{matchers},gres="gpu"}}[{span}])', end_ms)
    if not given.labels:
        return {}
    if len(given.labels) > MAX_ALLOCATIONS:
        raise TooManyAllocations(len(given.labels))
    nodes = await _gpus_of_nodes(engine, start_ms, end_ms)
    units: dict[str, set[GpuKey]] = defaultdict(set)
    for pairs in given.labels:
        labels = dict(pairs)
        units[labels.get("slurm_job", "")].update(_units_of(labels, nodes))
    return dict(units)


def _units_of(labels: Mapping[str, str], nodes: NodeGpus) -> Iterator[GpuKey]:
    """The unit that a series of a job's GPU is about; several if a node has several agents."""
    for instance, by_index in nodes.get(short_node_name(labels.get("node", "")), {}).items():
        gpu = by_index.get(to_index(labels.get("index", "")))
        if gpu is not None and is_of_model(gpu, labels.get("model", "")):
            yield instance, gpu.uuid


async def _gpus_of_nodes(
    engine: QueryEngine, start_ms: int, end_ms: int, read: Mapping[GpuKey, Collection[str]] | None = None
) -> NodeGpus:
    """With `read`, only GPUs that were read in the range: an engine lists the series of whole blocks, and a GPU
    that appears after the range would change which one has an index of Slurm."""
    infos: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    names: dict[str, str] = {}  # MIG instances have no label `node`
    for pairs in await engine.series(["gpuscope_gpu_info", "gpuscope_mig_info"], start_ms, end_ms):
        labels = dict(pairs)
        instance = labels.get("instance", "")
        indices = None if read is None else read.get((instance, labels.get("uuid", "")), ())
        if indices is not None and not (indices if "gpu" not in labels else labels["gpu"] in indices):
            continue
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


async def released_chunks(engine: QueryEngine, matchers: str, chunks: ChunkGrid) -> dict[GpuKey, Bools]:
    """By unit of a job: the chunks in which Slurm was read and the job did not have it, as between the runs of
    a job that was requeued. A chunk without a reading of Slurm is not one of them."""
    nodes = await _gpus_of_nodes(engine, chunks.start_ms, chunks.end_ms)
    given = await chunks.read(engine, "count_over_time", f'{JOB_GRES}{{{matchers},gres="gpu"}}')
    read = await _slurm_samples(engine, chunks)
    released: dict[GpuKey, Bools] = {}
    for pairs, present in zip(given.labels, given.present, strict=True):
        labels = dict(pairs)
        counts = read.get(labels.get("instance", ""), np.zeros(chunks.count))
        for unit in _units_of(labels, nodes):
            not_given = (counts > 0) & ~present
            released[unit] = released.get(unit, not_given) & not_given
    return released


@dataclass(frozen=True, slots=True)
class UnusedAllocation:
    """A unit that Slurm gave to a job, and no process was on it."""

    job: str
    unit: GpuKey
    by_chunk: Floats
    """GPU-seconds, as the agent's counters of free time have them."""


@dataclass(frozen=True, slots=True)
class UnusedAllocations:
    chunks: ChunkGrid
    listed: list[UnusedAllocation]
    users: Mapping[str, str]
    """By job."""
    accounts: Mapping[str, str]
    """By job."""


async def unused_allocations(
    engine: QueryEngine,
    start_ms: int,
    end_ms: int,
    reporters: GpuReporters,
    read: Mapping[GpuKey, Collection[str]],
) -> UnusedAllocations | None:
    """Time that agents counted as free and Slurm had given away; None where Slurm gave nothing. `read` has the
    indices of each unit that has samples in the range.

    In each chunk a unit was given for the share of the cluster agent's samples that say so. What is held of
    that is used; the rest is not, as far as the unit was free. Raises TooManyAllocations.
    """
    units = await allocated_units(engine, 'slurm_job!=""', start_ms, end_ms)
    if not units:
        return None
    chunks = ChunkGrid.of(start_ms, end_ms)
    shares = await _given_shares(engine, chunks, await _gpus_of_nodes(engine, start_ms, end_ms, read))
    uuids = quote("|".join(sorted({uuid for _, uuid in shares if uuid.replace("-", "").isalnum()})))
    free = await _growth_of_units(
        engine, f"gpuscope_gpu_free_seconds_total{{uuid=~{uuids}}}", chunks, reporters
    )
    held = await _growth_of_units(
        engine, f"gpuscope_gpu_held_seconds_total{{uuid=~{uuids}}}", chunks, reporters
    )
    listed = []
    nothing = np.zeros(chunks.count)
    for unit, by_job in shares.items():
        given = np.minimum(1.0, sum(by_job.values(), nothing))
        free_seconds, held_seconds = free.get(unit, nothing), held.get(unit, nothing)
        unused = np.clip(given * (free_seconds + held_seconds) - held_seconds, 0.0, free_seconds)
        total = np.maximum(sum(by_job.values(), nothing), 1e-9)
        for job, share in by_job.items():
            amounts = unused * share / total
            if amounts.sum() >= MIN_UNUSED_SECONDS:
                listed.append(UnusedAllocation(job, unit, amounts))
    infos = [
        dict(labels)
        for labels in await engine.series(["gpuscope_slurm_job_info", "gpuscope_job_info"], start_ms, end_ms)
    ]
    return UnusedAllocations(
        chunks,
        listed,
        {info.get("slurm_job", ""): info["user"] for info in infos if info.get("user")},
        {info.get("slurm_job", ""): info["account"] for info in infos if info.get("account")},
    )


async def _given_shares(
    engine: QueryEngine, chunks: ChunkGrid, nodes: NodeGpus
) -> dict[GpuKey, dict[str, Floats]]:
    """By unit and job: the share of each chunk in which the job had the unit."""
    given = await chunks.read(engine, "count_over_time", f'{JOB_GRES}{{gres="gpu"}}')
    samples = await _slurm_samples(engine, chunks)
    shares: dict[GpuKey, dict[str, Floats]] = defaultdict(dict)
    for pairs, values, present in zip(given.labels, given.values, given.present, strict=True):
        labels = dict(pairs)
        counts = samples.get(labels.get("instance", ""))
        if counts is None:
            continue
        share = np.where(present & (counts > 0), values / np.maximum(counts, 1.0), 0.0)
        for unit in _units_of(labels, nodes):
            job = labels.get("slurm_job", "")
            shares[unit][job] = np.minimum(1.0, shares[unit].get(job, np.zeros(chunks.count)) + share)
    return shares


async def _slurm_samples(engine: QueryEngine, chunks: ChunkGrid) -> dict[str, Floats]:
    """How often Slurm was read in each chunk, by the instance of the agent that reads it."""
    read = await chunks.read(engine, "count_over_time", "gpuscope_slurm_up")
    return {
        dict(pairs).get("instance", ""): np.where(present, values, 0.0)
        for pairs, values, present in zip(read.labels, read.values, read.present, strict=True)
    }


async def _growth_of_units(
    engine: QueryEngine, selector: str, chunks: ChunkGrid, reporters: GpuReporters
) -> dict[GpuKey, Floats]:
    grown = await counter_growth(engine, selector, chunks.start_ms, chunks.end_ms, reporters)
    found: dict[GpuKey, Floats] = {}
    for pairs, amounts in zip(grown.labels, grown.by_chunk, strict=True):
        found[gpu_key(dict(pairs))] = amounts
    return found
