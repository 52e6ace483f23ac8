"""Histories of small fleets whose truth is known, for tests of findings over time.

A `History` holds series with a sample a minute; `gpu` and `process` add what an agent exports. Times are in
minutes from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.model.series import Labels, Series
from tests.fakes import Keywords
from tests.promql.memory import STALE, MemoryStorage

STEP_MS = 60_000
START_MS = 1_790_035_200_000 // 21_600_000 * 21_600_000
"""The start of a window."""


@dataclass
class History:
    minutes: int = 24 * 60
    series: dict[Labels, dict[int, float]] = field(default_factory=dict)

    @property
    def end_ms(self) -> int:
        return START_MS + self.minutes * STEP_MS

    def at(self, minute: float) -> float:
        """Seconds since the epoch."""
        return START_MS / 1000 + 60 * minute

    def add(
        self,
        metric: str,
        value: float | Callable[[int], float],
        begin: int = 0,
        end: int | None = None,
        **labels: str,
    ) -> None:
        pairs: Labels = tuple(sorted({"__name__": metric, **{k: v for k, v in labels.items() if v}}.items()))
        samples = self.series.setdefault(pairs, {})
        for minute in range(begin, self.minutes if end is None else end):
            samples[START_MS + minute * STEP_MS] = value(minute) if callable(value) else value
        if end is not None:  # a scrape in which a series is missing marks its end
            samples.setdefault(START_MS + end * STEP_MS, STALE)

    def gpu(
        self, number: int, *, instance: str = "n1:9400", model: str = "NVIDIA H100", begin: int = 0,
        end: int | None = None, processes: float | None = None,
    ) -> Keywords:  # fmt: skip
        labels: Keywords = {"instance": instance, "gpu": str(number), "uuid": f"GPU-{instance[:2]}-{number}"}
        self.add("gpuscope_agent_info", 1.0, begin, end, instance=instance, job="gpus")
        self.add("gpuscope_gpu_up", 1.0, begin, end, **labels)
        self.add("gpuscope_gpu_info", 1.0, begin, end, **labels, node=instance[:2], model=model)
        if processes is not None:
            self.add("gpuscope_gpu_processes", processes, begin, end, **labels, state="active")
        return labels

    def process(
        self, gpu: Keywords, pid: str, *, begin: int = 0, end: int | None = None,
        idle_since: int | None = None, memory_bytes: float = 1e9, program: str = "", **owner: str,
    ) -> Keywords:  # fmt: skip
        """Works until minute `idle_since`."""
        labels: Keywords = {**gpu, "pid": pid, **owner}
        self.add("gpuscope_process_memory_bytes", memory_bytes, begin, end, **labels)
        self.add("gpuscope_process_age_seconds", lambda minute: 60.0 * (minute - begin), begin, end, **labels)
        self.add(
            "gpuscope_process_idle_seconds", 0.0, begin, idle_since if idle_since is not None else end, **labels
        )
        if program:
            self.add("gpuscope_process_info", 1.0, begin, end, **labels, program=program)
        active_until = idle_since if idle_since is not None else end
        self.add("gpuscope_process_active", 1.0, begin, active_until, **labels)
        if idle_since is not None:
            self.add("gpuscope_process_active", 0.0, idle_since, end, **labels)
            idle_seconds = lambda minute: 60.0 * (minute - idle_since)  # noqa: E731
            self.add("gpuscope_process_idle_seconds", idle_seconds, idle_since, end, **labels)
        return labels

    def sorted_series(self) -> Iterable[Series]:
        for labels, kept in sorted(self.series.items()):
            times = sorted(kept)
            yield Series(labels, np.array(times, np.int64), np.array([kept[at] for at in times], float))

    def engine(self) -> EmbeddedEngine:
        storage = MemoryStorage()
        for labels, kept in self.series.items():
            storage.add(dict(labels), kept.items())
        return EmbeddedEngine(None, Engine(storage))  # type: ignore[arg-type]
