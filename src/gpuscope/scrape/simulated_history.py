"""Fills the store with six hours of a simulated fleet's past while the live view already runs.

Node by node, oldest sample first. A node's live snapshots are stored only when its past is complete: then its
collector goes on with the composer of the past, so that no counter starts again from 0. A node that
the store already knows is filled from its newest sample on. `run` belongs to a thread; `stop` ends it between
two snapshots.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscope.clock import Clock
from gpuscope.collect.composer import SnapshotComposer
from gpuscope.collect.simulated_node import SimulatedNode
from gpuscope.metrics.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.readings import Snapshot
from gpuscope.scrape.snapshot_feed import SnapshotFeed
from gpuscope.series import Matcher, MatchOp
from gpuscope.store import Store, StoreClosedError, StoreError

log = logging.getLogger("gpuscope")

HISTORY_SECONDS = 6 * 3600
STEP_SECONDS = 60
LARGE_FLEET_STEP_SECONDS = 150  # the longest with which `rate(x[5m])` always finds two samples
LARGE_FLEET_NODES = 16
PAUSE_SECONDS = 0.001  # after each snapshot: the event loop and the live collectors need the interpreter
SECONDS_PER_LOG_LINE = 10.0
WAIT_SECONDS = 0.05
MAX_WAITS = 600


@dataclass(frozen=True, slots=True)
class _Past:
    """A node's complete past: what composed it, and until when."""

    composer: SnapshotComposer
    until: float


class _NodeFill:
    """One node: first its past goes to the store, from the filling thread, then its live snapshots."""

    def __init__(self, node: SimulatedNode, feed: SnapshotFeed) -> None:
        self.node = node
        self.feed = feed
        self.is_live = False
        self._past: _Past | None = None
        self._is_filled = False

    def finish(self, past: _Past | None) -> None:
        """Called by the filling thread, which does not touch the feed afterwards."""
        self._past = past
        self._is_filled = True

    def take(self, snapshot: Snapshot) -> None:
        """A live snapshot, in the collector's thread."""
        self.is_live = True
        if not self._is_filled:
            return
        past, self._past = self._past, None
        if past is None:
            self.feed.take(snapshot)
        else:  # this snapshot has the counters of before; the next one is stored
            self.node.continue_from(past.composer, past.until)


class SimulatedHistory:
    def __init__(self, nodes: Sequence[tuple[SimulatedNode, SnapshotFeed]], store: Store, clock: Clock) -> None:
        self._fills = [_NodeFill(node, feed) for node, feed in nodes]
        self._store = store
        self._clock = clock
        self._step = LARGE_FLEET_STEP_SECONDS if len(nodes) > LARGE_FLEET_NODES else STEP_SECONDS
        self._nodes_done = 0
        self._node_ratio = 0.0
        self._progress = _ProgressReport(clock)
        for fill in self._fills:
            fill.node.collector.subscribe(fill.take)

    def ratio(self) -> float:
        """How much of the history is stored, from 0 to 1."""
        return (self._nodes_done + self._node_ratio) / len(self._fills)

    def families(self) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "gpuscope_demo_history_ratio",
            "gauge",
            "Share of the simulated history that is stored; below 1 while it is being filled in.",
            [Sample(NO_LABELS, self.ratio())],
        )

    def run(self, stop: threading.Event) -> None:
        self._wait_for_live_view(stop)
        started = self._clock.monotonic()
        first = self._clock.now() - HISTORY_SECONDS
        stored = 0
        for fill in self._fills:
            try:
                stored += self._fill(fill, first, stop)
            except StoreClosedError:
                return
            except StoreError as error:
                log.error("the simulated history of %s is incomplete: %s", fill.node.source.name, error)
                fill.finish(None)
            except Exception:
                log.exception("the simulated history of %s is incomplete", fill.node.source.name)
                fill.finish(None)
            if stop.is_set():
                return
            self._node_ratio = 0.0  # first, so that the sum never shows a node that is not done
            self._nodes_done += 1
        if stored:
            seconds = self._clock.monotonic() - started
            log.info("the simulated history of %d nodes is stored, after %.1f s", len(self._fills), seconds)

    def _wait_for_live_view(self, stop: threading.Event) -> None:
        """The first picture of the fleet comes first: history would take half of the interpreter's time."""
        for _ in range(MAX_WAITS):
            if all(fill.is_live for fill in self._fills) or stop.wait(WAIT_SECONDS):
                return

    def _fill(self, fill: _NodeFill, first: float, stop: threading.Event) -> int:
        """How many snapshots were stored. When this returns without `stop`, live snapshots are stored."""
        at = self._first_missing(fill.feed, first)
        composer, since, count, storing = fill.node.build_composer(), at - self._step, 0, None
        begin = at
        while at < (now := self._clock.now()):
            if stop.is_set():
                return count
            storing = fill.feed.submit(fill.node.compose_past(composer, at, since))
            count, since, at = count + 1, at, at + self._step
            self._node_ratio = (since - begin) / (now - begin)  # below 1 until the node is finished
            self._progress.show(self.ratio())
            stop.wait(PAUSE_SECONDS)
        if storing is not None:
            storing.result()  # one wait for all: many ticks share a commit
        fill.finish(_Past(composer, since) if count else None)
        return count

    def _first_missing(self, feed: SnapshotFeed, first: float) -> float:
        """The time of the first snapshot to simulate: six hours ago, or after the newest stored one."""
        matchers = [Matcher("__name__", MatchOp.EQUAL, "up")]
        matchers += [Matcher(name, MatchOp.EQUAL, value) for name, value in feed.labels.items()]
        found = self._store.latest(matchers, int(first * 1000), int(self._clock.now() * 1000))
        newest = max((int(series.timestamps[-1]) / 1000 for series in found), default=None)
        first = first // self._step * self._step
        return first if newest is None else newest + self._step


class _ProgressReport:
    """On a terminal one line that is written over; elsewhere a log line now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_terminal = sys.stderr.isatty()
        self._percent = -1
        self._logged_at = clock.monotonic()

    def show(self, ratio: float) -> None:
        percent = int(100 * ratio)
        if percent == self._percent:
            return
        if self._is_terminal:
            # The cursor goes back to the first column, so that the next log line replaces this text.
            sys.stderr.write(f"simulating 6 h of history: {percent:3d} %\r")
            sys.stderr.flush()
        elif self._clock.monotonic() - self._logged_at >= SECONDS_PER_LOG_LINE:
            self._logged_at = self._clock.monotonic()
            log.info("simulating 6 h of history: %d %%", percent)
        else:
            return
        self._percent = percent
