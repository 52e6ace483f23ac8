"""GPUs that are not read now although their node's agent answers: the driver blocks every call.

Such an agent has no number of any GPU. Input: the samples of now. Output: from the history, the GPUs the node
had when they were last read, and when that was. A node without GPUs within the last day has none here either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.checks.facts import Sample
from gpuscope.judge.checks.missing import Missing
from gpuscope.serve.live.gone_history import (
    DAY_SECONDS,
    SNAPSHOT_METRIC,
    HistoryQuery,
    LastRead,
    last_read_gpus,
)
from gpuscope.serve.live.history_lookup import MAX_INSTANCES, HistoryLookup

_TELLING: Final = frozenset({SNAPSHOT_METRIC, "gpuscope_source_up", "gpuscope_gpu_info"})


def _nodes_without_readings(samples: Iterable[Sample]) -> set[str]:
    present, not_answering, read = set(), set(), set()
    for name, labels, value in samples:
        if name not in _TELLING:
            continue
        instance = labels.get("instance", "")
        if name == SNAPSHOT_METRIC:
            present.add(instance)
        elif name == "gpuscope_source_up" and value == 0:
            not_answering.add(instance)
        elif name == "gpuscope_gpu_info":
            read.add(instance)
    return (present & not_answering) - read


class UnreadGpus:
    def __init__(
        self,
        query_history: HistoryQuery,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._query_history = query_history
        self._max_subjects = (limits or Limits()).live_max_subjects
        self._clock = clock
        self._unread: set[str] = set()
        self._found: dict[str, LastRead] = {}  # by instance; queried once while its GPUs are not read
        self._lookup = HistoryLookup(self._look_up_some, "GPUs that are not read cannot be looked up")

    async def find_missing(self, samples: Iterable[Sample]) -> Missing:
        self._unread = await asyncio.to_thread(_nodes_without_readings, samples)
        self._found = {instance: last for instance, last in self._found.items() if instance in self._unread}
        if not self._unread <= self._found.keys():
            await self._lookup.run()
        now = self._clock()
        recent = {one: last for one, last in self._found.items() if now - last.read_at < DAY_SECONDS}
        return Missing(
            samples=[sample for last in recent.values() for sample in last.samples],
            unread={instance: last.read_at for instance, last in recent.items()},
        )

    async def _look_up_some(self) -> None:
        """The next picture goes on."""
        if sum(len(last.samples) for last in self._found.values()) >= self._max_subjects:
            LIMITS_REACHED.count("live_max_subjects")
            return
        new = sorted(self._unread - self._found.keys())[:MAX_INSTANCES]
        self._found |= await last_read_gpus(self._query_history, new, self._clock())
