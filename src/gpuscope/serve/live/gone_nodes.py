"""Nodes and scrape targets that are gone: which, since when, why, and the GPUs they had.

A node is gone when it was there within the last day and has no samples now. It stays for a day, or until its
target leaves the configuration. What this process did not see itself comes from the history, in PromQL, so that
a restart forgets nothing and any engine can answer. Nodes that push have no target; a node that was scraped has
the series `scrape_duration_seconds`, which is never pushed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.judge.checks.facts import NOTHING_MISSING, Gone, GoneTarget, Missing, Sample
from gpuscope.judge.checks.thresholds import STALE_SECONDS
from gpuscope.serve.live.gone_history import (
    DAY_SECONDS,
    SNAPSHOT_METRIC,
    HistoryQuery,
    LastRead,
    LastSeen,
    last_read_gpus,
    last_seen_nodes,
    look_up,
)

REFRESH_SECONDS: Final = 5.0
EXPLAIN_SECONDS: Final = 10.0
"""A failed scrape ends the series first; the target's state follows a moment later."""
FORGET_AFTER_SECONDS: Final = 240.0
"""After a gap this long a node may have come and gone unseen: the look-back of a query is 5 min."""

ReadTargets = Callable[[], Awaitable[Sequence[TargetHealth]]]


def _present(samples: Iterable[Sample]) -> dict[str, tuple[str, float]]:
    """The job of each node that has samples now, and when they were taken, by instance."""
    return {
        labels.get("instance", ""): (labels.get("job", ""), taken_at)
        for name, labels, taken_at in samples
        if name == SNAPSHOT_METRIC
    }


