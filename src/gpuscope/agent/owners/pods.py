"""The pods of this node by UID, by container id and by name.

`/proc` has UIDs, people want names. A static pod has a hash in its cgroup and another UID in the API: both find
it. A process in the agent's own pod shows only its container id, and is found by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe


@dataclass(frozen=True, slots=True)
class PodContainer:
    name: str
    id: Maybe[str] = ABSENT
    image: Maybe[str] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    uid: str
    namespace: str
    name: str
    labels: Maybe[tuple[tuple[str, str], ...]] = ABSENT  # those that the settings allow
    containers: tuple[PodContainer, ...] = ()
    other_uid: str = ""  # a static pod's hash, where `uid` is the API's
    running: Maybe[bool] = ABSENT  # False: ended, though the kubelet may still list it

    def container(self, container_id: str) -> PodContainer | None:
        """By id. A pod's only container is found without one."""
        for container in self.containers:
            if container.id == container_id:
                return container
        if len(self.containers) == 1 and self.containers[0].id is ABSENT:
            return self.containers[0]
        return None


@dataclass(frozen=True, slots=True)
class Pods:
    by_uid: Mapping[str, Pod] = field(default_factory=dict)
    by_container: Mapping[str, Pod] = field(default_factory=dict)
    by_name: Mapping[tuple[str, str], Pod] = field(default_factory=dict)

    def find(self, uid: Maybe[str], container_id: Maybe[str]) -> Pod | None:
        if uid is not ABSENT and uid in self.by_uid:
            return self.by_uid[uid]
        return None if container_id is ABSENT else self.by_container.get(container_id)


NO_PODS: Final = Pods()


def index_pods(pods: Iterable[Pod]) -> Pods:
    by_uid: dict[str, Pod] = {}
    by_container: dict[str, Pod] = {}
    by_name: dict[tuple[str, str], Pod] = {}
    for pod in pods:
        by_uid[pod.uid] = pod
        if pod.other_uid:
            by_uid.setdefault(pod.other_uid, pod)
        for container in pod.containers:
            if container.id is not ABSENT:
                by_container[container.id] = pod
        # A pod that ended and its successor may have the same name: the running one is used.
        known = by_name.get((pod.namespace, pod.name))
        if known is None or known.running is False:
            by_name[pod.namespace, pod.name] = pod
    return Pods(by_uid, by_container, by_name)
