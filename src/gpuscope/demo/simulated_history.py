"""Fills the store with a simulated fleet's past, six hours or less, while the live view already runs.

Oldest sample first, over all nodes: what is stored is complete until `Store.filled_until_ms`, and reports end
there. A node's live snapshots are stored only when its past is complete: then its collector goes on with the
composer of the past, so that no counter starts again from 0. A node that the store already knows is filled from
its newest sample on. `run` belongs to a thread; `stop` ends it between two snapshots.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter

from gpuscope.agent.collect.composer import SnapshotComposer
from gpuscope.base.clock import Clock
from gpuscope.base.time_text import duration_text
from gpuscope.demo.simulated_node import SimulatedNode
from gpuscope.history.scrape.local_feeds import SnapshotFeed
from gpuscope.history.store import Appended, Store, StoreClosedError, StoreError
from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.model.readings import Snapshot
from gpuscope.model.series import Matcher, MatchOp

log = logging.getLogger("gpuscope")

HISTORY_SECONDS = 6 * 3600
MIN_HISTORY_SECONDS = 3600
MAX_SNAPSHOTS = 6_000  # over all nodes: a snapshot of 8 GPUs takes 6 ms of CPU time, and shares the interpreter
STEP_SECONDS = 60
LARGE_FLEET_STEP_SECONDS = 150  # the longest with which `rate(x[5m])` always finds two samples
LARGE_FLEET_NODES = 16
PAUSE_SECONDS = 0.001  # the event loop and the live collectors need the interpreter
SECONDS_BETWEEN_PAUSES = 0.02  # each costs more than it says: other threads keep the interpreter for a while
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

    def __init__(self, node: SimulatedNode, feed: SnapshotFeed, first: float, step: float) -> None:
        self.node = node
        self.feed = feed
        self.is_live = False
        self.next_at = first
        """The time of the next snapshot of the past."""
        self.count = 0
        self._step = step
        self._composer: SnapshotComposer | None = None
        self._past: _Past | None = None
        self._is_filled = False

    def submit_next(self) -> Future[Appended]:
        since = self.next_at - self._step
        if self._composer is None:
            self._composer = self.node.composer_at(since)
        snapshot = self.node.compose_past(self._composer, self.next_at, since)
        storing = self.feed.submit(snapshot)
        self.next_at += self._step
        self.count += 1
        return storing

    def finish(self, *, is_complete: bool) -> None:
        """Called by the filling thread, which does not touch the feed afterwards."""
        if is_complete and self._composer is not None:
            self._past = _Past(self._composer, self.next_at - self._step)
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
        self._store = store
        self._clock = clock
        self._step = LARGE_FLEET_STEP_SECONDS if len(nodes) > LARGE_FLEET_NODES else STEP_SECONDS
        seconds = history_seconds(len(nodes), self._step)
        first = clock.now() - seconds
        self._fills = [
            _NodeFill(node, feed, self._first_missing(feed, first), self._step) for node, feed in nodes
        ]
        self._begin = min(fill.next_at for fill in self._fills)
        self._ratio = 0.0
        self._storing: deque[tuple[float, Future[Appended]]] = deque()
        """Snapshots that are not committed yet, and their times, ascending."""
        self._progress = _ProgressReport(clock, seconds)
        self._set_filled_until(self._begin)
        for fill in self._fills:
            fill.node.collector.subscribe(fill.take)

    def ratio(self) -> float:
        """How much of the history is stored, from 0 to 1."""
        return self._ratio

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
        try:
            self._fill_all(stop)
        except StoreClosedError:
            return
        if stop.is_set():
            return
        self._ratio = 1.0
        self._store.filled_until_ms = None
        if any(fill.count for fill in self._fills):
            seconds = self._clock.monotonic() - started
            log.info("the simulated history of %d nodes is stored, after %.1f s", len(self._fills), seconds)

    def _wait_for_live_view(self, stop: threading.Event) -> None:
        """The first picture of the fleet comes first: history would take half of the interpreter's time."""
        for _ in range(MAX_WAITS):
            if all(fill.is_live for fill in self._fills) or stop.wait(WAIT_SECONDS):
                return

    def _fill_all(self, stop: threading.Event) -> None:
        """When this returns without `stop`, live snapshots of all nodes are stored."""
        unfinished = list(self._fills)
        paused_at = self._clock.monotonic()
        while unfinished and not stop.is_set():
            fill = min(unfinished, key=attrgetter("next_at"))
            now = self._clock.now()
            try:
                if fill.next_at < now:
                    self._storing.append((fill.next_at, fill.submit_next()))
                    self._ratio = max(0.0, (fill.next_at - self._step - self._begin) / (now - self._begin))
                    self._note_commits(min(fill.next_at for fill in unfinished))
                    self._progress.show(self._ratio)
                    if self._clock.monotonic() - paused_at >= SECONDS_BETWEEN_PAUSES:
                        stop.wait(PAUSE_SECONDS)
                        paused_at = self._clock.monotonic()
                    continue
                self._wait_for_commits()
                fill.finish(is_complete=True)
            except StoreClosedError:
                raise
            except StoreError as error:
                log.error("the simulated history of %s is incomplete: %s", fill.node.source.name, error)
                fill.finish(is_complete=False)
            except Exception:
                log.exception("the simulated history of %s is incomplete", fill.node.source.name)
                fill.finish(is_complete=False)
            unfinished.remove(fill)

    def _note_commits(self, next_at: float) -> None:
        while self._storing and self._storing[0][1].done():
            self._storing.popleft()[1].result()
        self._set_filled_until(self._storing[0][0] if self._storing else next_at)

    def _wait_for_commits(self) -> None:
        """One wait for all: many ticks share a commit."""
        while self._storing:
            self._storing.popleft()[1].result()

    def _set_filled_until(self, not_stored: float) -> None:
        """Until the snapshot before the first one that is not stored."""
        self._store.filled_until_ms = round((not_stored - self._step) * 1000)

    def _first_missing(self, feed: SnapshotFeed, first: float) -> float:
        """The time of the first snapshot to simulate: `first`, or after the newest stored one."""
        matchers = [Matcher("__name__", MatchOp.EQUAL, "up")]
        matchers += [Matcher(name, MatchOp.EQUAL, value) for name, value in feed.labels.items()]
        found = self._store.latest(matchers, int(first * 1000), int(self._clock.now() * 1000))
        newest = max((int(series.timestamps[-1]) / 1000 for series in found), default=None)
        first = first // self._step * self._step
        return first if newest is None else newest + self._step


def history_seconds(nodes: int, step: int) -> int:
    """How long the past of so many nodes is: a large fleet has a shorter one, which is there in minutes."""
    affordable = MAX_SNAPSHOTS // nodes * step
    return min(HISTORY_SECONDS, max(affordable, MIN_HISTORY_SECONDS))


class _ProgressReport:
    """On a terminal one line that is written over; elsewhere a log line now and then."""

    def __init__(self, clock: Clock, history_seconds: float) -> None:
        self._clock = clock
        self._length = duration_text(round(history_seconds) * 1000)
        self._is_terminal = sys.stderr.isatty()
        self._percent = -1
        self._logged_at = clock.monotonic()

    def show(self, ratio: float) -> None:
        percent = int(100 * ratio)
        if percent == self._percent:
            return
        if self._is_terminal:
            # The cursor goes back to the first column, so that the next log line replaces this text.
            sys.stderr.write(f"simulating {self._length} of history: {percent:3d} %\r")
            sys.stderr.flush()
        elif self._clock.monotonic() - self._logged_at >= SECONDS_PER_LOG_LINE:
            self._logged_at = self._clock.monotonic()
            log.info("simulating %s of history: %d %%", self._length, percent)
        else:
            return
        self._percent = percent
