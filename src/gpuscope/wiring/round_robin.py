"""Simulated nodes of one process take turns in one thread.

With a thread each, a hundred nodes fight for the interpreter: some get no turn for half a minute and look
stale, and viewers wait behind all of them. For simulations only: of real sources one may hang, and must not
hold up another's node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gpuscope.collect.collector import Collector
from gpuscope.wiring.run_agent import Running


class RunningInTurns:
    def __init__(self, collectors: Sequence[Collector], interval: float) -> None:
        self._nodes = [Running(collector) for collector in collectors]
        self._interval = interval
        self._stop = threading.Event()
        self._cycle = threading.Thread(target=self._run, name="cycle", daemon=True)

    def start(self) -> None:
        for node in self._nodes:
            node.start_workers()
        self._cycle.start()

    def stop(self) -> None:
        self._stop.set()
        if self._cycle.is_alive():
            self._cycle.join(timeout=5.0)
        for node in self._nodes:
            node.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_at = time.monotonic()
            for node in self._nodes:
                if self._stop.is_set():
                    return
                node.collector.tick()
            self._stop.wait(max(0.0, began_at + self._interval - time.monotonic()))
