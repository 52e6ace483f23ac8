"""The labels of each process' series: fixed when the process is first published, which waits for its owner.

A process waits until every lookup that may know its owner has answered, or for `OWNER_WAIT_SECONDS`. After
that its labels stay the same, also when it renames itself, a pod's name arrives late, or the kubelet stops
answering: each change would cut the series in two, and make every average over it wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuscope.agent.owners.process_lookup import ProcessKey
from gpuscope.model.readings import ABSENT, Maybe, Owner, Process, ProcessLabels, Uuid

OWNER_WAIT_SECONDS: Final = 30.0  # six times the interval of requests to the kubelet


class StableLabels:
    """Call `labels_of` once for every present process between `begin` and `end`; the others are forgotten."""

    def __init__(self, wait_seconds: float = OWNER_WAIT_SECONDS) -> None:
        self._wait = wait_seconds
        self._kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._now_kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._waiting: dict[ProcessKey, float] = {}
        self._now_waiting: dict[ProcessKey, float] = {}
        self._monotonic = 0.0

    def stop_waiting(self) -> None:
        """For one-shot commands: the next cycle publishes every process with what is known then."""
        self._wait, self._kept = 0.0, {}

    def begin(self, monotonic: float) -> None:
        self._monotonic, self._now_kept, self._now_waiting = monotonic, {}, {}

    def end(self) -> None:
        self._kept, self._waiting = self._now_kept, self._now_waiting

    def labels_of(
        self,
        process: Process,
        unit: Uuid,
        key: ProcessKey,
        command: Maybe[str],
        owner: Owner,
        is_pending: Callable[[float], bool],
    ) -> Maybe[ProcessLabels]:
        """ABSENT while the process waits. `is_pending` takes the time at which the process was first seen."""
        labels = self._kept.get((key, unit))
        if labels is None:
            since = self._waiting.get(key, self._monotonic)
            if self._monotonic - since < self._wait and is_pending(since):
                self._now_waiting[key] = since
                return ABSENT
            labels = ProcessLabels(process.kind, command, owner)
        self._now_kept[key, unit] = labels
        return labels
