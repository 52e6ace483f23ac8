"""The kubelet, asked at most once an interval in a worker of its own: whom the GPUs were given to.

An answer stays good for a minute while the next ones fail: a kubelet that restarts must not make every pod
blink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gpuscope.owners.claims import Claim
from gpuscope.owners.pod_resources import list_claims
from gpuscope.readings import ABSENT, Maybe, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

GOOD_FOR_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 10.0


class Kubelet:
    """`claims` is replaced as a whole, and only when it changes; any thread may ask for it."""

    def __init__(
        self, ask: Callable[[], tuple[Claim, ...]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._claims: Maybe[tuple[Claim, ...]] = ABSENT
        self._at = 0.0

    def claims(self) -> Maybe[tuple[Claim, ...]]:
        """ABSENT once the last good answer is too old: a hanging kubelet's word does not stay true for ever."""
        return ABSENT if self._clock() - self._at > GOOD_FOR_SECONDS else self._claims

    def read(self, due: frozenset[Tier]) -> Reading:
        claims = self._ask()
        self._at = self._clock()
        if claims != self._claims:
            self._claims = claims
        return Reading()

    def close(self) -> None:
        pass


def build_kubelet(settings: Settings) -> Kubelet:
    return Kubelet(lambda: list_claims(settings.kubelet_socket, settings.resource_names, TIMEOUT_SECONDS))


def kubelet_spec(kubelet: Kubelet) -> SourceSpec:
    def open_kubelet(settings: Settings) -> Kubelet:
        return kubelet

    return SourceSpec(
        name="kubelet",
        summary="whom the GPUs of this node were given to",
        open=open_kubelet,
        interval_seconds=lambda settings: settings.kubelet_interval,
        deadline_seconds=lambda settings: GOOD_FOR_SECONDS,
    )
