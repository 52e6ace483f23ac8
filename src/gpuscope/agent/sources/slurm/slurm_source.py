"""Reads a Slurm cluster part by part: one request at a time, each at its own interval and with its own result.

A backend (commands, slurmrestd, slurmctld's pages) gives the requests; here they are timed, counted and kept.
Before each round the controller is pinged: with slurmctld down a client blocks for about nine seconds, and the
ping does not. A part whose request failed is ABSENT until it succeeds again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol, TypeVar

from gpuscope.agent.sources.slurm.gres import MAX_HOSTS, MAX_PLACEMENTS, expand_hostlist
from gpuscope.agent.sources.slurm.values import SlurmError, failure_of
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import SourceError, UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe, Reading
from gpuscope.model.readings.slurm import (
    ENDED,
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

# Whether a list of jobs has all of them, by slurmctld's own count of the jobs that wait or run.
#
# A client leaves out the jobs that its user may not see, and some fail with no output and exit code 0.
# slurmctld counts every 30 s, so the count is older than the list. Where MinJobAge in slurm.conf is short,
# jobs that ended in between are not listed; slurmctld's statistics say how many ended. Times are slurmctld's.

MAX_COUNTS_UNCONFIRMED: Final = 20
"""Counts of slurmctld (ten minutes) until a list must have as many jobs as the count before or after it.

Where as many jobs start as end, most lists do. One with hidden jobs does not, however many jobs end.
"""
_ENDED_PER_COUNTED_END: Final = 2
"""slurmctld counts no job that reaches its time limit, and a cancelled array as one."""
_MAX_TOTALS: Final = 1000
_COUNTED: Final = ("Jobs pending", "Jobs running")
_ENDINGS: Final = ("Jobs completed", "Jobs canceled", "Jobs failed")


class JobListCheck:
    def __init__(self) -> None:
        self._last: Maybe[SchedulerStats] = ABSENT
        self._ended_jobs = _EndedJobs()
        self._unconfirmed_jobs: Maybe[int] = ABSENT
        """Jobs that wait or run in the last list, if the count before it did not confirm it."""
        self._counts_unconfirmed = inf  # since a list was confirmed

    def add_statistics(self, statistics: SchedulerStats) -> None:
        """Must get every answer: the count after a list confirms it too."""
        last, self._last = self._last, statistics
        self._ended_jobs.add(statistics, last)
        counted = _sum(statistics, _COUNTED)
        if last is ABSENT or counted is ABSENT or last.jobs_counted_at == statistics.jobs_counted_at:
            return
        if counted > 0:  # whoever sees no jobs agrees with a count of 0
            self._counts_unconfirmed += 1
            if self._unconfirmed_jobs is not ABSENT and self._unconfirmed_jobs >= counted:
                self._unconfirmed_jobs, self._counts_unconfirmed = ABSENT, 0

    def require_all(
        self,
        jobs: tuple[SlurmJob, ...],
        statistics: Maybe[SchedulerStats],
        read_statistics: Callable[[], object],
    ) -> None:
        """Raises SourceError for a list that lacks jobs, or may lack some.

        `statistics` are older than the list; `read_statistics` reads newer ones and adds them. Versions that do
        not count, and lists whose arrays are cut off (`1,3...%2`), are not compared.
        """
        if statistics is ABSENT:
            if not jobs:
                raise UnusableAnswer("no jobs are listed, and the scheduler's statistics do not confirm it")
            return
        counted = _sum(statistics, _COUNTED)
        if counted is ABSENT or any("..." in job.array_task for job in jobs):
            return
        counted_at = statistics.jobs_counted_at
        listed = [job for job in jobs if not _ended_before(job, counted_at)]
        there_at_count = sum(job.tasks for job in listed if not _submitted_after(job, counted_at))
        if there_at_count >= counted:
            self._unconfirmed_jobs = ABSENT
            if counted > 0:
                self._counts_unconfirmed = 0
            return
        self._unconfirmed_jobs = sum(job.tasks for job in jobs if job.state not in ENDED)
        read_statistics()
        if self._last_list_is_confirmed():
            return
        ended = self._ended_jobs.since(counted_at)
        if sum(job.tasks for job in listed) + _ENDED_PER_COUNTED_END * ended < counted:
            self._counts_unconfirmed = inf
        if self._counts_unconfirmed > MAX_COUNTS_UNCONFIRMED:
            since = f", of which {ended:g} may have ended" if 0 < ended < inf else ""
            raise SlurmError(
                f"{there_at_count} jobs are listed where slurmctld counts {counted:g} that wait or run{since}: "
                "the others are hidden from this user, or the list is not complete",
                SlurmFailure.HIDDEN,
            )

    def _last_list_is_confirmed(self) -> bool:
        return self._unconfirmed_jobs is ABSENT


class _EndedJobs:
    """How many jobs have ended, by counters that slurmctld resets at midnight and when it starts."""

    def __init__(self) -> None:
        self._total = 0.0
        self._totals: deque[tuple[float, float]] = deque(maxlen=_MAX_TOTALS)  # (time, total)
        self._reset_at = -inf

    def add(self, statistics: SchedulerStats, last: Maybe[SchedulerStats]) -> None:
        ended = _sum(statistics, _ENDINGS)
        if ended is ABSENT or statistics.answered_at is ABSENT:
            return
        before = ABSENT if last is ABSENT else _sum(last, _ENDINGS)
        if last is not ABSENT and last.statistics_since != statistics.statistics_since:
            self._total += ended
            self._reset_at = inf if statistics.statistics_since is ABSENT else statistics.statistics_since
        elif before is not ABSENT:
            self._total += max(0.0, ended - before)
        self._totals.append((statistics.answered_at, self._total))

    def since(self, time: Maybe[float]) -> float:
        """At least as many as ended since then; infinite if the counters were reset since, and what they
        had counted is lost. 0 if there are no statistics from before."""
        if time is ABSENT:
            return 0.0
        if self._reset_at > time:
            return inf
        return next((self._total - total for at, total in reversed(self._totals) if at < time), 0.0)


def _sum(statistics: SchedulerStats, names: Sequence[str]) -> Maybe[float]:
    counts = [statistics.server[name] for name in names if name in statistics.server]
    return sum(counts) if len(counts) == len(names) else ABSENT


def _ended_before(job: SlurmJob, time: Maybe[float]) -> bool:
    if job.state not in ENDED or job.ends_at is ABSENT or time is ABSENT:
        return False
    return job.ends_at < time


def _submitted_after(job: SlurmJob, time: Maybe[float]) -> bool:
    """Or requeued, which sets a new time."""
    if job.submitted_at is ABSENT or time is ABSENT:
        return False
    return job.submitted_at > time


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
