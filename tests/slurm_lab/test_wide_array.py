"""An array of 100,000 tasks in a real Slurm, which is one record until a task starts.

The name of this file puts it last: the tasks are cancelled, but slurmctld remembers them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from tests.slurm_lab.cluster import SlurmCluster
from tests.slurm_lab.native_truth import series
from tests.slurm_lab.test_every_native_metric import (
    imitating_jobs,
    native_differences,
    recording_clients,
)
from tests.slurm_lab.test_live import read, samples


@pytest.mark.slow
def test_a_hundred_thousand_array_tasks(cluster: SlurmCluster, tmp_path: Path) -> None:
    number = cluster.submit("games", "ml", "-J", "huge", "-p", "cpu", "--array=0-99999", "--hold")
    try:
        with recording_clients(cluster, tmp_path) as clients:
            differing, _ = native_differences(cluster, clients, imitating_jobs(cluster))
        assert differing == {}
        found = samples(read(SlurmCommands(str(cluster.clients), 60.0)), SlurmMetrics())
        assert found[series("pending_job_tasks", slurm_job=number)] == 100_000
    finally:
        cluster.run("scancel", number)
