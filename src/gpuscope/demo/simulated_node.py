"""One node of a simulated fleet: its live collector, and the snapshots that it would have taken in the past.

A module of its own: an agent that simulates a node loads it, and must not load the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuscope.agent.collect.collector import Collector
from gpuscope.agent.collect.composer import SnapshotComposer
from gpuscope.base.clock import Clock
from gpuscope.demo import DemoSource
from gpuscope.model.readings import Snapshot, SourceStatus

UNSTORED_STEP_SECONDS = 150.0
"""After more than 180 s without a reading, durations begin anew."""
SIMULATED = (SourceStatus(name="demo", up=True, why="simulated"),)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    source: DemoSource
    collector: Collector
    build_composer: Callable[[], SnapshotComposer]
    clock: Clock

    def composer_at(self, at: float) -> SnapshotComposer:
        """One that has seen the scenarios from their beginning until `at`: a state that lasts longer than the
        history that is stored, such as a GPU that is free for a day, has its whole age."""
        composer = self.build_composer()
        since = min(at, self.source.scenarios_begin)
        while since + UNSTORED_STEP_SECONDS < at:
            self.compose_past(composer, since + UNSTORED_STEP_SECONDS, since)
            since += UNSTORED_STEP_SECONDS
        composer.take_new_errors()
        return composer

    def compose_past(self, composer: SnapshotComposer, at: float, since: float) -> Snapshot:
        """The snapshot at `at`, after one at `since`; `composer` has composed that one before."""
        reading = self.source.read_at(at, since)
        # The collector goes on with this composer in the present, so the past is in its monotonic time too.
        monotonic = at + self.clock.monotonic() - self.clock.now()
        return composer.compose([reading], reading.errors, now=at, monotonic=monotonic, sources=SIMULATED)

    def continue_from(self, composer: SnapshotComposer, composed_until: float) -> None:
        """Lets the collector go on where the past ends. Only between two of its snapshots."""
        if self.source.read_until > composed_until:
            self.compose_past(composer, self.source.read_until, composed_until)
        else:  # the next reading begins where the past ends, so that no XID is counted twice
            self.source.read_until = composed_until
        composer.take_new_errors()  # events of the past are not reported
        self.collector.composer = composer
