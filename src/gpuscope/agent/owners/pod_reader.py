"""The pods of this node with their names, from the first method that answers.

In order: the kubelet's pods socket, its log folder, the kubelet over HTTPS, the API server; the last two only
where the settings enable them. Where pod labels are wanted, a method that has none is not the last one tried.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.lookup_timing import kubelet_timing
from gpuscope.agent.owners.pod_list_json import decode_pod_list
from gpuscope.agent.owners.pod_logs import read_pod_logs
from gpuscope.agent.owners.pods import NO_PODS, Pod, Pods, index_pods
from gpuscope.agent.owners.pods_api import KeepLabel, list_pods
from gpuscope.agent.worker import ReadResult, Worker
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT

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
    patterns = (".*".join(map(re.escape, one.split("*"))) for one in allowed)
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
