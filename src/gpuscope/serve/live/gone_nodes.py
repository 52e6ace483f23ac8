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
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.go_quote import quote
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.judge.checks.facts import NOTHING_MISSING, TAKEN_AT, Gone, GoneTarget, Missing, Sample
from gpuscope.judge.checks.finding_details import one_of
from gpuscope.judge.checks.thresholds import STALE_SECONDS

# In the history, a subquery with a step of a minute finds the time of a series' last sample: `since` may be a
# minute early, never late; the first try of a target that never answered may be a minute late. A GPU belongs to
# the last picture of a node if it was seen at most one look-back (5 min) before the node itself.
DAY_SECONDS: Final = 86400.0
LOOK_BACK_SECONDS: Final = 300.0
# A little more than a day, to tell what began before the day from what began in its first minute.
_WINDOW: Final = "1d5m"
# A step of a minute over the day; a finer one over the last minutes, where a coarse step may hit no sample.
_WINDOWS: Final = (f"{_WINDOW}:1m", "10m:5s")
_GPU_IDENTITY: Final = ("gpuscope_gpu_info", "gpuscope_mig_info")

T = TypeVar("T")
Found = tuple[Mapping[str, str], float]
HistoryQuery = Callable[[str, float], Awaitable[Iterable[Found]]]
"""An instant query at a time: labels and values."""


@dataclass(slots=True)
class LastSeen:
    """What history knows of one instance; times in seconds since the epoch."""

    answered: bool = False  # a scrape succeeded within the day
    up_at: float | None = None  # when the last one did
    first_try: float | None = None  # the first scrape within the day
    was_scraped: bool = False
    node_at: float = 0.0  # the last sample of its agent; 0: it never was a node
    samples: list[Sample] = field(default_factory=list)


async def last_seen_nodes(query_history: HistoryQuery, now: float) -> dict[str, str]:
    """The job of every node seen within a day, by instance."""
    found = await query_history(f"count_over_time(gpuscope_agent_info[{_WINDOW}])", now)
    return {labels.get("instance", ""): labels.get("job", "") for labels, _ in found}


async def look_up(query_history: HistoryQuery, instances: Collection[str], now: float) -> dict[str, LastSeen]:
    """Each query names all the instances."""
    seen: dict[str, LastSeen] = {instance: LastSeen() for instance in instances}
    await _look_up_scrapes(query_history, _matcher(instances), now, seen)
    await _look_up_identity(
        query_history, _matcher(instances), now, seen, ("gpuscope_agent_info", *_GPU_IDENTITY)
    )
    for instance, one in seen.items():
        if one.node_at:
            one.samples.append((TAKEN_AT, {"instance": instance}, one.node_at))
    return seen


async def last_read_gpus(
    query_history: HistoryQuery, instances: Collection[str], now: float
) -> dict[str, LastSeen]:
    """The GPUs that each instance had when they were last read; `node_at` is that time."""
    seen: dict[str, LastSeen] = {instance: LastSeen() for instance in instances}
    await _look_up_identity(query_history, _matcher(instances), now, seen, _GPU_IDENTITY)
    return seen


def _of_instances(
    wanted: Mapping[str, T], found: Iterable[Found]
) -> Iterator[tuple[T, Mapping[str, str], float]]:
    """Leaves out instances that were not asked for: an engine may answer with anything."""
    for labels, value in found:
        one = wanted.get(labels.get("instance", ""))
        if one is not None:
            yield one, labels, value


def _matcher(instances: Iterable[str]) -> str:
    return "{instance=~" + quote(one_of(instances)) + "}"


async def _look_up_scrapes(
    query_history: HistoryQuery, only: str, now: float, seen: dict[str, LastSeen]
) -> None:
    up = f"up{only}"
    found = await query_history(f"max_over_time({up}[{_WINDOW}])", now)
    for one, _, best in _of_instances(seen, found):
        one.answered |= best == 1
    found = await _last_times(query_history, f"timestamp({up}) and {up} == 1", now)
    for one, _, at in _of_instances(seen, found):
        one.up_at = at if one.up_at is None else max(one.up_at, at)
    for window in _WINDOWS:
        found = await query_history(f"min_over_time(timestamp({up})[{window}])", now)
        for one, _, at in _of_instances(seen, found):
            one.first_try = at if one.first_try is None else min(one.first_try, at)
    found = await query_history(f"count_over_time(scrape_duration_seconds{only}[{_WINDOW}])", now)
    for one, _, _ in _of_instances(seen, found):
        one.was_scraped = True


async def _look_up_identity(
    query_history: HistoryQuery, only: str, now: float, seen: dict[str, LastSeen], names: Iterable[str]
) -> None:
    """Whole GPUs come before their instances: the last of each says which were there to the end."""
    for name in names:
        found = list(await query_history(f"count_over_time({name}{only}[{_WINDOW}])", now))
        times = {
            _key(labels): at for labels, at in await _last_times(query_history, f"timestamp({name}{only})", now)
        }
        dated = [
            (one, labels, times.get(_key(labels), one.node_at)) for one, labels, _ in _of_instances(seen, found)
        ]
        for one, _, at in dated:
            one.node_at = max(one.node_at, at)
        for one, labels, at in dated:
            if at > one.node_at - LOOK_BACK_SECONDS:
                one.samples.append((name, labels, 1.0))


async def _last_times(query_history: HistoryQuery, times: str, now: float) -> list[Found]:
    """The latest of each series of timestamps."""
    found = []
    for window in _WINDOWS:
        found += list(await query_history(f"max_over_time(({times})[{window}])", now))
    return sorted(found, key=lambda one: one[1])


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in labels.items() if name != "__name__")


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
        if name == TAKEN_AT
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


def _nodes_without_readings(samples: Iterable[Sample]) -> set[str]:
    present, not_answering, read = set(), set(), set()
    for name, labels, value in samples:
        instance = labels.get("instance", "")
        if name == TAKEN_AT:
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
        self._found: dict[str, LastSeen] = {}  # by instance; queried once while its GPUs are not read
        self._lookup = HistoryLookup(self._look_up_some, "GPUs that are not read cannot be looked up")

    async def find_missing(self, samples: Iterable[Sample]) -> Missing:
        self._unread = await asyncio.to_thread(_nodes_without_readings, samples)
        self._found = {instance: last for instance, last in self._found.items() if instance in self._unread}
        if not self._unread <= self._found.keys():
            await self._lookup.run()
        now = self._clock()
        recent = {one: last for one, last in self._found.items() if now - last.node_at < DAY_SECONDS}
        return Missing(
            samples=[sample for last in recent.values() for sample in last.samples],
            unread={instance: last.node_at for instance, last in recent.items()},
        )

    async def _look_up_some(self) -> None:
        """The next picture goes on."""
        if sum(len(last.samples) for last in self._found.values()) >= self._max_subjects:
            LIMITS_REACHED.count("live_max_subjects")
            return
        new = sorted(self._unread - self._found.keys())[:MAX_INSTANCES]
        self._found |= await last_read_gpus(self._query_history, new, self._clock())
