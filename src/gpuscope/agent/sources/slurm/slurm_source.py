"""Reads a Slurm cluster part by part: one request at a time, each at its own interval and with its own result.

A backend (commands, slurmrestd, slurmctld's pages) gives the requests; here they are timed, counted and kept.
Before each round the controller is pinged: with slurmctld down a client blocks for about nine seconds, and the
ping does not. A part whose request failed is ABSENT until it succeeds again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from gpuscope.agent.sources.slurm.hostlist import MAX_HOSTS, MAX_PLACEMENTS, expand_hostlist
from gpuscope.agent.sources.slurm.job_list_check import JobListCheck
from gpuscope.agent.sources.slurm.slurm_error import failure_of
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Maybe, Reading
from gpuscope.model.readings.slurm import (
    HOLDS_RESOURCES,
    JobPlacement,
    SchedulerStats,
    SlurmFailure,
    SlurmJob,
    SlurmNode,
    SlurmQuery,
    SlurmState,
)
from gpuscope.model.source import Tier

log = logging.getLogger("gpuscope.source")

PING: Final = "ping"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """One request. `read` gets the parts that are known so far and returns those that `fills` names."""

    name: str
    fills: tuple[str, ...]  # fields of SlurmState
    read: Callable[[Mapping[str, Any]], Mapping[str, object]]
    slow: bool = False


class Backend(Protocol):
    mode: str

    def ping(self) -> str:
        """The version of Slurm, or an empty text. Raises SourceError if no controller answers."""

    @property
    def queries(self) -> tuple[Query, ...]: ...

    def close(self) -> None: ...


class _Tally:
    """What is known about one kind of request."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.due_at = float("-inf")
        self._clock = clock
        self._runs = self._failures = 0
        self._why = "not read yet"
        self._failure = SlurmFailure.OTHER
        self._duration: Maybe[float] = ABSENT
        self._succeeded_at: Maybe[float] = ABSENT
        self._episode = EpisodeLog(log, f"source slurm: {name}", recovered="answers", clock=clock.monotonic)

    def run(self, read: Callable[[], T], *, logged: bool = True) -> T:
        began = self._clock.monotonic()
        self._runs += 1
        try:
            value = read()
        except SourceError as error:
            self._fail(error, logged=logged)
            raise
        finally:
            self._duration = self._clock.monotonic() - began
        self._why, self._succeeded_at = "", self._clock.now()
        self._episode.succeeded()
        return value

    def _fail(self, error: SourceError, *, logged: bool) -> None:
        self._failures += 1
        self._why, self._failure = str(error), failure_of(error)
        if logged:
            self._episode.failed(self._why, kind="failed")

    def skip(self, why: str) -> None:
        """No request in this round, because the controller is down."""
        self._why, self._failure = why, SlurmFailure.OTHER

    def status(self) -> SlurmQuery:
        return SlurmQuery(
            name=self.name,
            success=not self._why,
            why=self._why,
            failure=self._failure if self._why else ABSENT,
            runs=self._runs,
            failures=self._failures,
            duration_seconds=self._duration,
            last_success_at=self._succeeded_at,
        )


