"""Findings over time of 1,000 GPUs: CPU time for reading a window, a new minute, and an answer over seven days.

`python -m benchmarks findings`. The store has every metric that a priced kind needs, a sample a minute.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.judge.checks.checks import CHECKS, explaining_first
from gpuscope.judge.checks.finding import GpuKey, SubjectKey
from gpuscope.judge.reports.findings.finding_ledger import WINDOW_MS
from gpuscope.judge.reports.findings.finding_windows import STEP_MS, LostSpan, Window, read_window
from gpuscope.judge.reports.findings.past_findings import past_findings
from gpuscope.serve.reports.findings_over_time import answer_json
from tests.fakes import Keywords
from tests.reports.histories import START_MS, History
from tests.store.support import HandClock

NODES, GPUS, WINDOWS = 125, 8, 28
CHECKED = explaining_first(CHECKS.values())


def fleet() -> History:
    """One GPU of each node is free, one held idle, three wait for a thread."""
    history = History(minutes=WINDOW_MS // STEP_MS)
    for node in range(NODES):
        for number in range(GPUS):
            waits = number % 3 == 0
            gpu: Keywords = {
                "instance": f"n{node:03}:9400",
                "gpu": str(number),
                "uuid": f"GPU-{node:03}-{number}",
            }
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
                job: Keywords = {
                    "user": f"user{(node * GPUS + number) % 60}",
                    "slurm_job": str(node * GPUS + number),
                }
                idle_since = 30 if number == 5 else None
                labels = history.process(gpu, str(number), idle_since=idle_since, **job)
                history.add("gpuscope_process_busiest_thread_ratio", 0.95 if waits else 0.5, **labels)
                history.add("gpuscope_process_io_wait_ratio", 0.0, **labels)
                history.add("gpuscope_process_network_wait_ratio", 0.0, **labels)
    return history


def fill(store: Store, clock: HandClock, history: History) -> None:
    """Minute by minute, as scrapes do."""
    series = list(history.sorted_series())
    target = store.target("fleet")
    ids = np.asarray(store.resolve(target, [one.labels for one in series]))
    values = np.zeros((len(series), history.minutes))
    present = np.zeros(values.shape, dtype=np.bool_)
    for row, one in enumerate(series):
        minutes = (one.timestamps - START_MS) // STEP_MS
        values[row, minutes], present[row, minutes] = one.values, True
    for minute in range(history.minutes):
        clock.at = START_MS + minute * STEP_MS
        rows = present[:, minute]
        store.append(Tick(target, clock.at, ids[rows], values[rows, minute]))


def shifted(window: Window, by_ms: int) -> Window:
    def move(spans: dict[GpuKey, list[LostSpan]]) -> dict[GpuKey, list[LostSpan]]:
        return {key: _moved(found, by_ms) for key, found in spans.items()}

    of_subjects: dict[SubjectKey, list[LostSpan]] = {
        subject: _moved(found, by_ms) for subject, found in window.spans.items()
    }
    return Window(
        window.start_ms + by_ms,
        window.end_ms + by_ms,
        of_subjects,
        window.costed,
        move(window.observed),
        move(window.with_processes),
        window.gpus,
    )


def _moved(spans: list[LostSpan], by_ms: int) -> list[LostSpan]:
    return [LostSpan(one.start_ms + by_ms, one.end_ms + by_ms, one.lost_seconds) for one in spans]


def main() -> None:
    history, clock = fleet(), HandClock(START_MS)
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder:
        store = Store(Path(folder), clock=clock)
        try:
            fill(store, clock, history)
            measure(EmbeddedEngine(store, Engine(store, skips_unneeded=True)), history.end_ms)
        finally:
            store.close()


def measure(engine: EmbeddedEngine, end_ms: int) -> None:
    def read(minutes: int) -> tuple[float, Window]:
        began = time.process_time()
        window = asyncio.run(read_window(engine, CHECKED, end_ms - minutes * STEP_MS, end_ms))
        return time.process_time() - began, window

    seconds, window = read(WINDOW_MS // STEP_MS)
    print(f"{NODES * GPUS} GPUs, {len(CHECKED)} kinds; CPU time")
    print(f"a window of six hours, read once: {seconds:.2f} s")
    print(f"a new minute: {read(1)[0]:.2f} s")
    windows = [shifted(window, number * WINDOW_MS) for number in range(WINDOWS)]
    began = time.process_time()
    found = past_findings(windows, START_MS, windows[-1].end_ms)
    size = len(orjson.dumps(answer_json(found)))
    print(f"an answer over seven days: {time.process_time() - began:.2f} s, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
