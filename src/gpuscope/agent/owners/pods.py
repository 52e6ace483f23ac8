"""The pods of this node by UID, by container id and by name.

`/proc` has UIDs, people want names. A static pod has a hash in its cgroup and another UID in the API: both find
it. A process in the agent's own pod shows only its container id, and is found by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.agent.owners.grpc_call import call, fields, message, text
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


# Pods from the kubelet's local pods API (Kubernetes 1.36 and newer): names, labels and container ids.
#
# The socket speaks gRPC; responses contain core/v1 pods, of which a few fields are read.

LIST_PODS: Final = "/v1alpha1.Pods/ListPods"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
KeepLabel = Callable[[str], bool]


def list_pods(socket: str, keep_label: KeepLabel, timeout: float = 10.0) -> list[Pod]:
    return decode_pods(call(socket, LIST_PODS, timeout=timeout), keep_label)


def decode_pods(answer: bytes, keep_label: KeepLabel) -> list[Pod]:
    pods = [_pod(message(value), keep_label) for number, value in fields(answer) if number == 1]
    return [pod for pod in pods if pod is not None]


def _pod(data: bytes, keep_label: KeepLabel) -> Pod | None:
    metadata, status = b"", b""
    for number, value in fields(data):
        if number == 1:
            metadata = message(value)
        elif number == 3:
            status = message(value)
    name = namespace = uid = other = ""
    labels = []
    for number, value in fields(metadata):
        if number == 1:
            name = text(value)
        elif number == 3:
            namespace = text(value)
        elif number == 5:
            uid = text(value)
        elif number == 11:
            key, label = _entry(message(value))
            if keep_label(key):
                labels.append((key, label))
        elif number == 12:
            key, annotation = _entry(message(value))
            other = annotation if key == CONFIG_HASH else other
    if not name or not uid:
        return None
    containers, running = _status(status)
    return Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        labels=tuple(sorted(labels)),
        containers=containers,
        other_uid=other if other != uid else "",
        running=running,
    )


def _entry(data: bytes) -> tuple[str, str]:
    key = value = ""
    for number, part in fields(data):
        if number == 1:
            key = text(part)
        elif number == 2:
            value = text(part)
    return key, value


def _status(data: bytes) -> tuple[tuple[PodContainer, ...], Maybe[bool]]:
    containers, phase = [], ""
    for number, value in fields(data):
        if number == 1:
            phase = text(value)
        elif number in (8, 10, 13):  # containers, init containers, ephemeral containers
            containers.append(_container(message(value)))
    return tuple(containers), has_not_ended(phase)


def _container(data: bytes) -> PodContainer:
    name = container_id = image = ""
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 6:
            image = text(value)
        elif number == 8:
            container_id = text(value)
    return PodContainer(name, bare_id(container_id), image or ABSENT)


def bare_id(container_id: str) -> Maybe[str]:
    """`containerd://1cd3…` is `1cd3…`; empty while the container has not been started."""
    return container_id.rpartition("://")[2] or ABSENT


def has_not_ended(phase: str) -> Maybe[bool]:
    return phase not in ("Succeeded", "Failed") if phase else ABSENT
