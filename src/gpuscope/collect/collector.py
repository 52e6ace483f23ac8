"""The cycle: wake the sources that are due, wait a little, make one immutable snapshot of what is fresh.

A source that is late or hangs is picked up by a later cycle; the snapshot never waits longer than most of one
interval. `auto` is decided here, each cycle: a fallback source is wanted only while the one it stands in for
does not answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuscope.clock import Clock
from gpuscope.collect.composer import SnapshotComposer
from gpuscope.collect.cost import CostMeter
from gpuscope.collect.counters import Integrator
from gpuscope.collect.gpu_events import GpuEvents
from gpuscope.collect.ownership import OwnershipBook
from gpuscope.collect.runner import Runner
from gpuscope.collect.xid_ledger import XidLedger
from gpuscope.readings import ABSENT, Maybe, Reading, Snapshot, XidEvent

log = logging.getLogger("gpuscope.collect")

ASK_AGAIN_SECONDS = 0.1

Wanted = Callable[[Sequence[Runner]], bool]
Listener = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """A runner and when it is wanted, with the reason for the log; the most trusted comes first."""

    runner: Runner
    wanted: Wanted = lambda runners: True
    why: str = ""


class Collector:
    def __init__(
        self,
        plan: Sequence[Planned],
        *,
        node: str,
        interval: float,
        clock: Clock,
        ledger: XidLedger,
        expected_gpus: Maybe[int] = ABSENT,
        ownership: OwnershipBook | None = None,
        explain_xid: Callable[[int], str] = lambda code: "no meaning given",
    ) -> None:
        self.plan = plan
        self._runners = [planned.runner for planned in plan]
        self._interval = interval
        self._clock = clock
        # Replaced between two snapshots when a simulated node's past is complete.
        self.composer = SnapshotComposer(
            node,
            ledger=ledger,
            integrator=Integrator(longest_gap_seconds=max(30.0, 10 * interval)),
            ownership=ownership or OwnershipBook(),
            expected_gpus=expected_gpus,
        )
        self._events = GpuEvents(clock.now(), explain_xid)
        self._cost = CostMeter(clock.now())
        self._listeners: list[Listener] = []
        self._stop = threading.Event()
        self.snapshot = Snapshot(node=node, taken_at=clock.now())
        self.ticks = 0

    def subscribe(self, listener: Listener) -> None:
        """`listener` is called with every new snapshot, in the collector's thread."""
        self._listeners.append(listener)

    def run(self) -> None:
        """Cycles on a fixed beat until `stop`; a late cycle does not shift the following ones."""
        next_tick = self._clock.monotonic()
        while not self._stop.is_set():
            self.tick()
            next_tick += self._interval
            behind = self._clock.monotonic() - next_tick
            if behind > 0:
                next_tick += behind
            self._stop.wait(max(0.0, next_tick - self._clock.monotonic()))

    def stop(self) -> None:
        self._stop.set()
        for runner in self._runners:
            runner.stop()

    def tick(self) -> Snapshot:
        deadline = self._clock.monotonic() + 0.8 * self._interval
        self._read_due(deadline)
        self._read_due(deadline)  # again for a source that is wanted because another has failed just now
        self.ticks += 1
        return self.compose()

    def finish_reading(self, seconds: float) -> None:
        """Waits for what is still being read, and makes a snapshot with it: for who ticks by hand, and once."""
        deadline = self._clock.monotonic() + seconds
        for _ in range(round(seconds / ASK_AGAIN_SECONDS) + 1):
            for runner in self._runners:
                runner.wait(max(0.0, deadline - self._clock.monotonic()))
            waiting = any(runner.wanted and runner.is_waiting() for runner in self._runners)
            if not waiting or self._clock.monotonic() >= deadline:
                break
            self._stop.wait(ASK_AGAIN_SECONDS)
            self._read_due(deadline)
        self.composer.stop_waiting()
        self.compose()

    def _read_due(self, deadline: float) -> None:
        for planned in self.plan:
            wanted = planned.wanted(self._runners)
            if wanted and not planned.runner.wanted and planned.why:
                log.info("source %s is used: %s", planned.runner.spec.name, planned.why)
            planned.runner.wanted = wanted
        started = [runner for runner in self._runners if runner.start_cycle_if_due()]
        for runner in started:
            runner.wait(max(0.0, deadline - self._clock.monotonic()))

    def compose(self) -> Snapshot:
        """Makes and publishes a snapshot of what the sources have now."""
        readings, xids = self._fresh_readings()
        composer, now = self.composer, self._clock.now()
        sources = tuple(runner.status() for runner in self._runners if runner.wanted)
        composed = composer.compose(readings, xids, now=now, monotonic=self._clock.monotonic(), sources=sources)
        self.snapshot = replace(
            composed,
            events=self._events.advance(composed.devices, composer.take_new_xids(), now),
            agent=self._cost.read(),
        )
        for listener in self._listeners:
            try:
                listener(self.snapshot)
            except Exception:
                log.exception("a listener failed on a snapshot")
        return self.snapshot

    def _fresh_readings(self) -> tuple[list[Reading], list[XidEvent]]:
        readings: list[Reading] = []
        xids: list[XidEvent] = []
        for runner in self._runners:
            xids += runner.take_xids()
            reading = runner.fresh()
            if reading is not ABSENT and runner.wanted:
                readings.append(reading)
        return readings, xids
