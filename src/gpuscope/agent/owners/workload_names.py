"""Names of pods, containers and jobs, merged from the workers that know them.

Pods come from Kubernetes, containers from any number of runtimes, jobs from a prolog's files and slurmstepd.
Everything may be absent: a machine without Kubernetes has no pods, and a runtime that does not answer has no
names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gpuscope.agent.owners.attribution import ContainerInfo, ContainerInfos
from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.agent.owners.node_jobs import NO_JOBS, NodeJobs
from gpuscope.agent.owners.pods import NO_PODS, Pods
from gpuscope.agent.owners.process_lookup import ProcessKey
from gpuscope.agent.worker import Worker
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES

if TYPE_CHECKING:
    from gpuscope.agent.owners.job_files import JobFiles
    from gpuscope.agent.owners.node_jobs import JobsByPid, SlurmPids

_UNNAMED: Final = ContainerInfo()
_NONE_KNOWN: Final[ContainerInfos] = {}


class ContainerRequests(Protocol):
    """The reader of a runtime's worker: it asks the runtime about these containers and forgets all others."""

    def want(self, container_ids: frozenset[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    requests: ContainerRequests
    worker: Worker[ContainerInfos]
    knows_pods: bool  # whether it has useful names for containers in pods: containerd and CRI-O do

    def known(self) -> ContainerInfos:
        containers = self.worker.fresh()
        return _NONE_KNOWN if containers is ABSENT else containers

    def is_pending(self, cgroup: CgroupFacts) -> bool:
        """Whether the runtime has yet to say if it knows this container."""
        if cgroup.container_id is ABSENT or (cgroup.pod_uid is not ABSENT and not self.knows_pods):
            return False
        return cgroup.container_id not in self.known()


@dataclass(frozen=True, slots=True)
class PidLookup:
    """slurmstepd's answers, and the reader that asks for them."""

    reader: SlurmPids
    worker: Worker[JobsByPid]


class WorkloadNames:
    def __init__(
        self,
        pods: Worker[Pods] | None = None,
        runtimes: Sequence[ContainerRuntime] = (),
        job_files: Worker[JobFiles] | None = None,
        pids: PidLookup | None = None,
    ) -> None:
        self._pods = pods
        self._runtimes = runtimes
        self._job_files = job_files
        self._pids = pids
        self._jobs = NO_JOBS
        self._jobs_from: tuple[object, object] = (None, None)
        self._merged_from: list[ContainerInfos] = []
        self._merged: ContainerInfos = {}

    def pods(self) -> Pods:
        pods = ABSENT if self._pods is None else self._pods.fresh()
        return NO_PODS if pods is ABSENT else pods

    def containers(self, outside_pods: frozenset[str], in_pods: frozenset[str]) -> ContainerInfos:
        """The same object until a runtime has something new: owners are made again when it is another."""
        for runtime in self._runtimes:
            # A process in the agent's own pod shows no pod UID, so its container counts as outside pods.
            runtime.requests.want(outside_pods | in_pods if runtime.knows_pods else outside_pods)
        known = [runtime.known() for runtime in self._runtimes]
        if [id(names) for names in known] != [id(names) for names in self._merged_from]:
            self._merged_from = known
            # A runtime that does not know a container must not hide the name that another has for it.
            self._merged = {
                container_id: info
                for containers in known
                for container_id, info in containers.items()
                if info != _UNNAMED
            }
        return self._merged

    def jobs(self, without_job: Collection[ProcessKey]) -> NodeJobs:
        """The same object until a prolog or slurmstepd has something new."""
        files = ABSENT if self._job_files is None else self._job_files.fresh()
        by_pid: Maybe[JobsByPid] = ABSENT
        if self._pids is not None:
            self._pids.reader.want(without_job)
            by_pid = self._pids.worker.fresh()
        if self._jobs_from[0] is not files or self._jobs_from[1] is not by_pid:
            self._jobs_from = files, by_pid
            self._jobs = NodeJobs(
                NO_VALUES if files is ABSENT else files.sluids,
                NO_VALUES if by_pid is ABSENT else by_pid,
                NO_VALUES if files is ABSENT else files.jobs,
            )
        return self._jobs

    def job_is_pending(self, key: ProcessKey) -> bool:
        return self._pids is not None and not self._pids.reader.has_answered(key)

    def is_pending(self, cgroup: CgroupFacts, since: float) -> bool:
        return self._pod_is_pending(cgroup, since) or any(
            runtime.is_pending(cgroup) for runtime in self._runtimes
        )

    def _pod_is_pending(self, cgroup: CgroupFacts, since: float) -> bool:
        """Whether the pod of a process first seen at `since` may still be learned."""
        if self._pods is None or (cgroup.pod_uid is ABSENT and cgroup.container_id is ABSENT):
            return False
        if self._pods.has_answered_since(since):
            return False
        pod = self.pods().find(cgroup.pod_uid, cgroup.container_id)
        if pod is None or cgroup.container_id is ABSENT:
            return pod is None
        # A pod is listed before its containers have started.
        return pod.container(cgroup.container_id) is None
