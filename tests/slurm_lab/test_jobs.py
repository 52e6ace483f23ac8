"""Jobs of a real Slurm on its nodes: what the prolog notes, what slurmstepd knows, what an agent shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.owners.job_files import JobFiles, read_job_files
from gpuscope.agent.owners.node_jobs import SlurmPids
from gpuscope.agent.owners.process_lookup import ProcessKey, parse_environment
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import ACCOUNT_IN_PROLOG_SINCE
from gpuscope.history.promql import Engine
from gpuscope.judge.checks.facts import FleetFacts, Sample, sort_samples
from gpuscope.judge.checks.slurm_checks import STRANGERS
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import FakeClock
from tests.health.fleets import NOW, join_slurm
from tests.health.fleets import gpu as fleet_gpu
from tests.health.fleets import node as fleet_node
from tests.health.fleets import process as fleet_process
from tests.health.judged import StandingSamples, query
from tests.integration.agent_process import to_series
from tests.slurm_lab.cluster import SlurmCluster

__all__ = ["driver"]

GIB = 1 << 30
SHARDS_SINCE = (22, 5)
"""Before, a GRES with this name is a plain count."""


def job_map(cluster: SlurmCluster, node: str) -> Path:
    return cluster.outside / "jobmap" / node


def files_of(cluster: SlurmCluster, node: str) -> JobFiles:
    return read_job_files(str(job_map(cluster, node)))


def held_on(cluster: SlurmCluster, node: str) -> set[tuple[str, str]]:
    """(index, job) of every GPU of the node that a job has, as scontrol says it."""
    found = set()
    for record in cluster.run("scontrol", "show", "job", "-d").split("\n\n"):
        number = re.match(r"JobId=(\d+)", record)
        if number is None or not re.search(r"JobState=(RUNNING|SUSPENDED)", record):
            continue
        for names, gres in re.findall(r"^     Nodes=(\S+) .*GRES=(\S*)", record, re.M):
            if node in cluster.run("scontrol", "show", "hostnames", names).split():
                found |= {(index, number[1]) for index in _indices(gres)}
    return found


def _indices(gres: str) -> set[str]:
    found: set[str] = set()
    for listed in re.findall(r"IDX:([\d,-]+)\)", gres):
        for part in listed.split(","):
            first, _, last = part.partition("-")
            found |= {str(number) for number in range(int(first), int(last or first) + 1)}
    for listed in re.findall(r"\((\d+/\d+(?:,\d+/\d+)*)\)", gres):  # shards of each GPU, from 23.11 on
        used = [int(part.partition("/")[0]) for part in listed.split(",")]
        found |= {str(index) for index, count in enumerate(used) if count}
    return found


@pytest.mark.parametrize("node", ["gpu1", "gpu2", "gpu3", "mps1"])
def test_the_prolog_notes_what_slurm_allocated(cluster: SlurmCluster, node: str) -> None:
    files = files_of(cluster, node)
    assert {(claim.device_id, str(claim.job)) for claim in files.claims} == held_on(cluster, node)
    assert files.claims


def test_the_prolog_notes_whose_a_job_is(cluster: SlurmCluster) -> None:
    files, number = files_of(cluster, "gpu1"), cluster.jobs["two"]
    facts = files.jobs[number]
    account = "ml" if cluster.version >= ACCOUNT_IN_PROLOG_SINCE else ABSENT
    assert (facts.user, facts.account, facts.partition) == ("games", account, "gpu")
    details = (job_map(cluster, "gpu1") / f"job-{number}").read_text()
    if "start=" in details:  # from 23.02 on
        end = re.search(r"EndTime=(\d+)", cluster.run("scontrol", "show", "job", number))
        assert end
        assert facts.ends_at == int(end[1])
        # Without a time limit Slurm says a year.
        assert files.jobs[cluster.jobs["nodes"]].ends_at is ABSENT
    if "sluid=" in details:  # from 26.05 on
        assert files.sluids[re.findall(r"sluid=(\S+)", details)[0]] == number


def test_slurmstepd_knows_the_job_of_a_process(cluster: SlurmCluster) -> None:
    """Without slurmctld: an agent on a compute node must not depend on it."""
    listed = [line.split() for line in cluster.run("scontrol", "listpids").splitlines()[1:]]
    keys = {int(words[0]): ProcessKey(int(words[0]), 1) for words in listed if words[1] == cluster.jobs["two"]}
    assert keys
    reader = SlurmPids(str(cluster.clients / "scontrol"), FakeClock())
    reader.want([*keys.values(), ProcessKey(1, 1)])
    cluster.stop_controller()
    try:
        result = reader.read()
    finally:
        cluster.start_controller()
    assert {step.job for step in result.value.values()} == {cluster.jobs["two"]}
    assert result.value.keys() == keys.keys()
    assert dict(result.failures) == {}


def agent_once(cluster: SlurmCluster, driver: FakeDriver, *flags: str) -> dict[str, float]:
    command = [sys.executable, "-m", "gpuscope", "agent", "--once", "--families", "native", "--source", "nvml",
               "--node", "gpu1.example.org", "--slurm-bin-dir", str(cluster.clients), *flags]  # fmt: skip
    conf = str(cluster.outside / "slurm.conf")
    environment = {**os.environ, **driver.env, "SLURM_CONF": conf}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return to_series(done.stdout)


def labelled(series: dict[str, float], metric: str, *labels: str) -> dict[str, float]:
    """By the value of those labels, joined with a slash."""
    found = {}
    for name, value in series.items():
        if name.startswith(metric + "{"):
            known = dict(re.findall(r'(\w+)="([^"]*)"', name))
            found["/".join(known[label] for label in labels)] = value
    return found


@pytest.mark.parametrize("way", ["prolog", "slurm"])
def test_an_agent_compares_allocation_and_use(cluster: SlurmCluster, driver: FakeDriver, way: str) -> None:
    """gpu1 has /dev/nvidia0 to 3. A job uses one of its GPUs and not the other; a stranger uses a third one."""
    held = held_on(cluster, "gpu1")
    number = cluster.jobs["two"]
    used, unused = sorted(index for index, job in held if job == number)
    (free,) = {"0", "1", "2", "3"} - {index for index, _ in held}
    pids = [line.split() for line in cluster.run("scontrol", "listpids").splitlines()[1:]]
    pid = int(next(words[0] for words in pids if words[1] == number))
    driver.gpus(4)
    driver.processes(int(used), [Process(pid, name="sleep", memory=GIB)])
    driver.processes(int(free), [Process(1, name="init", memory=GIB)])  # started long before any job
    flags = ("--job-map-dir", str(job_map(cluster, "gpu1"))) if way == "prolog" else ("--slurm", "commands")
    series = agent_once(cluster, driver, *flags)
    shown = labelled(series, "gpuscope_allocation_used", "gpu", "slurm_job")
    assert shown == {f"{index}/{job}": float(index == used and job == number) for index, job in held}
    assert labelled(series, "gpuscope_gpu_unallocated_processes", "gpu") == {
        gpu: float(gpu == free) for gpu in ("0", "1", "2", "3")
    }
    assert labelled(series, "gpuscope_owner_allocated", "kind", "name", "gpu")[f"job/{number}/{unused}"] == 1
    held_by = labelled(series, "gpuscope_owner_gpus_held", "kind", "name")
    assert held_by[f"job/{number}"] == 2
    if way == "prolog" and cluster.version < ACCOUNT_IN_PROLOG_SINCE:
        return
    assert held_by["account/ml"] == len({index for index, _ in held})
    about = labelled(series, "gpuscope_job_info", "slurm_job", "user", "account", "partition")
    assert about[f"{number}/games/ml/gpu"] == 1


def test_components_of_a_heterogeneous_job(cluster: SlurmCluster) -> None:
    """One without GPUs on cpu1, one with a GPU on gpu3. A process of the second has the number of the first."""
    rows = cluster.run(
        "squeue", "-a", "-h", "-n", "het", "-O", "JobID:|,HetJobID:|,HetJobOffset:|,NodeList:"
    ).split()
    (leader, _, *_), (number, het_job, *where) = sorted(row.split("|") for row in rows)
    assert (leader, het_job, where) == (cluster.jobs["het"], leader, ["1", "gpu3"])

    pids = [line.split() for line in cluster.run("scontrol", "listpids", number, "gpu3").splitlines()[1:]]
    process = Path("/proc", next(words[0] for words in pids if words[1] == number), "environ").read_bytes()
    assert f"SLURM_JOB_ID={leader}\0".encode() in process
    assert parse_environment(process).job is ABSENT, "it does not say which component"

    samples = slurm_samples(cluster)
    assert (leader, "cpu1") in fleet_facts("gpu3", samples).slurm["master:9400"].nodes_of_jobs
    (index,) = (index for index, job in held_on(cluster, "gpu3") if job == number)
    for known_as in (number, leader, ""):
        process_samples = fleet_process(index, name="gpu3", slurm_job=known_as, user="games")
        fleet = fleet_facts("gpu3", [*samples, *process_samples])
        gpu = fleet.gpus["gpu3:9400", f"GPU-gpu3-{index}"]
        assert [(one.labels["slurm_job"], *one.plain.values()) for one in gpu.allocations] == [(number, 1)]
        strangers = query(
            Engine(StandingSamples(node_samples("gpu3", [*samples, *process_samples]))), STRANGERS, NOW
        )
        assert not strangers.labels


def slurm_samples(cluster: SlurmCluster) -> list[Sample]:
    """What the agent that reads Slurm shows."""
    source = SlurmSource(SlurmCommands(str(cluster.clients), 60.0), interval=15.0, slow_interval=60.0)
    state = source.read(frozenset()).slurm
    families = SlurmMetrics().to_families(Snapshot(node="master", taken_at=NOW, slurm=state))
    return [
        (
            name.partition("{")[0],
            {"instance": "master:9400", **dict(re.findall(r'(\w+)="([^"]*)"', name))},
            value,
        )
        for name, value in to_series(encode_text(families).decode()).items()
    ]


def node_samples(node: str, samples: list[Sample]) -> list[Sample]:
    """With the GPUs of that node, as its agent shows them."""
    count = 2 if node == "mps1" else 4
    boards = [sample for index in range(count) for sample in fleet_gpu(str(index), node)]
    return [*fleet_node(node), *boards, *samples]


def fleet_facts(node: str, samples: list[Sample]) -> FleetFacts:
    fleet = sort_samples(node_samples(node, samples), NOW)
    join_slurm(fleet)
    return fleet


@pytest.fixture
def array(cluster: SlurmCluster) -> Iterator[str]:
    """The number of an array of which one task runs, on the GPU of mps1 that has no shares."""
    number = cluster.submit(
        "news", "physics", "-J", "sweep", "-p", "mps", "-c", "1", "--mem=1G", "--array=0-1%1", "--gres=gpu:1"
    )
    running = ("squeue", "-h", "-t", "RUNNING", "-j", number, "-o", "%A")
    try:
        cluster.wait("a task", lambda: cluster.run(*running).split())
        yield cluster.run(*running).strip()
    finally:
        cluster.run("scancel", number)


def test_the_server_joins_every_kind_of_allocation(cluster: SlurmCluster, array: str) -> None:
    """Whole GPUs on one and two nodes, shards, MPS, a component and a task of an array.

    Not the job with a MIG profile: no GPU of the agent here is split.
    """
    samples = slurm_samples(cluster)
    numbers = set()
    for node in ("gpu1", "gpu2", "gpu3", "mps1"):
        fleet = fleet_facts(node, samples)
        found = {
            (gpu.labels["gpu"], one.labels["slurm_job"])
            for gpu in fleet.gpus.values()
            for one in gpu.allocations
        }
        assert found == {(index, job) for index, job in held_on(cluster, node) if job != cluster.jobs["mig"]}
        numbers |= {job for _, job in found}
    kinds = ("two", "typed", "nodes", "mps", *(["shard"] if cluster.version >= SHARDS_SINCE else []))
    assert {cluster.jobs[name] for name in kinds} | {array} <= numbers


def test_the_epilog_removes_a_job_and_nothing_else(cluster: SlurmCluster) -> None:
    number = cluster.jobs["shard"]
    before = files_of(cluster, "gpu3")
    assert number in before.jobs
    cluster.run("scancel", number)
    cluster.wait("epilog", lambda: number not in files_of(cluster, "gpu3").jobs)
    after = files_of(cluster, "gpu3")
    assert set(before.claims) - set(after.claims) == {claim for claim in before.claims if claim.job == number}
    assert before.jobs.keys() - after.jobs.keys() == {number}
