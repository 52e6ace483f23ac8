"""Names of pods and containers, merged from the workers that know them.

Pods come from Kubernetes, containers from any number of runtimes. Everything may be absent: a machine without
Kubernetes has no pods, and a runtime that does not answer has no names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gpuscope.owners.attribution import ContainerInfo, ContainerInfos
from gpuscope.owners.cgroup import CgroupFacts
from gpuscope.owners.pods import NO_PODS, Pods
from gpuscope.readings import ABSENT
from gpuscope.worker import Worker

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


class WorkloadNames:
    def __init__(self, pods: Worker[Pods] | None = None, runtimes: Sequence[ContainerRuntime] = ()) -> None:
        self._pods = pods
        self._runtimes = runtimes
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
        if [id(one) for one in known] != [id(one) for one in self._merged_from]:
            self._merged_from = known
            # A runtime that does not know a container must not hide the name that another has for it.
            self._merged = {
                container_id: info
                for containers in known
                for container_id, info in containers.items()
                if info != _UNNAMED
            }
        return self._merged

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
        return self.pods().find(cgroup.pod_uid, cgroup.container_id) is None
