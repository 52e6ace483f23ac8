"""Lists of jobs on a busy cluster, where jobs end and are forgotten between slurmctld's count and the list."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.sources.slurm.slurm_source import Query, SlurmSource
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import SchedulerStats, SlurmFailure, SlurmJob, SlurmState
from tests.examples import examples
from tests.fakes import FakeClock

COUNT_INTERVAL = 30  # JOB_COUNT_INTERVAL in slurmctld
MIN_PURGE_INTERVAL = 10
RESET_INTERVAL = 400  # of the statistics; slurmctld's is a day
STARTING_ROUNDS = 4
"""Until slurmctld's count of jobs is newer than the first statistics that were read."""
CONFIRMING_ROUNDS = 20


@dataclass(slots=True)
class Job:
    user: str
    submitted_at: float
    ends_at: float
    counted: bool  # whether the statistics count its end
    ended: bool = False


@dataclass
class BusyCluster:
    """A backend that purges and counts jobs as slurmctld does."""

    rate: float  # jobs per second
    mean_seconds: float
    min_job_age: float
    chance: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    seen_users: frozenset[str] = frozenset({"alice", "bob", "carol"})
    mode: str = "simulated"
    submitting: bool = True

    def __post_init__(self) -> None:
        self.jobs: list[Job] = []
        self.statistics_since = self.now = self.next_job_at = self.clock.now()
        self.counted_at = self.purged_at = self.now
        self.counted = self.completed = 0
        self.run_until(self.now + 5 * self.mean_seconds + self.chance.uniform(0, COUNT_INTERVAL))
        self.clock.at = self.now

    @property
    def queries(self) -> tuple[Query, ...]:
        return (Query("sdiag", ("scheduler",), self._statistics), Query("squeue", ("jobs",), self._list))

    def ping(self) -> str:
        return "24.11.5"

    def close(self) -> None:
        """Nothing is open."""

    def pass_seconds(self, seconds: float) -> None:
        self.clock.pass_seconds(seconds)
        self.run_until(self.clock.now())

    def run_until(self, end: float) -> None:
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            while self.submitting and self.next_job_at <= self.now:
                seconds = self.chance.expovariate(1 / self.mean_seconds)
                user = self.chance.choice(["alice", "bob", "carol"])
                self.jobs.append(
                    Job(user, self.next_job_at, self.next_job_at + seconds, self.chance.random() > 0.05)
                )
                self.next_job_at += self.chance.expovariate(self.rate)
            for job in self.jobs:
                if not job.ended and job.ends_at <= self.now:
                    job.ended = True
                    self.completed += job.counted
            if self.now - self.purged_at >= max(MIN_PURGE_INTERVAL, min(60, self.min_job_age)):
                self.purged_at = self.now
                self.jobs = [job for job in self.jobs if job.ends_at > self.now - self.min_job_age]
            if self.now - self.counted_at >= COUNT_INTERVAL:
                self.counted_at = self.now
                self.counted = sum(not job.ended for job in self.jobs)
            if self.now - self.statistics_since >= RESET_INTERVAL:
                self.statistics_since, self.completed = float(int(self.now)), 0

    def _statistics(self, parts: Mapping[str, Any]) -> Mapping[str, object]:
        self.pass_seconds(0.1)
        ends = {"Jobs completed": self.completed, "Jobs canceled": 0, "Jobs failed": 0}
        counts = {"Jobs pending": 0, "Jobs running": self.counted}
        statistics = SchedulerStats(
            server={name: float(value) for name, value in (ends | counts).items()},
            answered_at=float(int(self.now)),
            statistics_since=self.statistics_since,
            jobs_counted_at=float(int(self.counted_at)),
        )
        return {"scheduler": statistics}

    def _list(self, parts: Mapping[str, Any]) -> Mapping[str, object]:
        self.pass_seconds(self.chance.uniform(0.1, 3))
        jobs = [job for job in self.jobs if job.user in self.seen_users]
        return {"jobs": tuple(_listed(number, job) for number, job in enumerate(jobs))}


def _listed(number: int, job: Job) -> SlurmJob:
    return SlurmJob(
        job_id=number, user=job.user, account="", partitions=("htc",), name="short", reason="None", cpus=1,
        state="COMPLETED" if job.ended else "RUNNING", node_count=1, gres=(), node_list="n1",
        submitted_at=float(int(job.submitted_at)), ends_at=float(int(job.ends_at)),
    )  # fmt: skip


def states(cluster: BusyCluster, rounds: int) -> Iterator[SlurmState]:
    source = SlurmSource(cluster, interval=15.0, slow_interval=60.0, clock=cluster.clock)
    for _ in range(rounds):
        state = source.read(frozenset()).slurm
        assert state is not ABSENT
        yield state
        cluster.pass_seconds(15.0 + cluster.chance.uniform(-0.3, 0.3))


busy_clusters = st.builds(
    BusyCluster,
    # At least 60 jobs on average: with a few, one user can by chance have as many as a count.
    rate=st.floats(2.0, 4.0),
    mean_seconds=st.floats(30.0, 90.0),
    min_job_age=st.sampled_from([2.0, 5.0, 20.0, 60.0]),
    chance=st.integers(0, 2**32).map(random.Random),
)


@settings(max_examples=examples(25), deadline=None)
@given(busy_clusters)
def test_the_list_of_a_busy_cluster_is_shown(cluster: BusyCluster) -> None:
    """Once a count has confirmed one."""
    shown = [state.jobs is not ABSENT for state in states(cluster, 60)][STARTING_ROUNDS:]
    assert True in shown[:CONFIRMING_ROUNDS]
    assert all(shown[shown.index(True) :])


@settings(max_examples=examples(10), deadline=None)
@given(busy_clusters)
def test_a_queue_that_runs_empty_is_shown(cluster: BusyCluster) -> None:
    rounds = states(cluster, 90)
    confirmed = [next(rounds).jobs is not ABSENT for _ in range(STARTING_ROUNDS + CONFIRMING_ROUNDS)]
    assert confirmed[-1]
    cluster.submitting = False
    assert all(state.jobs is not ABSENT for state in rounds)
    assert all(job.ended for job in cluster.jobs)


@settings(max_examples=examples(10), deadline=None)
@given(busy_clusters, st.integers(10, 30))
def test_a_list_that_is_suddenly_empty_is_not_shown(cluster: BusyCluster, rounds_before: int) -> None:
    """Even if enough jobs end for it, a count shows within ten minutes that some run."""
    rounds = states(cluster, 80)
    for _ in range(rounds_before):
        next(rounds)
    cluster.seen_users = frozenset()
    assert [state.jobs for state in rounds][-5:] == [ABSENT] * 5


@settings(max_examples=examples(25), deadline=None)
@given(busy_clusters, st.sampled_from([frozenset(), frozenset({"alice"})]))
def test_hidden_jobs_are_found_on_a_busy_cluster(cluster: BusyCluster, users: frozenset[str]) -> None:
    cluster.seen_users = users
    for state in states(cluster, 60):
        assert state.jobs is ABSENT
        (squeue,) = (query for query in state.queries if query.name == "squeue")
        assert squeue.failure is SlurmFailure.HIDDEN
