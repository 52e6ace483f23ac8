"""The kubelet, asked at most once an interval in a worker of its own: who was given what, which pods there are.

An answer stays good for a minute when the next one fails: a kubelet that restarts must not make every pod's
name blink. Pods are learned from the first that answers: the pods socket, the log folder, the kubelet over
HTTPS, the API server; the last two only where the settings ask for them.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.owners.claims import Claim
from gpuscope.owners.pod_list import decode_pod_list
from gpuscope.owners.pod_logs import read_pod_logs
from gpuscope.owners.pod_resources import list_claims
from gpuscope.owners.pods import NO_PODS, Pod, Pods, index_pods
from gpuscope.owners.pods_api import KeepLabel, list_pods
from gpuscope.readings import ABSENT, Maybe, Reading
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


class Kubelet:
    """`claims` and `pods` are replaced as a whole, and only when they change; any thread may read them."""

    def __init__(
        self,
        list_claims: Callable[[], tuple[Claim, ...]],
        pod_sources: Sequence[PodSource],
        want_labels: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_claims = list_claims
        self._pod_sources = pod_sources
        self._want_labels = want_labels
        self._clock = clock
        self._claims: Maybe[tuple[Claim, ...]] = ABSENT
        self._claims_at = 0.0
        self._pods = NO_PODS
        self._listed: Sequence[Pod] = ()
        self._pods_at = 0.0

    def claims(self) -> Maybe[tuple[Claim, ...]]:
        """ABSENT once the last good answer is too old: a hanging kubelet's word does not stay true for ever."""
        return ABSENT if self._clock() - self._claims_at > GOOD_FOR_SECONDS else self._claims

    def pods(self) -> Pods:
        return NO_PODS if self._clock() - self._pods_at > GOOD_FOR_SECONDS else self._pods

    def read(self, due: frozenset[Tier]) -> Reading:
        failures: Counter[str] = Counter()
        troubles = []
        try:
            claims = self._list_claims()
            self._claims_at = self._clock()
            if claims != self._claims:
                self._claims = claims
        except SourceError as error:
            failures["pod-resources"] += 1
            troubles.append(str(error))
        answered = self._learn_pods(failures)
        if troubles and not answered:
            raise SourceError("; ".join(troubles))
        return Reading(failures=failures)

    def close(self) -> None:
        pass

    def _learn_pods(self, failures: Counter[str]) -> bool:
        names: Sequence[Pod] | None = None
        for source in self._pod_sources:
            try:
                found = source.read()
            except (SourceError, OSError):
                failures[source.name] += 1
                continue
            if names is None or source.has_labels:
                names = found
            if source.has_labels or not self._want_labels:
                break
        if names is None:
            return False
        self._pods_at = self._clock()
        if list(names) != list(self._listed):
            self._listed, self._pods = names, index_pods(names)
        return True


def build_kubelet(settings: Settings) -> Kubelet:
    keep = label_filter(settings.pod_labels)
    sources = []
    if os.path.exists(os.path.dirname(settings.pods_socket) or "."):  # noqa: PTH110, PTH120 - a string is at hand
        sources.append(PodSource("pods-api", lambda: list_pods(settings.pods_socket, keep, TIMEOUT_SECONDS)))
    sources.append(PodSource("pod-logs", lambda: read_pod_logs(settings.path_pod_logs), has_labels=False))
    if settings.kubelet_url:
        sources.append(PodSource("kubelet-https", lambda: _from_kubelet(settings, keep)))
    if settings.kubernetes_api:
        sources.append(PodSource("api-server", lambda: _from_api_server(settings, keep)))
    return Kubelet(
        lambda: list_claims(settings.kubelet_socket, settings.resource_names, TIMEOUT_SECONDS),
        sources,
        want_labels=bool(settings.pod_labels),
    )


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


def kubelet_spec(kubelet: Kubelet) -> SourceSpec:
    def open_kubelet(settings: Settings) -> Kubelet:
        return kubelet

    return SourceSpec(
        name="kubelet",
        summary="which pods there are, and whom the GPUs were given to",
        open=open_kubelet,
        interval_seconds=lambda settings: settings.kubelet_interval,
        deadline_seconds=lambda settings: GOOD_FOR_SECONDS,
    )
