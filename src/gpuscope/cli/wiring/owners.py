"""Builds what finds owners: a worker for each lookup that can hang, and the join that uses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.agent.owners.allocation_matching import AllocationMatcher, Claims
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.pods import Pods
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.process_lookup import LookupOnDemand, ProcessLookup, lookup_worker
from gpuscope.agent.owners.process_work import ProcessWorkReader
from gpuscope.agent.owners.users import UserNames
from gpuscope.agent.owners.workload_names import ContainerRuntime, PidLookup, WorkloadNames
from gpuscope.agent.worker import Worker
from gpuscope.base.clock import Clock
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT

if TYPE_CHECKING:
    from gpuscope.agent.owners.job_files import JobFiles


def build_owner_join(
    settings: Settings, clock: Clock, environment: Mapping[str, str] = os.environ
) -> tuple[OwnerJoin, list[Worker[Any]]]:
    """With the workers that it takes values from: only for what this machine has and the settings allow."""
    proc = Proc(settings.path_procfs)
    lookup = ProcessLookup(proc, UserNames(settings.path_rootfs), settings.full_commands)
    worker = lookup_worker(lookup, settings, clock)
    outside = build_outside(settings, clock, environment)
    add_slurm_pids(outside, settings, clock)
    join = OwnerJoin(
        ProcessEnricher(
            settings.idle_after,
            proc,
            LookupOnDemand(lookup, worker),
            outside.names(),
            ProcessWorkReader(proc),
        ),
        OwnerAccounts(max_gap_seconds=max(30.0, 10 * settings.interval)),
        outside.scheduler(),
        outside.job_files,
        settings.node_name(),
    )
    return join, [worker, *outside.workers]


def build_demo_outside(settings: Settings, clock: Clock) -> Outside:
    """For simulated GPUs: nothing of this machine is read unless a setting names it.

    Their processes bring simulated owners, so only allocations are looked up, in a kubelet at another place
    than the usual one and in a folder of job files: for trying gpuscope out on a cluster without GPUs.
    """
    outside = Outside()
    if settings.kubelet_socket != Settings().kubelet_socket:
        _add_kubelet(outside, settings, clock)
    if settings.job_map_dir:
        _add_job_files(outside, settings, clock)
    return outside


def build_demo_owner_join(settings: Settings, max_gap_seconds: float, outside: Outside, node: str) -> OwnerJoin:
    return OwnerJoin(
        ProcessEnricher(settings.idle_after),
        OwnerAccounts(max_gap_seconds),
        outside.scheduler(),
        outside.job_files,
        node,
    )


def on_kubernetes(settings: Settings, environment: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environment or Path(settings.kubelet_socket).parent.is_dir()


@dataclass(slots=True)
class Outside:
    """The workers that ask programs other than the kernel; empty where there are none."""

    pods: Worker[Pods] | None = None
    job_files: Worker[JobFiles] | None = None
    pids: PidLookup | None = None
    runtimes: list[ContainerRuntime] = field(default_factory=list)
    claims: list[Callable[[], Claims]] = field(default_factory=list)
    job_claims: list[Callable[[], Claims]] = field(default_factory=list)
    workers: list[Worker[Any]] = field(default_factory=list)

    def names(self) -> WorkloadNames:
        return WorkloadNames(self.pods, self.runtimes, self.job_files, self.pids)

    def scheduler(self) -> AllocationMatcher:
        return AllocationMatcher(self.claims, self.names().pods, self.job_claims)


def build_outside(settings: Settings, clock: Clock, environment: Mapping[str, str]) -> Outside:
    # Imported where they are used: an agent on a plain machine never loads them.
    outside = Outside()
    if on_kubernetes(settings, environment):
        from gpuscope.agent.owners.pod_reader import pod_worker

        _add_kubelet(outside, settings, clock)
        outside.pods = pod_worker(settings, clock)
        outside.workers.append(outside.pods)
    if settings.container_sockets:
        from gpuscope.agent.owners.container_runtimes import DockerReader, docker_worker

        docker = DockerReader(settings.container_sockets)
        worker = docker_worker(docker, settings, clock)
        outside.runtimes.append(ContainerRuntime(docker, worker, knows_pods=False))
        outside.workers.append(worker)
    if settings.cri_sockets:
        from gpuscope.agent.owners.container_runtimes import CriReader, cri_worker

        cri = CriReader(settings.cri_sockets, settings.path_rootfs)
        worker = cri_worker(cri, settings, clock)
        outside.runtimes.append(ContainerRuntime(cri, worker, knows_pods=True))
        outside.workers.append(worker)
    if settings.job_map_dir:
        _add_job_files(outside, settings, clock)
    return outside


def _add_kubelet(outside: Outside, settings: Settings, clock: Clock) -> None:
    from gpuscope.agent.owners.pod_resources import kubelet_worker

    kubelet = kubelet_worker(settings, clock)
    outside.claims.append(kubelet.fresh)
    outside.workers.append(kubelet)


def _add_job_files(outside: Outside, settings: Settings, clock: Clock) -> None:
    from gpuscope.agent.owners.job_files import job_files_worker

    outside.job_files = job_files = job_files_worker(settings, clock)
    outside.job_claims.append(lambda: _job_claims(job_files))
    outside.workers.append(job_files)


def add_slurm_pids(outside: Outside, settings: Settings, clock: Clock) -> None:
    """Only on a machine with Slurm's commands and configuration."""
    # Not through the plan's class: its package would load the source, which a compute node does without.
    bin_dir = str(getattr(settings, "slurm_bin_dir", ""))
    if not shutil.which(str(Path(bin_dir) / "scontrol") if bin_dir else "scontrol"):
        return
    from gpuscope.agent.owners.node_jobs import SlurmPids, find_scontrol, slurm_pids_worker

    scontrol = find_scontrol(bin_dir)
    if scontrol:
        reader = SlurmPids(scontrol, clock)
        worker = slurm_pids_worker(reader, settings, clock)
        outside.pids = PidLookup(reader, worker)
        outside.workers.append(worker)


def _job_claims(worker: Worker[JobFiles]) -> Claims:
    job_files = worker.fresh()
    return ABSENT if job_files is ABSENT else job_files.claims