class SlurmSource:
    def __init__(
        self,
        backend: Backend,
        *,
        interval: float,
        slow_interval: float,
        job_series: int = 1000,
        pending_series: int = 100,
        clock: Clock | None = None,
    ) -> None:
        self._backend = backend
        self._clock = clock or SystemClock()
        self._intervals = {False: interval, True: slow_interval}
        self._slack = 0.5 * interval
        self._job_series = job_series
        self._pending_series = pending_series
        self._ping = _Tally(PING, self._clock)
        self._tallies = {query.name: _Tally(query.name, self._clock) for query in backend.queries}
        self._parts: dict[str, Any] = {}
        self._job_list_check = JobListCheck()

    def read(self, due: frozenset[Tier]) -> Reading:
        try:
            version = self._run_ping()
            for query in self._due_queries():
                if not self._run(query):
                    self._run_ping()  # a request that failed because the controller died ends the round
        except SourceError as error:
            return self._down(error)
        parts = dict(self._parts)
        if parts.get("jobs", ABSENT) is not ABSENT and parts.get("placements", ABSENT) is not ABSENT:
            parts["placements"] = _plausible(parts["placements"], parts["jobs"])
        state = SlurmState(
            up=True,
            mode=self._backend.mode,
            read_at=self._clock.now(),
            version=version or ABSENT,
            queries=self._statuses(),
            max_job_series=self._job_series,
            max_pending_series=self._pending_series,
            **parts,
        )
        return Reading(slurm=state)

    def close(self) -> None:
        self._backend.close()

    def _run_ping(self) -> str:
        # Not logged here: the worker logs once that the source is down.
        return self._ping.run(self._backend.ping, logged=False)

    def _due_queries(self) -> list[Query]:
        now = self._clock.monotonic()
        return [query for query in self._backend.queries if now >= self._tallies[query.name].due_at]

    def _run(self, query: Query) -> bool:
        tally = self._tallies[query.name]
        tally.due_at = self._clock.monotonic() + self._intervals[query.slow] - self._slack
        try:
            self._parts.update(tally.run(lambda: self._complete(query.read(self._parts))))
        except SourceError:
            for name in query.fills:
                self._parts.pop(name, None)
            return False
        return True

    def _complete(self, answer: Mapping[str, object]) -> Mapping[str, object]:
        """Raises SourceError for a list of jobs that lacks some."""
        match answer:
            case {"scheduler": SchedulerStats() as statistics}:
                self._job_list_check.add_statistics(statistics)
            case {"jobs": tuple() as jobs}:
                statistics = self._parts.get("scheduler", ABSENT)
                self._job_list_check.require_all(jobs, statistics, self._read_statistics)
        return answer

    def _read_statistics(self) -> None:
        for query in self._backend.queries:
            if "scheduler" in query.fills:
                self._run(query)

    def _down(self, error: SourceError) -> Reading:
        """Forgets every part: the last answers of a controller that is down may be wrong. All are read again
        when it is back."""
        self._parts.clear()
        self._job_list_check = JobListCheck()
        for tally in self._tallies.values():
            tally.due_at = float("-inf")
            tally.skip("slurmctld does not answer")
        state = SlurmState(
            up=False,
            why=str(error),
            failure=failure_of(error),
            mode=self._backend.mode,
            read_at=self._clock.now(),
            queries=self._statuses(),
            max_job_series=self._job_series,
            max_pending_series=self._pending_series,
        )
        return Reading(slurm=state, down=state.why)

    def _statuses(self) -> tuple[SlurmQuery, ...]:
        return tuple(tally.status() for tally in (self._ping, *self._tallies.values()))


def nodes_by_name(parts: Mapping[str, Any]) -> Mapping[str, SlurmNode]:
    nodes = parts.get("nodes", ABSENT)
    return {} if nodes is ABSENT else {node.name: node for node in nodes}


def _plausible(
    placements: Mapping[int, tuple[JobPlacement, ...]], jobs: tuple[SlurmJob, ...]
) -> Mapping[int, tuple[JobPlacement, ...]]:
    """Placements of jobs that still hold resources, on nodes that the list of jobs names too.

    The two lists are read at different moments.
    """
    expanded: dict[str, frozenset[str]] = {}
    left = MAX_PLACEMENTS
    kept = {}
    for job in jobs:
        found = placements.get(job.job_id)
        if found is None or job.state not in HOLDS_RESOURCES:
            continue
        names = expanded.get(job.node_list) if found else frozenset()
        if names is None:
            names = expanded[job.node_list] = _names(job.node_list, left)
            left -= len(names)
        if all(placement.node in names for placement in found):
            kept[job.job_id] = found
    return kept


def _names(node_list: str, max_names: int) -> frozenset[str]:
    try:
        return frozenset(expand_hostlist(node_list, min(max_names, MAX_HOSTS)))
    except ValueError:
        return frozenset()
