"""The labels of each process' series: fixed when it is first published, and published when its lookup is done.

A process waits until everybody who may know its owner has answered, or for `OWNER_WAIT_SECONDS`. After that its
labels stay, also when it renames itself, a pod's name comes late, or the kubelet goes away: each change would
cut the series, and with it every average over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuscope.owners.lookup import ProcessKey
from gpuscope.readings import ABSENT, Maybe, Owner, Process, ProcessLabels, Uuid

OWNER_WAIT_SECONDS: Final = 30.0  # six times the interval at which the kubelet is asked


class LabelKeeper:
    """Between `begin` and `end` every process that is there is asked for once; the others are forgotten."""

    def __init__(self, wait_seconds: float = OWNER_WAIT_SECONDS) -> None:
        self._wait = wait_seconds
        self._kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._now_kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._waiting: dict[ProcessKey, float] = {}
        self._now_waiting: dict[ProcessKey, float] = {}
        self._monotonic = 0.0

    def stop_waiting(self) -> None:
        """For who looks only once: the next cycle publishes every process with what is known then."""
        self._wait, self._kept = 0.0, {}

    def begin(self, monotonic: float) -> None:
        self._monotonic, self._now_kept, self._now_waiting = monotonic, {}, {}

    def end(self) -> None:
        self._kept, self._waiting = self._now_kept, self._now_waiting

    def labels_of(
        self,
        process: Process,
        place: Uuid,
        key: ProcessKey,
        command: Maybe[str],
        owner: Owner,
        is_pending: Callable[[float], bool],
    ) -> Maybe[ProcessLabels]:
        """ABSENT while the process waits. `is_pending` is given the time at which it was first seen."""
        labels = self._kept.get((key, place))
        if labels is None:
            since = self._waiting.get(key, self._monotonic)
            if self._monotonic - since < self._wait and is_pending(since):
                self._now_waiting[key] = since
                return ABSENT
            labels = ProcessLabels(process.kind, command, owner)
        self._now_kept[key, place] = labels
        return labels
