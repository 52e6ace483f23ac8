"""Real Slurm: every native metric against what the cluster's own clients say at that moment.

The name of this file puts it before those that restart slurmctld: nodes take half a minute to register again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.native.slurm_table import SLURM_CLUSTER_METRICS
from gpuscope.agent.sources.slurm.restd import SlurmRest
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.values import REST_API, SHARD_COUNTS_SINCE
from tests.slurm_lab.cluster import CLIENTS, SlurmCluster
from tests.slurm_lab.native_truth import NativeTruth, Samples, native_truth, sdiag_samples, series
from tests.slurm_lab.test_jobs import SHARDS_SINCE
from tests.slurm_lab.test_live import read, samples

QUERIES: dict[str, tuple[str, ...]] = {
    "ping": ("scontrol", "ping"),
    "squeue": ("squeue",),
    "sinfo": ("sinfo",),
    "sdiag": ("sdiag",),
    "sshare": ("sshare",),
    "scontrol show job": ("scontrol", "show", "job", "-a", "-d"),
    "scontrol show reservation": ("scontrol", "show", "reservation"),
    "scontrol show licenses": ("scontrol", "show", "licenses"),
}
"""The client that each request is made with."""
OWN_METRICS = {
    f"gpuscope_slurm_{name}"
    for name in (
        "query_success", "query_duration_seconds", "query_last_success_timestamp_seconds", "queries_total",
        "query_failures_total",
    )
}  # fmt: skip
"""About the requests themselves: compared with this test's own clock and count."""
WITH_SLURMDBD = {
    f"gpuscope_slurm_{name}"
    for name in (
        "fair_share_ratio", "shares_ratio", "usage_ratio", "usage_seconds", "partition_gpus_requested",
        "pending_job_gpus",
    )
}  # fmt: skip
MOMENTS = 10
Differences = dict[str, tuple[float | None, float | None]]
"""(expected, found) by series."""
MAINTENANCE_WITH_JOBS_SINCE = (22, 5)
EXITS_SINCE = (23, 11)
"""`Main scheduler exit` and `Backfill exit` of sdiag."""


def native_differences(
    cluster: SlurmCluster, clients: Path, imitators: tuple[str, ...] = ()
) -> tuple[Differences, set[str]]:
    """What differs, and the names that were compared."""
    names: set[str] = set()

    def compare() -> tuple[NativeTruth, Differences]:
        truth, began_at = native_truth(cluster, imitators), time.time()
        state = read(SlurmCommands(str(clients), 60.0))
        ended_at = time.time()
        assert began_at <= state.read_at <= ended_at
        found = samples(state, SlurmMetrics())
        own = {name: found.pop(name) for name in list(found) if name.partition("{")[0] in OWN_METRICS}
        check_own(cluster, own, began_at, ended_at)
        expected = truth.at(state.read_at) | sdiag_samples((clients / "sdiag.printed").read_text())
        names.update(name.partition("{")[0] for name in (*expected, *own))
        return truth, differing_samples(expected, found)

    return at_one_moment(cluster, compare, lambda: native_truth(cluster, imitators)), names


def differing_samples(expected: Samples, found: Samples) -> Differences:
    return {
        name: (expected.get(name), found.get(name))
        for name in expected.keys() | found.keys()
        if expected.get(name) != found.get(name)
    }


def at_one_moment(
    cluster: SlurmCluster,
    compare: Callable[[], tuple[NativeTruth, Differences]],
    look: Callable[[], NativeTruth],
) -> Differences:
    """The differences at a moment in which the cluster did not change; the last ones, if there are always some.

    Schedulers may change a reason and change it back between the two looks, so one comparison is not enough.
    """
    cluster.wait_for_nodes()
    found: Differences | None = None
    for _ in range(MOMENTS):
        before, differing = compare()
        if look() == before:
            found = differing
            if not found:
                break
    assert found is not None, "the cluster changed all the time"
    return found


def check_own(cluster: SlurmCluster, own: Samples, began_at: float, ended_at: float) -> None:
    """One request of each kind, which succeeds as it does for this test, within the time that was measured."""
    expected = {
        series(metric, query=query)
        for metric in (name.removeprefix("gpuscope_slurm_") for name in OWN_METRICS)
        for query in QUERIES
    }
    assert own.keys() == expected
    for query, command in QUERIES.items():
        cluster.run(*command)
        assert own[series("query_success", query=query)] == 1
        assert own[series("queries_total", query=query)] == 1
        assert own[series("query_failures_total", query=query)] == 0
        assert 0 < own[series("query_duration_seconds", query=query)] <= ended_at - began_at
        assert began_at <= own[series("query_last_success_timestamp_seconds", query=query)] <= ended_at


@contextmanager
def recording_clients(cluster: SlurmCluster, folder: Path) -> Iterator[Path]:
    """The cluster's clients; sdiag, whose numbers change all the time, also keeps what it printed."""
    for name in CLIENTS:
        (folder / name).symlink_to(cluster.clients / name)
    (folder / "sdiag").unlink()
    (folder / "sdiag").write_text(f'#!/bin/sh\n{cluster.clients}/sdiag "$@" | tee {folder}/sdiag.printed\n')
    (folder / "sdiag").chmod(0o755)
    yield folder


