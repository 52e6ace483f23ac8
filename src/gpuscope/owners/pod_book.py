"""The names of this node's pods, learned once an interval from the first that answers.

In order: the kubelet's pods socket, the log folder, the kubelet over HTTPS, the API server; the last two only
where the settings ask for them. Where labels are wanted, a way that has none is not the last that is asked.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.owners.cgroup import Place
from gpuscope.owners.pod_list import decode_pod_list
from gpuscope.owners.pod_logs import read_pod_logs
from gpuscope.owners.pods import NO_PODS, Pod, Pods, index_pods
from gpuscope.owners.pods_api import KeepLabel, list_pods
from gpuscope.readings import ABSENT, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

GOOD_FOR_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PodSource:
    """A way to learn this node's pods; `has_labels` where it also tells their labels."""

    name: str
    read: Callable[[], Sequence[Pod]]
    has_labels: bool = True


class PodBook:
    """`pods` is replaced as a whole, and only when it changes; any thread may ask for it."""

    def __init__(
        self,
        sources: Sequence[PodSource],
        want_labels: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._want_labels = want_labels
        self._clock = clock
        self._listed: Sequence[Pod] = ()
        self._pods = NO_PODS
        self._at = 0.0
        self._asked_at = -math.inf  # when the last question began that was answered

    def is_pending(self, place: Place, since: float) -> bool:
        """Whether the pod of a process first seen at `since` may still be learned."""
        if place.pod_uid is ABSENT and place.container_id is ABSENT:
            return False
        return self._asked_at < since and self.pods().find(place.pod_uid, place.container_id) is None

    def pods(self) -> Pods:
        return NO_PODS if self._clock() - self._at > GOOD_FOR_SECONDS else self._pods

    def read(self, due: frozenset[Tier]) -> Reading:
        """Raises SourceError when nobody answered: all their reasons."""
        asked_at = self._clock()
        found: Sequence[Pod] | None = None
        failures: Counter[str] = Counter()
        reasons = []
        for source in self._sources:
            try:
                listed = source.read()
            except (SourceError, OSError) as error:
                failures[source.name] += 1
                reasons.append(f"{source.name}: {error}")
                continue
            if found is None or source.has_labels:
                found = listed
            if source.has_labels or not self._want_labels:
                break
        if found is None:
            raise SourceError("; ".join(reasons))
        self._at, self._asked_at = self._clock(), asked_at
        if list(found) != list(self._listed):
            self._listed, self._pods = found, index_pods(found)
        return Reading(failures=failures)

    def close(self) -> None:
        pass


def build_pod_book(settings: Settings) -> PodBook:
    keep = label_filter(settings.pod_labels)
    sources = []
    if Path(settings.pods_socket).parent.is_dir():
        sources.append(PodSource("pods-api", lambda: list_pods(settings.pods_socket, keep, TIMEOUT_SECONDS)))
    sources.append(PodSource("pod-logs", lambda: read_pod_logs(settings.path_pod_logs), has_labels=False))
    if settings.kubelet_url:
        sources.append(PodSource("kubelet-https", lambda: _from_kubelet(settings, keep)))
    if settings.kubernetes_api:
        sources.append(PodSource("api-server", lambda: _from_api_server(settings, keep)))
    return PodBook(sources, want_labels=bool(settings.pod_labels))


def _from_kubelet(settings: Settings, keep: KeepLabel) -> list[Pod]:
    from gpuscope.owners import kubernetes_https  # two MiB that only this way of asking needs

    url = settings.kubelet_url.rstrip("/") + "/pods"
    return decode_pod_list(kubernetes_https.get(url, insecure=settings.kubelet_insecure), keep)


def _from_api_server(settings: Settings, keep: KeepLabel) -> list[Pod]:
    from gpuscope.owners import kubernetes_https

    url = kubernetes_https.api_server_url(dict(os.environ), settings.node_name())
    return decode_pod_list(kubernetes_https.get(url), keep)


def label_filter(allowed: Sequence[str]) -> KeepLabel:
    """Whether a pod's label is kept; `*` stands for any text."""
    if not allowed:
        return lambda name: False
    patterns = (".*".join(map(re.escape, one.split("*"))) for one in allowed)
    any_of_them = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.DOTALL)
    return lambda name: any_of_them.fullmatch(name) is not None


def pod_book_spec(book: PodBook) -> SourceSpec:
    def open_book(settings: Settings) -> PodBook:
        return book

    return SourceSpec(
        name="pods",
        summary="the names of this node's pods",
        open=open_book,
        interval_seconds=lambda settings: settings.kubelet_interval,
        deadline_seconds=lambda settings: GOOD_FOR_SECONDS,
    )
