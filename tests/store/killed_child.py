"""The process that `test_kill` kills: appends ticks at full speed and prints each acknowledged one.

Sealing and merging run all the time, on a clock that advances five minutes per tick. Values depend on the tick
number and the series, so the parent knows the expected samples. The last series of each target come from a
shard that is 30 ticks (two and a half hours) behind: their samples are late.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np

from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.options import HOUR_MS
from tests.store.support import NOW, HandClock, labels

STEP = 300_000
WIDTH = 12
TARGETS = 3
BEHIND = 30
LATE_WIDTH = 4
OPTIONS = StoreOptions(window_ms=2 * HOUR_MS, retention_ms=10_000 * HOUR_MS, out_of_order_ms=6 * HOUR_MS)


def value_of(number: int, target: int) -> np.ndarray:
    return np.arange(WIDTH) * 1000.0 + number + target / 8


def time_of(number: int, target: int) -> int:
    return NOW + number * STEP + target


def main(folder: Path, first: int) -> None:
    clock = HandClock(NOW + first * STEP)
    store = Store(folder, OPTIONS, clock)
    targets = [store.target(f"node{n}") for n in range(TARGETS)]

    def resolve(numbers: range) -> list[np.ndarray]:
        return [
            store.resolve(target, [labels(f"m{i}", node=str(n)) for i in numbers])
            for n, target in enumerate(targets)
        ]

    ids = resolve(range(WIDTH - LATE_WIDTH))
    store.start()

    def keep() -> None:
        while True:
            store.maintain()

    threading.Thread(target=keep, daemon=True).start()
    print("ready", flush=True)
    number = first
    while True:
        clock.at = NOW + number * STEP
        on_time, late = slice(0, WIDTH - LATE_WIDTH), slice(WIDTH - LATE_WIDTH, WIDTH)
        # At each start: series without samples are removed after a while.
        late_ids = resolve(range(WIDTH - LATE_WIDTH, WIDTH))
        futures = [
            store.submit(Tick(target, time_of(number, n), ids[n], value_of(number, n)[on_time]))
            for n, target in enumerate(targets)
        ]
        back = number - BEHIND
        late_futures = [
            store.submit(Tick(target, time_of(back, n), late_ids[n], value_of(back, n)[late]))
            for n, target in enumerate(targets)
            if back >= first
        ]
        for n, future in enumerate(futures):
            future.result()
            os.write(1, f"{number} {n} now\n".encode())
        for n, future in enumerate(late_futures):
            assert future.result().accepted == LATE_WIDTH
            os.write(1, f"{back} {n} late\n".encode())
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
