"""Pods from the kubelet's local pods API (Kubernetes 1.36 and newer): names, labels and container ids.

The socket speaks gRPC; responses contain core/v1 pods, of which a few fields are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuscope.agent.owners.grpc.call import call
from gpuscope.agent.owners.grpc.protobuf import fields, message, text
from gpuscope.agent.owners.pods import Pod, PodContainer
from gpuscope.model.readings import ABSENT, Maybe

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
