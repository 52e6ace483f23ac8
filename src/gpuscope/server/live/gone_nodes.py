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
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from gpuscope.episode_log import EpisodeLog
from gpuscope.health.facts import Sample
from gpuscope.health.missing import NOTHING_MISSING, Gone, GoneTarget, Missing
from gpuscope.health.thresholds import STALE_SECONDS
from gpuscope.scrape.target_health import TargetHealth
from gpuscope.server.live.gone_history import (
    DAY_SECONDS,
    SNAPSHOT_METRIC,
    HistoryQuery,
    LastSeen,
    last_seen_nodes,
    look_up,
)
from gpuscope.server.live.unread_gpus import UnreadGpus

log = logging.getLogger("gpuscope.live")

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._query_history = query_history
        self._unread = UnreadGpus(query_history, clock)
        self._read_targets = read_targets
        self._known_jobs_only = known_jobs_only
        self._clock = clock
        self._nodes: dict[str, str] = {}  # the job of each node seen within a day, by instance
        self._found: dict[str, LastSeen] = {}  # what history knows of those that are gone
        self._present: Mapping[str, tuple[str, float]] = {}
        self._unexplained: dict[str, float] = {}  # since when: without samples, and no target said to be down
        self._missing = NOTHING_MISSING
        self._looked_at = float("-inf")
        self._episode = EpisodeLog(log, "nodes that are gone cannot be looked up")

    async def find_missing(self, samples: Sequence[Sample]) -> Missing:
        """What is missing beside these samples of now."""
        gone, unread = await self._find_gone(samples), await self._unread.find_missing(samples)
        return replace(gone, samples=[*gone.samples, *unread.samples], unread=unread.unread)

    async def _find_gone(self, samples: Sequence[Sample]) -> Missing:
        """Refreshed when a node has left, and every few seconds."""
        now = self._clock()
        present = await asyncio.to_thread(_present, samples)
        is_fresh = 0 <= now - self._looked_at < REFRESH_SECONDS and not self._unexplained
        before, self._present = self._present, present
        self._nodes |= {instance: job for instance, (job, _) in present.items()}
        if is_fresh and present.keys() >= before.keys():
            return self._missing
        try:
            self._missing = await self._refresh(present, now)
        except Exception as error:  # the live numbers themselves go on
            self._episode.failed(str(error))
        else:
            self._episode.succeeded()
        self._looked_at = self._clock()
        return self._missing

    async def _refresh(self, present: Mapping[str, tuple[str, float]], now: float) -> Missing:
        if now - self._looked_at > FORGET_AFTER_SECONDS:
            self._nodes |= await last_seen_nodes(self._query_history, now)
        # An agent that died while nobody scraped leaves samples without an end, visible for 5 min.
        fresh = {one for one, (_, taken_at) in present.items() if now - taken_at <= STALE_SECONDS}
        states = await self._read_targets()
        down = [state for state in states if self._is_missed(state, fresh)]
        lost = (self._nodes.keys() - present.keys()) | {state.instance for state in down}
        self._found = {instance: seen for instance, seen in self._found.items() if instance in lost}
        self._found |= await look_up(self._query_history, lost - self._found.keys(), now)
        return self._describe(lost, down, now)

    def _is_missed(self, state: TargetHealth, fresh: Collection[str]) -> bool:
        if state.up or state.instance in fresh:
            return False
        if self._known_jobs_only:
            return state.job in self._nodes.values()
        return state.scraped or state.instance in self._nodes

    def _describe(self, lost: Set[str], down: Sequence[TargetHealth], now: float) -> Missing:
        recent = [(state, self._gone(state)) for state in down]
        recent = [(state, gone) for state, gone in recent if now - gone.since < DAY_SECONDS]
        by_instance = {state.instance: gone for state, gone in recent}
        nodes: dict[str, Gone] = {}
        for instance in lost:
            seen, told = self._found[instance], by_instance.get(instance)
            if told is None and not seen.was_scraped and now - seen.node_at < DAY_SECONDS:
                told = Gone(since=seen.node_at)  # it sent samples by remote write and has stopped
            # A target that answered but was never a node is another exporter.
            if told is not None and (seen.samples or not told.answered):
                nodes[instance] = told
        self._forget(lost - nodes.keys(), now)
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
