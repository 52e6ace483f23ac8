"""On which nodes a job runs, as Slurm says, and which of the instances that report it are these nodes.

Root of a compute node can write any series in the name of its own instance, also one about a job of another
node. So a job is idle only where Slurm has placed it. The name of a node is the host in the label `instance`,
which the scrape configuration or the token decides. The label `node` is only what the node says of itself:
enough for a warning, not for a command. All agents that read Slurm must name the same nodes.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gpuscope.history.engines.query_engine import LabelledValue
from gpuscope.model.slurm_gpu_index import short_node_name

JobKey = tuple[str, str]
"""Cluster and number."""


@dataclass(frozen=True, slots=True)
class JobNodes:
    nodes: frozenset[str] = frozenset()
    """Empty: not known."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By node: the GPUs of the job whose index is known."""
    contradiction: str = ""
    """Agents that read Slurm do not agree about the job."""

    def node_of(self, names: Iterable[str]) -> str:
        """The node of the job that one of these names is; empty if none is."""
        return next((node for name in names for node in self.nodes if is_same_node(name, node)), "")


UNPLACED = JobNodes()


@dataclass(frozen=True, slots=True)
class NodesOfJobs:
    """`readers` are the agents that read Slurm now, by cluster."""

    readers: Mapping[str, frozenset[str]]
    _nodes: Mapping[JobKey, Mapping[str, frozenset[str]]]
    _gpus: Mapping[JobKey, Mapping[str, int]]

    def of(self, cluster: str, job: str) -> JobNodes:
        named = self._nodes.get((cluster, job), {})
        if not named:
            return UNPLACED
        readers = sorted(self.readers.get(cluster, frozenset()) | named.keys())
        nodes = frozenset[str]().union(*named.values())
        contradiction = ""
        if without := [reader for reader in readers if reader not in named]:
            contradiction = f"{min(named)} and {without[0]} read Slurm, and only {min(named)} has the job"
        elif len(set(named.values())) > 1:
            contradiction = f"{' and '.join(readers[:2])} read Slurm, and name different nodes of the job"
        return JobNodes(nodes, self._gpus.get((cluster, job), {}), contradiction)


def read_nodes_of_jobs(
    readers: Iterable[Mapping[str, str]], nodes: Iterable[Mapping[str, str]], gpus: Iterable[Mapping[str, str]]
) -> NodesOfJobs:
    """The labels of the verified series of `gpuscope_slurm_up`, `…_job_node_info` and `…_job_gres_info`."""
    by_cluster: dict[str, set[str]] = defaultdict(set)
    for labels in readers:
        by_cluster[labels.get("cluster", "")].add(labels.get("instance", ""))
    named: dict[JobKey, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for labels in nodes:
        named[job_key(labels)][labels.get("instance", "")].add(labels.get("node", ""))
    indices: dict[JobKey, set[tuple[str, str, str]]] = defaultdict(set)
    for labels in gpus:
        if labels.get("gres") == "gpu":
            index = labels.get("node", ""), labels.get("model", ""), labels.get("index", "")
            indices[job_key(labels)].add(index)
    return NodesOfJobs(
        {cluster: frozenset(instances) for cluster, instances in by_cluster.items()},
        {job: {name: frozenset(many) for name, many in by.items()} for job, by in named.items()},
        {job: Counter(node for node, _, _ in known) for job, known in indices.items()},
    )


def claimed_names(infos: Iterable[LabelledValue]) -> dict[str, set[str]]:
    """By instance: the names that its node has for itself."""
    names: dict[str, set[str]] = defaultdict(set)
    for labels, _ in infos:
        names[labels.get("instance", "")].add(labels.get("node", ""))
    return names


def job_key(labels: Mapping[str, str]) -> JobKey:
    return labels.get("cluster", ""), labels.get("slurm_job", "")


@lru_cache(maxsize=16_384)
def host_of(instance: str) -> str:
    """The host without its port; empty if it is an address, which is the name of no node."""
    name, colon, port = instance.rpartition(":")
    host = name if colon and port.isdecimal() else instance
    return "" if _is_address(instance) or _is_address(host) else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_same_node(first: str, second: str) -> bool:
    """Equal, or one of them without its domain. Two domains may both have a `node1`."""
    if not first or not second or first == second:
        return bool(first) and first == second
    return ("." not in first or "." not in second) and short_node_name(first) == short_node_name(second)