class GoneWatch:
    """`known_jobs_only` leaves out targets of jobs without a gpuscope agent."""

    def __init__(
        self,
        query_history: HistoryQuery,
        read_targets: ReadTargets,
        *,
        known_jobs_only: bool = False,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._query_history = query_history
        self._limits = limits or Limits()
        self._unread = UnreadGpus(query_history, self._limits, clock)
        self._read_targets = read_targets
        self._known_jobs_only = known_jobs_only
        self._clock = clock
        # The job of each node seen within a day, by instance; those that only the history has seen are first.
        self._nodes: dict[str, str] = {}
        self._found: dict[str, LastSeen] = {}  # what history knows of those that are gone
        self._present: Mapping[str, tuple[str, float]] = {}
        self._unexplained: dict[str, float] = {}  # since when: without samples, and no target said to be down
        self._missing = NOTHING_MISSING
        self._looked_at = float("-inf")
        self._knows_history = False
        self._has_more = False  # nodes are gone that were not looked up yet
        self._lookup = HistoryLookup(self._refresh, "nodes that are gone cannot be looked up")

    async def find_missing(self, samples: Sequence[Sample]) -> Missing:
        """What is missing beside these samples of now."""
        gone, unread = await asyncio.gather(self._find_gone(samples), self._unread.find_missing(samples))
        return replace(gone, samples=[*gone.samples, *unread.samples], unread=unread.unread)

    async def _find_gone(self, samples: Sequence[Sample]) -> Missing:
        """Refreshed when a node has left, and every few seconds."""
        present = await asyncio.to_thread(_present, samples)
        age = self._clock() - self._looked_at
        is_fresh = 0 <= age < REFRESH_SECONDS and not self._unexplained and not self._has_more
        before, self._present = self._present, present
        self._nodes |= {instance: job for instance, (job, _) in present.items()}
        if not is_fresh or not present.keys() >= before.keys():
            await self._lookup.run()
        return self._missing

    async def _refresh(self) -> None:
        now = self._clock()
        self._knows_history &= now - self._looked_at <= FORGET_AFTER_SECONDS
        try:
            if not self._knows_history:
                earlier = await last_seen_nodes(self._query_history, now)
                self._nodes = {one: earlier[one] for one in earlier if one not in self._nodes} | self._nodes
                self._knows_history = True
            states = await self._read_targets()
            down = self._missed(states, now)
            lost = self._lost(down)
            self._found = {one: self._found[one] for one in lost if one in self._found}
            await self._look_up_some([one for one in lost if one not in self._found], now)
        finally:
            self._looked_at = self._clock()
        self._missing = self._describe([state for state in down if state.instance in self._found], now)

    def _missed(self, states: Iterable[TargetHealth], now: float) -> list[TargetHealth]:
        """The targets that are down and were nodes, or should be."""
        # An agent that died while nobody scraped leaves samples without an end, visible for 5 min.
        fresh = {one for one, (_, taken_at) in self._present.items() if now - taken_at <= STALE_SECONDS}
        jobs = set(self._nodes.values())

        def is_missed(state: TargetHealth) -> bool:
            if state.up or state.instance in fresh:
                return False
            if self._known_jobs_only:
                return state.job in jobs
            return state.scraped or state.instance in self._nodes

        return [state for state in states if is_missed(state)]

    def _lost(self, down: Iterable[TargetHealth]) -> list[str]:
        """The instances that are gone. With more than a picture may have, those that this process saw last."""
        lost = dict.fromkeys(node for node in self._nodes if node not in self._present)
        lost |= dict.fromkeys(state.instance for state in down)
        left_out = max(0, len(lost) - self._limits.live_max_gone_nodes)
        if left_out:
            LIMITS_REACHED.count("live_max_gone_nodes")
            for instance in list(lost)[:left_out]:
                del lost[instance]
                self._nodes.pop(instance, None)
        return list(lost)

    async def _look_up_some(self, new: Sequence[str], now: float) -> None:
        """Those that left last are first; the next refresh goes on."""
        known = sum(len(seen.samples) for seen in self._found.values())
        self._has_more = len(new) > MAX_INSTANCES
        if new and known >= self._limits.live_max_subjects:
            LIMITS_REACHED.count("live_max_subjects")
            self._has_more = False
        elif new:
            self._found |= await look_up(self._query_history, new[-MAX_INSTANCES:], now)

    def _describe(self, down: Sequence[TargetHealth], now: float) -> Missing:
        recent = [(state, self._gone(state)) for state in down]
        recent = [(state, gone) for state, gone in recent if now - gone.since < DAY_SECONDS]
        by_instance = {state.instance: gone for state, gone in recent}
        nodes: dict[str, Gone] = {}
        for instance, seen in self._found.items():
            told = by_instance.get(instance)
            if told is None and not seen.was_scraped and now - seen.node_at < DAY_SECONDS:
                told = Gone(since=seen.node_at)  # it sent samples by remote write and has stopped
            # A target that answered but was never a node is another exporter.
            if told is not None and (seen.samples or not told.answered):
                nodes[instance] = told
        self._forget(self._found.keys() - nodes.keys(), now)
        return Missing(
            samples=[sample for instance in nodes for sample in self._found[instance].samples],
            nodes=nodes,
            targets=[
                GoneTarget(job=state.job, instance=state.instance, url=state.url, gone=gone)
                for state, gone in recent
            ],
        )

    def _forget(self, unexplained: Set[str], now: float) -> None:
        """Forgets nodes that no target misses, after a wait: the scraper's state may be late."""
        since = {
            instance: self._unexplained.get(instance, now) for instance in unexplained & self._nodes.keys()
        }
        self._unexplained = {one: at for one, at in since.items() if now - at < EXPLAIN_SECONDS}
        for instance in since.keys() - self._unexplained.keys():
            del self._nodes[instance]

    def _gone(self, state: TargetHealth) -> Gone:
        seen = self._found[state.instance]
        successes = [at for at in (state.last_success, seen.up_at) if at is not None]
        if successes:
            return Gone(since=max(successes), why=state.error)
        if state.first_try is None and seen.first_try is None:
            seen.first_try = self._clock()  # kept: the history is queried once, and `since` must not move
        tries = [at for at in (state.first_try, seen.first_try) if at is not None]
        return Gone(since=min(tries), why=state.error, answered=seen.answered)


log = logging.getLogger("gpuscope.live")

MAX_WAIT_SECONDS: Final = 2.0
MAX_INSTANCES: Final = 100
"""Of one look-up: as many as one query names."""


class HistoryLookup:
    """Looks up in the history beside the live picture, one at a time. A picture waits, but not for long: over a
    slow engine, or with thousands of nodes, the next one has the rest. `look_up` keeps what it finds; `failure`
    begins the log line when it raises."""

    def __init__(
        self, look_up: Callable[[], Awaitable[None]], failure: str, wait_seconds: float = MAX_WAIT_SECONDS
    ) -> None:
        self._look_up = look_up
        self._wait_seconds = wait_seconds
        self._episode = EpisodeLog(log, failure)
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Returns when the look-up has ended, also if it has failed, or after `wait_seconds`."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await asyncio.wait({self._running}, timeout=self._wait_seconds)

    async def _run(self) -> None:
        try:
            await self._look_up()
        except Exception as error:  # the live numbers themselves go on
            self._episode.failed(str(error))
        else:
            self._episode.succeeded()


_TELLING: Final = frozenset({SNAPSHOT_METRIC, "gpuscope_source_up", "gpuscope_gpu_info"})


def _nodes_without_readings(samples: Iterable[Sample]) -> set[str]:
    present, not_answering, read = set(), set(), set()
    for name, labels, value in samples:
        if name not in _TELLING:
            continue
        instance = labels.get("instance", "")
        if name == SNAPSHOT_METRIC:
            present.add(instance)
        elif name == "gpuscope_source_up" and value == 0:
            not_answering.add(instance)
        elif name == "gpuscope_gpu_info":
            read.add(instance)
    return (present & not_answering) - read


class UnreadGpus:
    """GPUs that are not read now although their node's agent answers: the driver blocks every call. The history
    has those that the node had when they were last read, if that was within a day."""

    def __init__(
        self,
        query_history: HistoryQuery,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._query_history = query_history
        self._max_subjects = (limits or Limits()).live_max_subjects
        self._clock = clock
        self._unread: set[str] = set()
        self._found: dict[str, LastRead] = {}  # by instance; queried once while its GPUs are not read
        self._lookup = HistoryLookup(self._look_up_some, "GPUs that are not read cannot be looked up")

    async def find_missing(self, samples: Iterable[Sample]) -> Missing:
        self._unread = await asyncio.to_thread(_nodes_without_readings, samples)
        self._found = {instance: last for instance, last in self._found.items() if instance in self._unread}
        if not self._unread <= self._found.keys():
            await self._lookup.run()
        now = self._clock()
        recent = {one: last for one, last in self._found.items() if now - last.read_at < DAY_SECONDS}
        return Missing(
            samples=[sample for last in recent.values() for sample in last.samples],
            unread={instance: last.read_at for instance, last in recent.items()},
        )

    async def _look_up_some(self) -> None:
        """The next picture goes on."""
        if sum(len(last.samples) for last in self._found.values()) >= self._max_subjects:
            LIMITS_REACHED.count("live_max_subjects")
            return
        new = sorted(self._unread - self._found.keys())[:MAX_INSTANCES]
        self._found |= await last_read_gpus(self._query_history, new, self._clock())
