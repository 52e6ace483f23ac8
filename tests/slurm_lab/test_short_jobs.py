"""A real Slurm that forgets jobs at once (MinJobAge=2) and runs many short ones: every list is shown."""

from __future__ import annotations

import time

import pytest

from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.model.readings import ABSENT
from tests.slurm_lab.cluster import running_cluster
from tests.slurm_lab.roots import slurm_root

COUNT_SECONDS = 30
"""How often slurmctld counts jobs."""


@pytest.mark.slow  # three of slurmctld's counts
@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_list_that_is_newer_than_slurmctlds_count(version: str) -> None:
    with running_cluster(slurm_root(version), "MinJobAge=2") as cluster:
        tasks = ("-p", "cpu", "-c", "1", "--mem=10", "--array=0-999")
        cluster.submit("games", "ml", *tasks, script="sleep 2")
        source = SlurmSource(SlurmCommands(str(cluster.clients), 60.0, 0), interval=0.0, slow_interval=1e9)
        began = time.monotonic()
        refused: list[str] = []
        smaller_lists = 0

        def has_run_for(counts: float) -> bool:
            nonlocal smaller_lists
            state = source.read(frozenset()).slurm
            assert state is not ABSENT
            assert state.scheduler is not ABSENT
            passed = time.monotonic() - began
            refused.extend(
                query.why for query in state.queries if not query.success and passed > 2 * COUNT_SECONDS
            )
            if state.jobs is not ABSENT:
                counted = sum(state.scheduler.server[name] for name in ("Jobs pending", "Jobs running"))
                smaller_lists += sum(job.tasks for job in state.jobs) < counted
            return passed > counts * COUNT_SECONDS

        cluster.wait("slurmctld to count jobs", lambda: has_run_for(4))
        assert refused == []
        assert smaller_lists > 0, "no job was forgotten between a count and a list"
