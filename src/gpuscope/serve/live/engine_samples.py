"""Samples of the live picture from an engine: the embedded store or another one, in as few requests as needed.

Fast metrics are read for every picture, slow ones every 15 s, the usual scrape interval. A node whose GPUs or
processes have changed has its slow metrics read again at once: a GPU that is lost, or a process that ended,
must not keep old values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from gpuscope.base.go_quote import quote
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.engines.vector_text import LabelDicts
from gpuscope.judge.checks.facts import Sample
from gpuscope.judge.checks.finding_details import one_of
from gpuscope.serve.live.fleet_samples import FAST_METRICS, SLOW_METRICS, FleetSamples, SortLater, by_node

SLOW_SECONDS: Final = 15.0
MAX_NODES_PER_QUERY: Final = 100
"""With more nodes that have changed, the slow metrics of all nodes are read."""
_UP: Final = "gpuscope_gpu_up"
_SUBJECT_METRICS: Final = frozenset({_UP, "gpuscope_gpu_memory_used_bytes", "gpuscope_process_memory_bytes"})
"""Every GPU, MIG instance and process has one of these."""

Subject = tuple[str, str, str, float]
"""Instance, UUID, PID; and whether a GPU is up."""


def _selector(names: Iterable[str], matcher: str = "") -> str:
    return f'{{__name__=~"{"|".join(sorted(names))}"{matcher}}}'


FAST_QUERY: Final = _selector(FAST_METRICS)
SLOW_QUERY: Final = _selector(SLOW_METRICS)


class EngineSamples:
    def __init__(self, engine: QueryEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._label_dicts = LabelDicts()
        self._subjects: set[Subject] = set()
        self._slow: list[Sample] = []
        self._slow_at = float("-inf")
        self._nodes: dict[str, list[Sample]] = {}

    async def read(self) -> SortLater:
        now = self._clock()
        fast = await self._read_query(FAST_QUERY)
        before, self._subjects = self._subjects, _subjects(fast)
        changed = {subject[0] for subject in before ^ self._subjects}
        if now - self._slow_at >= SLOW_SECONDS or len(changed) > MAX_NODES_PER_QUERY:
            self._slow_at = float("-inf")  # read again next time if this fails
            self._slow = await self._read_query(SLOW_QUERY)
            self._slow_at = now
        elif changed:
            await self._read_slow_of(changed)
        return partial(self._keep_unchanged, fast + self._slow)

    def _keep_unchanged(self, samples: list[Sample]) -> FleetSamples:
        """The samples by node; of a node without a change, the list of the last update."""
        known = self._nodes
        self._nodes = {
            instance: before if (before := known.get(instance)) == found else found
            for instance, found in by_node(samples).items()
        }
        return self._nodes

    async def _read_slow_of(self, instances: Collection[str]) -> None:
        known_at, self._slow_at = self._slow_at, float("-inf")
        matcher = f", instance=~{quote(one_of(sorted(instances)))}"
        new = await self._read_query(_selector(SLOW_METRICS, matcher))
        self._slow = [one for one in self._slow if one[1].get("instance", "") not in instances] + new
        self._slow_at = known_at

    async def _read_query(self, query: str) -> list[Sample]:
        vector = await self._engine.instant(query)
        dicts = self._label_dicts.of(vector.labels)
        names = [labels.get("__name__", "") for labels in dicts]
        return list(zip(names, dicts, vector.values.tolist(), strict=True))


def _subjects(samples: Iterable[Sample]) -> set[Subject]:
    return {
        (
            labels.get("instance", ""),
            labels.get("uuid", ""),
            labels.get("pid", ""),
            value if metric == _UP else 1.0,
        )
        for metric, labels, value in samples
        if metric in _SUBJECT_METRICS
    }