@pytest.fixture
def clients(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Path]:
    with recording_clients(cluster, tmp_path) as folder:
        yield folder


def imitating_jobs(cluster: SlurmCluster) -> tuple[str, ...]:
    """The job whose name is another's record."""
    return tuple(number for name, number in cluster.jobs.items() if "JobId=" in name)


def test_every_native_metric_is_what_the_clients_say(cluster: SlurmCluster, clients: Path) -> None:
    differing, compared = native_differences(cluster, clients, imitating_jobs(cluster))
    assert differing == {}
    expected = {row.name for row in SLURM_CLUSTER_METRICS} - WITH_SLURMDBD
    if cluster.version < EXITS_SINCE:
        expected.remove("gpuscope_slurm_scheduler_exits_total")
    assert compared == expected


def test_slurmrestd_gives_the_same(cluster: SlurmCluster) -> None:
    """No job imitates another there. Statistics are compared in the mode of commands, from the same output."""
    if not cluster.has("slurmrestd") or cluster.version < REST_API[-1][0]:
        pytest.skip("no slurmrestd that is read")
    backend = SlurmRest(cluster.start_rest(), 60.0)
    statistics = OWN_METRICS | {name.partition("{")[0] for name in sdiag_samples(cluster.run("sdiag"))}

    def without_statistics(found: Samples) -> Samples:
        return {name: value for name, value in found.items() if name.partition("{")[0] not in statistics}

    def compare() -> tuple[NativeTruth, Differences]:
        truth = native_truth(cluster, mode="restd")
        state = read(backend)
        found = samples(state, SlurmMetrics())
        assert statistics - OWN_METRICS <= {name.partition("{")[0] for name in found}
        expected = without_statistics(truth.at(state.read_at))
        return truth, differing_samples(expected, without_statistics(found))

    assert at_one_moment(cluster, compare, lambda: native_truth(cluster, mode="restd")) == {}


@pytest.mark.parametrize(
    ("node", "kind", "job", "shares"), [("gpu3", "shard", "shard", 2), ("mps1", "mps", "mps", 50)]
)
def test_shares_of_gpus(
    cluster: SlurmCluster, clients: Path, node: str, kind: str, job: str, shares: int
) -> None:
    """Of a node: counted from 23.02 on, and not known before. Of a job and its user: in every version."""
    cluster.wait_for_nodes()
    found = samples(read(SlurmCommands(str(clients), 60.0)), SlurmMetrics())
    of_node = {name: n for name, n in found.items() if f'node_gpus{{node="{node}",gres="{kind}"' in name}
    allocated = [count for name, count in of_node.items() if 'state="allocated"' in name]
    is_plain = kind == "shard" and cluster.version < SHARDS_SINCE
    if is_plain or cluster.version >= SHARD_COUNTS_SINCE:
        assert sum(allocated) == shares
    else:
        assert sum(allocated) == 0
        assert len(allocated) < len(re.findall(f"{kind}:", node_gres(cluster, node)))
    of_users = [n for name, n in found.items() if "user_gpus_allocated{" in name and f'gres="{kind}"' in name]
    assert of_users == [shares]
    held = f'job_gres_info{{slurm_job="{cluster.jobs[job]}",node="{node}",gres="{kind}"'
    assert [n for name, n in found.items() if held in name] == ([] if is_plain else [1])


def node_gres(cluster: SlurmCluster, node: str) -> str:
    return cluster.run("scontrol", "-o", "show", "node", node).partition(" Gres=")[2].split()[0]


@pytest.fixture
def maintenance(cluster: SlurmCluster) -> Iterator[None]:
    """gpu1, which has one GPU that no job holds, is in maintenance."""
    if cluster.version < MAINTENANCE_WITH_JOBS_SINCE:
        pytest.skip("this version of Slurm shows a node in maintenance as mixed while it has jobs")
    cluster.run("scontrol", "create", "reservation", "ReservationName=fans", "StartTime=now", "Duration=60",
                "Nodes=gpu1", "Users=root", "Flags=MAINT,IGNORE_JOBS")  # fmt: skip
    try:
        cluster.wait("maintenance", lambda: "MAINT" in gpu1_state(cluster))
        yield
    finally:
        cluster.run("scontrol", "delete", "ReservationName=fans")
        cluster.wait("its end", lambda: "MAINT" not in gpu1_state(cluster))


def gpu1_state(cluster: SlurmCluster) -> str:
    return cluster.run("scontrol", "-o", "show", "node", "gpu1").partition(" State=")[2].split()[0]


def test_gpus_of_a_node_in_maintenance_are_not_idle(
    cluster: SlurmCluster, clients: Path, maintenance: None
) -> None:
    differing, _ = native_differences(cluster, clients, imitating_jobs(cluster))
    assert differing == {}
    found = samples(read(SlurmCommands(str(clients), 60.0)), SlurmMetrics())
    gpu1 = {"node": "gpu1", "gres": "gpu", "model": "a100"}
    assert found[series("node_gpus", **gpu1, state="drained")] == 1
    assert found[series("node_gpus", **gpu1, state="idle")] == 0
    assert found[series("node_flag", node="gpu1", flag="maint")] == 1
