"""One cluster for each version of Slurm, shared by the modules here: 22.05, and with SLOW=1 older and newer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm_lab.cluster import SlurmCluster, running_cluster, submit_jobs
from tests.slurm_lab.roots import slurm_root

OWN_PAGES = "MetricsType=metrics/openmetrics"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("20.11", marks=pytest.mark.slow),
        "22.05",
        pytest.param("24.11", marks=pytest.mark.slow),
        pytest.param("26.05", marks=pytest.mark.slow),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    root = slurm_root(request.param)
    with running_cluster(root, OWN_PAGES if request.param == "26.05" else "") as cluster:
        cluster.jobs = submit_jobs(cluster)
        yield cluster
