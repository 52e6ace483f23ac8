"""Runs the collectors of many simulated nodes one after the other in one thread.

With a thread each, a hundred collectors compete for the interpreter: some do not run for half a minute and look
stale, and viewers wait. For simulations only: a real source may hang, and must not delay other nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gpuscope.agent.collect.collector import Collector
from gpuscope.cli.wiring.run_agent import CollectorThreads


class RoundRobin:
    def __init__(self, collectors: Sequence[Collector], interval: float) -> None:
        self._nodes = [CollectorThreads(collector) for collector in collectors]
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
