"""Joins Slurm's queue with the GPUs of the nodes: which job a GPU is allocated to, whether it is used, by whom.

The agent of a node that has a prolog's files knows this by itself. For the other nodes the cluster's agent says
which job has which index on which node, and the node's agent which GPU has that minor number and which jobs
have processes on it. An index that cannot be mapped, and a node that Slurm does not have, stay without
allocations: a finding must not rest on a guess. But as long as Slurm has given away more GPUs of a node than
those that are mapped, none of the others is known to be free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final

from gpuscope.judge.checks.facts import (
    Facts,
    GpuFacts,
    Labels,
    NodeFacts,
    ProcessFacts,
    SlurmFacts,
    node_name,
)
from gpuscope.model.slurm_gpu_index import NumberedGpu, gpus_by_slurm_index, is_of_model, short_node_name

USED: Final = "gpuscope_allocation_used"
UNALLOCATED: Final = "gpuscope_gpu_unallocated_processes"


class NodesOfCluster:
    def __init__(self, cluster: SlurmFacts) -> None:
        self._cluster = cluster
        self._placed = {job for job, _ in cluster.nodes_of_jobs} | {row["slurm_job"] for row in cluster.gpus}
        # A job that has just started is in the queue before its nodes are known.
        self._all_placed = cluster.jobs.keys() <= self._placed
        self._rows: dict[str, list[Labels]] = defaultdict(list)
        for row in cluster.gpus:
            self._rows[short_node_name(row.get("node", ""))].append(row)
        self._counts = {short_node_name(name): count for name, count in cluster.gpus_of_nodes.items()}
        self._allocated = {short_node_name(name): count for name, count in cluster.allocated_on_nodes.items()}

    def known_of(self, node: NodeFacts) -> Hashable:
        """What the cluster knows that a join of this node depends on: while it is equal, so is the join.
        None for a node of another cluster."""
        name = short_node_name(node_name(node))
        if name not in self._counts:
            return None
        rows = tuple(
            (job := row["slurm_job"], row.get("index"), row.get("model"), self._user(job), self._leader(job))
            for row in self._rows.get(name, ())
        )
        jobs = {process.labels.get("slurm_job", "") for gpu in node.gpus for process in gpu.processes}
        known = rows, self._counts[name], self._allocated.get(name), self._all_placed
        return *known, frozenset(jobs & self._placed)

    def join(self, node: NodeFacts) -> None:
        name = short_node_name(node_name(node))
        if name in self._counts and not _knows_by_itself(node):
            self._join_node(node, self._rows.get(name, ()), name)

    def _join_node(self, node: NodeFacts, rows: Iterable[Labels], name: str) -> None:
        gpus = {gpu.labels["uuid"]: gpu for gpu in node.gpus}
        split = {gpu.parent_uuid for gpu in node.gpus if gpu.parent_uuid}
        by_index = gpus_by_index({uuid: gpu.labels for uuid, gpu in gpus.items()}, self._counts[name])
        holders: dict[str, set[str]] = defaultdict(set)
        known_indices = set()
        for row in rows:
            number = by_index.get(index := to_index(row.get("index", "")))
            is_placed = number is not None and is_of_model(number, row.get("model", ""))
            if number is not None and is_placed:
                holders[number.uuid].add(row["slurm_job"])
            # The index of a GPU that the agent does not see is none of those that it sees.
            if row.get("gres") == "gpu" and (is_placed or (by_index and number is None and index >= 0)):
                known_indices.add(index)
        used = {gpu.labels["uuid"] for gpu in node.gpus if any(map(_job_of, gpu.processes))} - holders.keys()
        is_unclear = self._allocated.get(name, 0) > len(known_indices) + len(used)
        for uuid, gpu in gpus.items():
            if uuid not in split and gpu.plain.get("gpuscope_gpu_up") != 0:
                self._join_gpu(gpu, holders[uuid])
                gpu.may_be_allocated = is_unclear and not holders[uuid]

    def _join_gpu(self, gpu: GpuFacts, holders: set[str]) -> None:
        for job in sorted(holders):
            used = any(self._belongs(process, job) for process in gpu.processes)
            labels = {"slurm_job": job, "user": self._user(job), "uuid": gpu.labels["uuid"]}
            gpu.allocations.append(Facts(labels, {USED: int(used)}))

    def _user(self, job: str) -> str:
        known = self._cluster.jobs.get(job)
        return "" if known is None else known.labels.get("user", "")

    def _leader(self, job: str) -> str:
        """The first component's number if it is one of a heterogeneous job; empty if not.

        An agent that knows jobs from environments has this number for the processes of every component.
        """
        known = self._cluster.jobs.get(job)
        return "" if known is None else known.labels.get("het_job", "")

    def _belongs(self, process: ProcessFacts, job: str) -> bool:
        """By its job, or where the agent does not see that, by its user."""
        number, user = process.labels.get("slurm_job", ""), process.labels.get("user", "")
        if number:
            return number in (job, self._leader(job))
        return bool(user) and user == self._user(job)


def _job_of(process: ProcessFacts) -> str:
    return process.labels.get("slurm_job", "")


def _knows_by_itself(node: NodeFacts) -> bool:
    return any(
        UNALLOCATED in gpu.plain or any(allocation.labels.get("slurm_job") for allocation in gpu.allocations)
        for gpu in node.gpus
    )


def gpus_by_index(gpus: Mapping[str, Labels], count_in_slurm: int | None) -> Mapping[int, NumberedGpu]:
    """The GPUs of one node by Slurm's index. `gpus` are the labels of their info series, by UUID."""
    return gpus_by_slurm_index(_numbered(gpus), count_in_slurm)


def _numbered(gpus: Mapping[str, Labels]) -> Iterator[NumberedGpu]:
    split = {labels["parent_uuid"] for labels in gpus.values() if labels.get("parent_uuid")}
    for uuid, labels in gpus.items():
        if uuid in split:
            continue
        parent = labels.get("parent_uuid", "")
        board = gpus.get(parent, labels)
        number = to_index(board.get("minor", "") or board.get("gpu", ""))
        if parent:
            place = to_index(labels.get("gpu_instance", "")), to_index(labels.get("compute_instance", ""))
            yield NumberedGpu(uuid, number, labels.get("profile", "") or "?", place)
        else:
            yield NumberedGpu(uuid, number)


def to_index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
