"""Native metrics of owners: use of GPUs by users, pods, jobs and accounts, use without an owner, allocations.

Also the jobs of this node, as far as the node itself knows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuscope.agent.families.native.owner_table import (
    ALLOCATION_USED,
    FREE_SECONDS,
    HELD_SECONDS,
    JOB_END,
    JOB_INFO,
    OBSERVED_SECONDS,
    OWNER_FAILURES,
    OWNER_GPUS,
    OWNER_LABELS,
    OWNER_METRICS,
    OWNERSHIP_METRICS,
    POD_LABELS,
    STRANDED_SECONDS,
    UNALLOCATED_PROCESSES,
    UNATTRIBUTED_LABELS,
    UNATTRIBUTED_METRICS,
    UNIT_METRICS,
    UNLISTED_MEMORY,
)
from gpuscope.agent.families.native.process_metrics import pod_label_pairs
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.agent.families.unit_processes import unit_names
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, label_texts
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Owner,
    OwnerKey,
    OwnerUse,
    Snapshot,
    Unattributed,
    Uuid,
    unit_uuid,
)

GPU_LABELS = ("gpu", "uuid")

# Only counters are exported for an owner that has ended.
_COUNTERS = frozenset(row.name for row in OWNER_METRICS if row.type == "counter")


_TIMES = (OBSERVED_SECONDS, HELD_SECONDS, FREE_SECONDS, STRANDED_SECONDS)


class OwnerMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._wanted = any(row.name in only for row in OWNERSHIP_METRICS)
        self._use_rows = tuple(row for row in OWNER_METRICS if row.name in only)
        self._left_rows = tuple(row for row in UNATTRIBUTED_METRICS if row.name in only)
        self._has_times = any(row.name in only for row in _TIMES)
        self._labels: dict[tuple[str, ...], LabelSet] = {}
        self._used: dict[tuple[str, ...], LabelSet] = {}
        self._names: dict[Uuid, str] = {}

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        if self._wanted:
            yield from (family for family in self._families(snapshot) if family.name in self._only)

    def _families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        """Rows that are not selected may be left out: the live view needs two of them each second."""
        ownership, names = snapshot.ownership, self._unit_names(snapshot)
        self._labels, self._used = self._used, {}  # keep the label sets of the last cycle, drop older ones
        uses = [(self._use_labels(use, names), use) for use in ownership.uses] if self._use_rows else []
        for row in self._use_rows:
            yield row.family(
                [
                    (labels, int(value) if isinstance(value, bool) else value)
                    for labels, use in uses
                    if (use.here or row.name in _COUNTERS)
                    and (value := getattr(use, row.reading)) is not ABSENT
                ]
            )
        if OWNER_GPUS.name in self._only:
            yield self._gpus_held(ownership.uses)
        left = (
            [(self._left_labels(left, names), left) for left in ownership.unattributed]
            if self._left_rows
            else []
        )
        for row in self._left_rows:
            yield row.family(
                [(labels, value) for labels, one in left if (value := getattr(one, row.reading)) is not ABSENT]
            )
        if self._has_times:
            yield from self._times(snapshot, names)
        yield _allocations(snapshot, names)
        yield from self._job_families(snapshot, names)
        yield _pod_labels(snapshot)
        yield OWNER_FAILURES.family(
            [Sample(LabelSet((("part", part),)), count) for part, count in sorted(ownership.failures.items())]
        )

    def _job_families(self, snapshot: Snapshot, names: Mapping[Uuid, str]) -> Iterator[MetricFamily]:
        ownership = snapshot.ownership
        for row, values in (
            (UNALLOCATED_PROCESSES, ownership.unallocated),
            (UNLISTED_MEMORY, ownership.unlisted_memory),
        ):
            samples = [
                Sample(self._kept(GPU_LABELS, (names.get(uuid, ""), uuid)), value)
                for uuid, value in values.items()
            ]
            yield row.family(samples)
        infos = [
            label_texts(JOB_INFO.labels, (job, about.array, about.user, about.account, about.partition))
            for job, about in ownership.jobs.items()
        ]
        yield JOB_INFO.family([Sample(labels, 1) for labels in infos])
        yield JOB_END.family(
            [
                Sample(LabelSet((("slurm_job", job),)), about.ends_at)
                for job, about in ownership.jobs.items()
                if about.ends_at is not ABSENT
            ]
        )

    def _times(self, snapshot: Snapshot, names: Mapping[Uuid, str]) -> Iterator[MetricFamily]:
        times = snapshot.ownership.times
        boards = [
            (self._kept(GPU_LABELS, (names.get(gpu_time.gpu_uuid, ""), gpu_time.gpu_uuid)), gpu_time)
            for gpu_time in times
        ]
        units = [
            (self._kept(GPU_LABELS, (names.get(unit.uuid, ""), unit.uuid)), unit)
            for time in times
            for unit in time.units
        ]
        yield OBSERVED_SECONDS.family([Sample(labels, one.observed_seconds) for labels, one in boards])
        yield HELD_SECONDS.family([Sample(labels, unit.held_seconds) for labels, unit in units])
        yield FREE_SECONDS.family([Sample(labels, unit.free_seconds) for labels, unit in units])
        yield STRANDED_SECONDS.family([Sample(labels, one.stranded_seconds) for labels, one in boards])
        for row in UNIT_METRICS:
            yield row.family(
                [
                    Sample(labels, value)
                    for labels, unit in units
                    if (value := getattr(unit, row.reading)) is not ABSENT
                ]
            )

    def _unit_names(self, snapshot: Snapshot) -> dict[Uuid, str]:
        """Also of GPUs and instances that are gone and whose counters are still exported: an empty `gpu` label
        would make another series of them, which would count everything a second time."""
        names, ownership = unit_names(snapshot.devices), snapshot.ownership
        exported = {unit_uuid(use) for use in ownership.uses}
        for time in ownership.times:
            exported |= {time.gpu_uuid, *(unit.uuid for unit in time.units)}
        for uuid in exported - names.keys():
            if uuid in self._names:
                names[uuid] = self._names[uuid]
        self._names = names
        return names

    def _kept(self, names: tuple[str, ...], texts: tuple[str, ...]) -> LabelSet:
        known = self._used.get(texts) or self._labels.get(texts)
        if known is None:
            known = label_texts(names, texts)
        self._used[texts] = known
        return known

    def _use_labels(self, use: OwnerUse, names: Mapping[Uuid, str]) -> LabelSet:
        uuid = unit_uuid(use)
        owner = use.owner
        return self._kept(OWNER_LABELS, (owner.kind, owner.namespace, owner.name, names.get(uuid, ""), uuid))

    def _left_labels(self, one: Unattributed, names: Mapping[Uuid, str]) -> LabelSet:
        uuid = unit_uuid(one)
        return self._kept(UNATTRIBUTED_LABELS, (one.kind, names.get(uuid, ""), uuid))

    def _gpus_held(self, uses: tuple[OwnerUse, ...]) -> MetricFamily:
        held: Counter[OwnerKey] = Counter(use.owner for use in uses if use.here)
        return OWNER_GPUS.family(
            [
                Sample(self._kept(OWNER_GPUS.labels, (owner.kind, owner.namespace, owner.name)), count)
                for owner, count in held.items()
            ]
        )


def _allocations(snapshot: Snapshot, names: Mapping[Uuid, str]) -> MetricFamily:
    allocations = snapshot.ownership.allocations
    samples: dict[LabelSet, int] = {}
    for allocation in () if allocations is ABSENT else allocations:
        labels = _allocation_labels(allocation, names)
        samples[labels] = max(samples.get(labels, 0), int(allocation.used))  # equal labels are one series
    return ALLOCATION_USED.family(list(samples.items()))


def _allocation_labels(allocation: Allocation, names: Mapping[Uuid, str]) -> LabelSet:
    uuid = unit_uuid(allocation)
    texts = (
        "" if uuid is ABSENT else names.get(uuid, ""),
        allocation.device_id if uuid is ABSENT else uuid,  # also export ids of GPUs that are not visible
        allocation.resource,
        allocation.replica,
        allocation.namespace,
        allocation.pod,
        allocation.container,
        allocation.job,
    )
    return label_texts(ALLOCATION_USED.labels, texts)


def _pod_labels(snapshot: Snapshot) -> MetricFamily:
    """Of every pod whose labels are known, also if it has none: then it is known that it has none."""
    pods: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
    allocations = snapshot.ownership.allocations
    processes = () if snapshot.processes is ABSENT else snapshot.processes
    holders: list[Owner | Allocation] = [process.owner for process in processes]
    holders += () if allocations is ABSENT else allocations
    for holder in holders:
        if holder.pod is not ABSENT and holder.pod_labels is not ABSENT:
            pods["" if holder.namespace is ABSENT else holder.namespace, holder.pod] = holder.pod_labels
    samples = []
    for (namespace, pod), labels in pods.items():
        samples.append(Sample(LabelSet((("namespace", namespace), ("pod", pod), *pod_label_pairs(labels))), 1))
    return POD_LABELS.family(samples)
