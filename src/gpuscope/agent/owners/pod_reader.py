"""The pods of this node with their names, from the first method that answers.

In order: the kubelet's pods socket, its log folder, the kubelet over HTTPS, the API server; the last two only
where the settings enable them. Where pod labels are wanted, a method that has none is not the last one tried.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gpuscope.agent.owners.pods import (
    CONFIG_HASH,
    NO_PODS,
    KeepLabel,
    Pod,
    PodContainer,
    Pods,
    bare_id,
    has_not_ended,
    index_pods,
    list_pods,
)
from gpuscope.agent.worker import ReadResult, Worker, kubelet_timing
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT

# Pods by UID from the names of the kubelet's logs: no permission, no token, no network.
#
# The links of `/var/log/containers` name everything: `<pod>_<namespace>_<container>-<id>.log` points to
# `/var/log/pods/<namespace>_<pod>_<uid>/<container>/0.log`. Their text is enough, so that a container which
# mounts only this folder cannot read any log. `/var/log/pods` is read too where it is there: it has pods
# without a link. Neither namespace nor pod can contain an underscore. Labels are absent.

MAX_PODS: Final = 10_000
MAX_LINKS: Final = 8 * MAX_PODS
# A file name has at most 255 characters: with long names the id is cut, and the pod is known by its UID.
_ID = re.compile(r"-([0-9a-f]{64})\.log\Z")

PodFolder = tuple[str, str, str]
"""Namespace, pod, UID."""


def read_pod_logs(folder: str) -> list[Pod]:
    """Raises OSError if neither the folder nor that of the links beside it can be read."""
    pods: dict[PodFolder, dict[str, list[str]]] = {}  # ids by container
    failure: OSError | None = None
    try:
        _add_folders(pods, folder)
    except OSError as error:
        failure = error
    try:
        _add_links(pods, Path(folder).parent / "containers")
    except OSError:
        if failure is not None:
            raise failure from None
    return [
        Pod(uid=uid, namespace=namespace, name=name, containers=tuple(_logged_containers(ids)))
        for (namespace, name, uid), ids in pods.items()
    ]


def _add_folders(pods: dict[PodFolder, dict[str, list[str]]], folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if (pod := _parse(entry.name)) is None or not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):  # the pod was deleted in the meantime
                names = sorted(os.listdir(entry.path))  # noqa: PTH208 - only names are needed
                pods[pod] = {name: [] for name in names}
            if len(pods) >= MAX_PODS:
                break


def _add_links(pods: dict[PodFolder, dict[str, list[str]]], folder: Path) -> None:
    for name in sorted(os.listdir(folder))[:MAX_LINKS]:  # noqa: PTH208
        try:
            target = os.readlink(folder / name).split("/")  # noqa: PTH115 - its text, not a path of this machine
        except OSError:
            continue
        pod = _parse(target[-3]) if len(target) >= 3 else None
        if pod is None or (pod not in pods and len(pods) >= MAX_PODS):
            continue
        # A restarted container has a link for each start; all have its name.
        ids = pods.setdefault(pod, {}).setdefault(target[-2], [])
        if found := _ID.search(name):
            ids.append(found[1])


def _parse(name: str) -> PodFolder | None:
    parts = name.split("_")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


def _logged_containers(ids: dict[str, list[str]]) -> Iterator[PodContainer]:
    for name, of_container in ids.items():
        known: Iterable[str] = of_container or ("",)
        yield from (PodContainer(name, container_id or ABSENT) for container_id in known)


# Pods from JSON: the kubelet's `/pods` and the API server's list have the same format.


def decode_pod_list(answer: bytes, keep_label: KeepLabel) -> list[Pod]:
    try:
        items = json.loads(answer)["items"] or []
        return list(_pods(items, keep_label))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise SourceError("the answer is not a list of pods") from None


def _pods(items: list[dict[str, Any]], keep_label: KeepLabel) -> Iterator[Pod]:
    for item in items:
        metadata, status = item["metadata"], item.get("status") or {}
        labels = metadata.get("labels") or {}
        hashed = str((metadata.get("annotations") or {}).get(CONFIG_HASH, ""))
        yield Pod(
            uid=str(metadata["uid"]),
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata["name"]),
            labels=tuple(sorted((str(k), str(v)) for k, v in labels.items() if keep_label(str(k)))),
            containers=tuple(_containers(status)),
            other_uid=hashed if hashed != metadata["uid"] else "",
            running=has_not_ended(str(status.get("phase") or "")),
        )


def _containers(status: dict[str, Any]) -> Iterator[PodContainer]:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(kind) or []:
            image = str(container.get("image") or "")
            yield PodContainer(
                str(container["name"]), bare_id(str(container.get("containerID") or "")), image or ABSENT
            )


# GET requests to the kubelet or the API server over HTTPS, with the service account's token.
#
# The token is read for every request, because Kubernetes replaces it. The server's certificate is verified
# with the cluster's CA; a kubelet with a self-signed certificate needs the setting `kubelet_insecure`.


TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PodMethod:
    """A way to list this node's pods; `has_labels` if the list contains their labels.

    A method that is not offered is left out, which is not a failure."""

    name: str
    list_pods: Callable[[], Sequence[Pod]]
    has_labels: bool = True
    is_offered: Callable[[], bool] = lambda: True


class PodReader:
    """The reader of the worker."""

    def __init__(self, methods: Sequence[PodMethod], want_labels: bool = False) -> None:
        self._methods = methods
        self._want_labels = want_labels
        self._listed: Sequence[Pod] = ()
        self._pods = NO_PODS

    def read(self) -> ReadResult[Pods]:
        """The same object as before unless a pod changed. Raises SourceError if no method answered."""
        found: Sequence[Pod] | None = None
        failures: Counter[str] = Counter()
        reasons = []
        for method in self._methods:
            if not method.is_offered():
                continue
            try:
                listed = method.list_pods()
            except (SourceError, OSError) as error:
                failures[method.name] += 1
                reasons.append(f"{method.name}: {error}")
                continue
            if found is None or method.has_labels:
                found = listed
            if method.has_labels or not self._want_labels:
                break
        if found is None:
            raise SourceError("; ".join(reasons))
        if not self._want_labels:  # the filter has removed all of them, so they are not known
            found = [pod if pod.labels is ABSENT else replace(pod, labels=ABSENT) for pod in found]
        if list(found) != list(self._listed):
            self._listed, self._pods = found, index_pods(found)
        return ReadResult(self._pods, failures)

    def close(self) -> None:
        pass


def build_pod_reader(settings: Settings) -> PodReader:
    keep = label_filter(settings.pod_labels)
    methods = [
        PodMethod(
            "pods-api",
            lambda: list_pods(settings.pods_socket, keep, TIMEOUT_SECONDS),
            # Kubelets before 1.37 have no such socket, and an upgraded one makes it while this agent runs.
            is_offered=Path(settings.pods_socket).exists,
        ),
        PodMethod("pod-logs", lambda: read_pod_logs(settings.path_pod_logs), has_labels=False),
    ]
    if settings.kubelet_url:
        methods.append(PodMethod("kubelet-https", lambda: _from_kubelet(settings, keep)))
    if settings.kubernetes_api:
        methods.append(PodMethod("api-server", lambda: _from_api_server(settings, keep)))
    return PodReader(methods, want_labels=bool(settings.pod_labels))


def _from_kubelet(settings: Settings, keep: KeepLabel) -> list[Pod]:
    from gpuscope.agent.owners import kubernetes_https  # costs 2 MiB, which no other method needs

    url = settings.kubelet_url.rstrip("/") + "/pods"
    return decode_pod_list(kubernetes_https.get(url, insecure=settings.kubelet_insecure), keep)


def _from_api_server(settings: Settings, keep: KeepLabel) -> list[Pod]:
    from gpuscope.agent.owners import kubernetes_https

    url = kubernetes_https.api_server_url(dict(os.environ), settings.node_name())
    return decode_pod_list(kubernetes_https.get(url), keep)


def label_filter(allowed: Sequence[str]) -> KeepLabel:
    """Whether a pod's label is kept; `*` matches any text."""
    if not allowed:
        return lambda name: False
    patterns = (".*".join(map(re.escape, pattern.split("*"))) for pattern in allowed)
    allowed_name = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.DOTALL)
    return lambda name: allowed_name.fullmatch(name) is not None


def pod_worker(settings: Settings, clock: Clock) -> Worker[Pods]:
    reader = build_pod_reader(settings)
    return Worker(
        "pods",
        "the names of this node's pods",
        lambda: reader,
        kubelet_timing(settings),
        clock,
    )
