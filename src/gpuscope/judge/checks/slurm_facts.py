"""What is known of a Slurm cluster and of its jobs at one moment, sorted from samples of the native family.

Of a cluster they come from the one agent that reads it, of a node's jobs from the node's own agent. Several
clusters may be in one fleet: each is kept by the agent that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

Labels = Mapping[str, str]


@dataclass(slots=True)
class KnownJob:
    """Labels of its info series (user, account, partition, name, array and het job), and its end."""

    labels: Labels = field(default_factory=dict)
    ends_at: float | None = None


@dataclass(slots=True)
class SlurmFacts:
    jobs: dict[str, KnownJob] = field(default_factory=dict)
    """By job id: those that hold resources, as far as they have series."""
    gpus: list[Labels] = field(default_factory=list)
    """Labels of each GPU that a job holds: slurm_job, node, gres, model, index."""
    nodes_of_jobs: list[tuple[str, str]] = field(default_factory=list)
    gpus_of_nodes: Counter[str] = field(default_factory=Counter)
    """How many GPUs Slurm has on each node, MIG instances counted as GPUs."""
    allocated_on_nodes: Counter[str] = field(default_factory=Counter)
    """How many of them Slurm gave to jobs; which ones is not always known."""

    def job(self, labels: Labels) -> KnownJob:
        return self.jobs.setdefault(labels.get("slurm_job", ""), KnownJob())


AddToSlurm = Callable[[SlurmFacts, Labels, float], None]


def _add_job(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.job(labels).labels = labels


def _add_end(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.job(labels).ends_at = value


def _add_gpu(facts: SlurmFacts, labels: Labels, value: float) -> None:
    if labels.get("slurm_job"):  # a series of somebody else may have this name
        facts.gpus.append(labels)


def _add_node_of_job(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.nodes_of_jobs.append((labels.get("slurm_job", ""), labels.get("node", "")))


def _add_node_gpus(facts: SlurmFacts, labels: Labels, value: float) -> None:
    if labels.get("gres") == "gpu" and isfinite(value):
        facts.gpus_of_nodes[labels.get("node", "")] += int(value)
        if labels.get("state") == "allocated":
            facts.allocated_on_nodes[labels.get("node", "")] += int(value)


SLURM_ADDERS: Final[Mapping[str, AddToSlurm]] = {
    "gpuscope_slurm_job_info": _add_job,
    "gpuscope_slurm_job_end_timestamp_seconds": _add_end,
    "gpuscope_slurm_job_gres_info": _add_gpu,
    "gpuscope_slurm_job_node_info": _add_node_of_job,
    "gpuscope_slurm_node_gpus": _add_node_gpus,
}
"""Metrics of a cluster, by the agent that reads it."""
NODE_JOB_METRICS: Final[Mapping[str, AddToSlurm]] = {
    "gpuscope_job_info": _add_job,
    "gpuscope_job_end_timestamp_seconds": _add_end,
}
"""Metrics of a compute node about its own jobs."""
