"""Findings over time of 1,000 GPUs: CPU time for reading a window, a new minute, and an answer over seven days.

`python -m benchmarks findings`. The history has every metric that a priced kind needs, a sample a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import orjson

from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.health.lost_time import LOST_TIME
from gpuscope.promql import Engine
from gpuscope.reports.finding_ledger import WINDOW_MS
from gpuscope.reports.finding_windows import STEP_MS, GpuKey, LossSubject, LostSpan, Window, read_window
from gpuscope.reports.past_findings import past_findings
from gpuscope.series import Matcher, MatchOp, Series
from gpuscope.server.reports.findings_over_time import answer_json
from gpuscope.store.value_matching import predicate
from tests.reports.histories import START_MS, History

NODES, GPUS, WINDOWS = 125, 8, 28


def fleet() -> History:
    """One GPU of each node is free, one held idle, three wait for a thread."""
    history = History(minutes=WINDOW_MS // STEP_MS)
    for node in range(NODES):
        for number in range(GPUS):
            waits = number % 3 == 0
            gpu = {"instance": f"n{node:03}:9400", "gpu": str(number), "uuid": f"GPU-{node:03}-{number}"}
            history.add("gpuscope_gpu_up", 1.0, **gpu)
            history.add("gpuscope_gpu_info", 1.0, **gpu, node=f"n{node:03}", model="NVIDIA H100")
            history.add("gpuscope_gpu_processes", float(number < GPUS - 1), **gpu, state="active")
            history.add("gpuscope_gpu_utilization_minute_ratio", 0.3 if waits else 0.95, **gpu)
            history.add("gpuscope_gpu_power_minute_watts", 500.0, **gpu)
            history.add("gpuscope_gpu_power_limit_watts", 700.0, **gpu, limit="enforced")
            history.add("gpuscope_gpu_utilization_ratio", 0.9, **gpu)
            history.add("gpuscope_gpu_clock_hertz", 1.9e9, **gpu, clock="sm")
            history.add("gpuscope_gpu_clock_max_hertz", 2e9, **gpu, clock="sm")
            history.add("gpuscope_gpu_throttle_reason", 0.0, **gpu, reason="hw_slowdown")
            if number < GPUS - 1:
                job = {"user": f"user{(node * GPUS + number) % 60}", "slurm_job": str(node * GPUS + number)}
                idle_since = 30 if number == 5 else None
                labels = history.process(gpu, str(number), idle_since=idle_since, **job)
                history.add("gpuscope_process_busiest_thread_ratio", 0.95 if waits else 0.5, **labels)
                history.add("gpuscope_process_io_wait_ratio", 0.0, **labels)
                history.add("gpuscope_process_network_wait_ratio", 0.0, **labels)
    return history


class ByName:
    """Series by their names, so that selecting costs what it costs in an index."""

    def __init__(self, history: History) -> None:
        self._every = list(history.sorted_series())
        self._by_name: dict[str, list[Series]] = {}
        for one in self._every:
            self._by_name.setdefault(dict(one.labels)["__name__"], []).append(one)

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> list[Series]:
        named = [one.value for one in matchers if one.name == "__name__" and one.op is MatchOp.EQUAL]
        tests = [(one.name, predicate(one)) for one in matchers]
        found = []
        for one in self._by_name.get(named[0], []) if named else self._every:
            labels = dict(one.labels)
            if all(is_match(labels.get(name, "")) for name, is_match in tests):
                low, high = np.searchsorted(one.timestamps, [start_ms, end_ms + 1])
                if low < high:
                    found.append(Series(one.labels, one.timestamps[low:high], one.values[low:high]))
        return found


def shifted(window: Window, by_ms: int) -> Window:
    def move(spans: dict[GpuKey, list[LostSpan]]) -> dict[GpuKey, list[LostSpan]]:
        return {key: _moved(found, by_ms) for key, found in spans.items()}

    of_subjects: dict[LossSubject, list[LostSpan]] = {
        subject: _moved(found, by_ms) for subject, found in window.spans.items()
    }
    return Window(
        window.start_ms + by_ms,
        window.end_ms + by_ms,
        of_subjects,
        move(window.observed),
        move(window.with_processes),
        window.gpus,
    )


def _moved(spans: list[LostSpan], by_ms: int) -> list[LostSpan]:
    return [LostSpan(one.start_ms + by_ms, one.end_ms + by_ms, one.lost_seconds) for one in spans]


def main() -> None:
    history = fleet()
    engine = EmbeddedEngine(None, Engine(ByName(history)))  # type: ignore[arg-type]

    def read(minutes: int) -> tuple[float, Window]:
        began = time.process_time()
        start_ms = history.end_ms - minutes * STEP_MS
        window = asyncio.run(read_window(engine, LOST_TIME, start_ms, history.end_ms))
        return time.process_time() - began, window

    seconds, window = read(WINDOW_MS // STEP_MS)
    print(f"{NODES * GPUS} GPUs, {len(LOST_TIME)} kinds; CPU time")
    print(f"a window of six hours, read once: {seconds:.2f} s")
    print(f"a new minute: {read(1)[0]:.2f} s")
    windows = [shifted(window, number * WINDOW_MS) for number in range(WINDOWS)]
    began = time.process_time()
    found = past_findings(windows, START_MS, windows[-1].end_ms)
    size = len(orjson.dumps(answer_json(found)))
    print(f"an answer over seven days: {time.process_time() - began:.2f} s, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
