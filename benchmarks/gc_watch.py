"""Runs gpuscope and records each pause by Python's garbage collector.

python -m benchmarks.gc_watch FILE server …

The file gets a line `GENERATION MILLISECONDS CPU_MILLISECONDS` for each pause of at least a millisecond.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

from gpuscope.cli import main

MIN_MILLISECONDS = 1.0


def watch(path: Path) -> None:
    file = path.open("a", buffering=1)
    began = used = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began, used
        if phase == "start":
            began, used = time.perf_counter(), time.thread_time()
            return
        milliseconds, cpu = 1000 * (time.perf_counter() - began), 1000 * (time.thread_time() - used)
        if milliseconds >= MIN_MILLISECONDS:
            file.write(f"{info['generation']} {milliseconds:.1f} {cpu:.1f}\n")

    gc.callbacks.append(note)


def read_pauses(path: Path) -> list[tuple[float, float]]:
    """Return the milliseconds of each pause, and those of CPU time: a busy machine makes pauses longer."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(ms), float(cpu)) for _, ms, cpu in (line.split() for line in lines)]


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
