"""The cycle: wake the workers that are due, wait a little, make one immutable snapshot of what is fresh.

A worker that is late or hangs is picked up by a later cycle; the snapshot never waits longer than most of one
interval. `source_policy.py` decides which sources there are, and which of them are needed only while
another one fails; here each cycle only asks each source's `wanted`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.gpu_events import GpuEvents
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.worker import Worker
from gpuscope.base.clock import Clock
from gpuscope.base.source_plan import Wanted, always
from gpuscope.model.readings import ABSENT, AgentCost, ErrorEvent, Maybe, Reading, Snapshot

# The agent's own CPU time and memory, from the kernel.

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class CostMeter:
    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._snapshots = 0

    def read(self) -> AgentCost:
        """Call it once per snapshot: it counts the calls."""
        self._snapshots += 1
        return AgentCost(
            started_at=self._started_at,
            snapshots=self._snapshots,
            cpu_seconds=time.process_time(),
            memory_bytes=int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES,
        )


log = logging.getLogger("gpuscope.collect")

POLL_SECONDS = 0.1

Listener = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source's worker, when it is wanted, and why, for the log. The most trusted source comes first."""

    worker: SourceWorker
    wanted: Wanted = always
    why: str = ""


class Collector:
    def __init__(
        self,
        plan: Sequence[PlannedSource],
        *,
        node: str,
        interval: float,
        clock: Clock,
        ledger: ErrorLedger,
        expected_gpus: Maybe[int] = ABSENT,
        owners: OwnerJoin | None = None,
        owner_workers: Sequence[Worker[Any]] = (),
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._plan = plan
        self._sources = [planned.worker for planned in plan]
        owners = owners or OwnerJoin()
        self.workers: Sequence[Worker[Any]] = (*self._sources, *owner_workers)
        """The sources' workers and those that look for owners. Each needs a thread that runs `Worker.run`."""
        self._interval = interval
        self._clock = clock
        self.composer = SnapshotComposer(
            node,
            ledger=ledger,
            integrator=Integrator(max_gap_seconds=max(30.0, 10 * interval)),
            owners=owners,
            expected_gpus=expected_gpus,
        )
        """Replaced between two snapshots when a simulated node's past is complete."""
        self._events = GpuEvents(clock.now())
        self._cost = CostMeter(clock.now())
        self._listeners: list[Listener] = []
        self._stop = threading.Event()
        self._wait = wait
        self.snapshot = Snapshot(node=node, taken_at=clock.now())
        self.ticks = 0

    def subscribe(self, listener: Listener) -> None:
        """`listener` is called with every new snapshot, in the collector's thread."""
        self._listeners.append(listener)

    def run(self) -> None:
        """Cycles at a fixed rate until `stop`. A late cycle begins at once and does not shift the next ones;
        cycles that were missed are left out."""
        due = self._clock.monotonic()
        while not self._stop.is_set():
            self.tick()
            late = self._clock.monotonic() - due
            due += self._interval * max(1, late // self._interval)
            self._wait(self._stop, max(0.0, due - self._clock.monotonic()))

    def stop(self) -> None:
        self._stop.set()
        for worker in self.workers:
            worker.stop()

    def tick(self) -> Snapshot:
        deadline = self._clock.monotonic() + 0.8 * self._interval
        self._read_due(deadline)
        self._read_due(deadline)  # again, for a source that is wanted because another one has just failed
        self.ticks += 1
        return self.compose()

    def finish_reading(self, seconds: float) -> None:
        """Waits for unfinished reads and makes a snapshot with them; for one-shot commands."""
        deadline = self._clock.monotonic() + seconds
        for _ in range(round(seconds / POLL_SECONDS) + 1):
            for worker in self.workers:
                worker.wait(max(0.0, deadline - self._clock.monotonic()))
            waiting = any(worker.wanted and worker.is_waiting() for worker in self.workers)
            if not waiting or self._clock.monotonic() >= deadline:
                break
            self._stop.wait(POLL_SECONDS)
            self._read_due(deadline)
        self.composer.stop_waiting()
        self.compose()

    def _read_due(self, deadline: float) -> None:
        for planned in self._plan:
            wanted = planned.wanted(self._sources)
            if wanted and not planned.worker.wanted and planned.why:
                log.info("source %s is used: %s", planned.worker.name, planned.why)
            planned.worker.wanted = wanted
        woken = [worker for worker in self.workers if worker.wake_if_due()]
        for worker in woken:
            worker.wait(max(0.0, deadline - self._clock.monotonic()))

    def compose(self) -> Snapshot:
        """Makes and publishes a snapshot of what the workers have now."""
        readings, errors = self._fresh_readings()
        composer, now = self.composer, self._clock.now()
        sources = tuple(worker.status() for worker in self.workers if worker.wanted)
        composed = composer.compose(
            readings, errors, now=now, monotonic=self._clock.monotonic(), sources=sources
        )
        self.snapshot = replace(
            composed,
            events=self._events.advance(composed.devices, composer.take_new_errors(), now),
            agent=self._cost.read(),
        )
        for worker in self._sources:
            worker.snapshot = self.snapshot
        for listener in self._listeners:
            try:
                listener(self.snapshot)
            except Exception:
                log.exception("a listener failed on a snapshot")
        return self.snapshot

    def _fresh_readings(self) -> tuple[list[Reading], list[ErrorEvent]]:
        readings: list[Reading] = []
        errors: list[ErrorEvent] = []
        for worker in self._sources:
            errors += worker.take_errors()
            reading = worker.fresh()
            if reading is not ABSENT and worker.wanted:
                readings.append(reading)
        return readings, errors
