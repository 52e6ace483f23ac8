"""Whether a list of jobs has all of them, by slurmctld's own count of the jobs that wait or run.

A client leaves out the jobs that its user may not see, and some fail with no output and exit code 0. slurmctld
counts every 30 s, so the count is older than the list. Where MinJobAge in slurm.conf is short, jobs that ended
in between are not listed; slurmctld's statistics say how many ended. Times are slurmctld's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from gpuscope.agent.sources.slurm.slurm_error import SlurmError
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import ENDED, SchedulerStats, SlurmFailure, SlurmJob

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
