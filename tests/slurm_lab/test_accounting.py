"""Real Slurm with slurmdbd: jobs and receipts as in `sacct`, shares as in `sshare`, slurmdbd stopped."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import parse_time
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import SlurmState
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.slurm_lab import accounting
from tests.slurm_lab.accounting import Accounting
from tests.slurm_lab.cluster import SlurmCluster, running_cluster
from tests.slurm_lab.roots import slurm_root
from tests.slurm_lab.test_every_native_metric import WITH_SLURMDBD, native_differences, recording_clients
from tests.slurm_lab.test_live import by_commands, samples
from tests.slurm_lab.test_receipt import (
    GIB,
    INTERVAL_SECONDS,
    indices_of,
    pids_of,
    receipt,
    run_epilog,
    running_up,
)
from tests.waiting import wait_for

__all__ = ["driver"]

pytestmark = pytest.mark.slow
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
ONE_CPU = ("-p", "gpu", "-w", "gpu1", "-c", "1", "--mem=1G")
ON_GPU2 = ("-p", "gpu", "-w", "gpu2", "-c", "1", "--mem=1G", "-t", "5")
"""The job that waits for gpu1 holds back later ones there."""


@pytest.fixture(scope="module", params=["22.05", "24.11", "26.05"])
def accounted(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    def start(cluster: SlurmCluster) -> None:
        Accounting(cluster).start()

    with running_cluster(slurm_root(request.param), accounting.SLURM_CONF, start) as cluster:
        cluster.jobs = {
            "running": cluster.submit("games", "ml", *ONE_CPU, "--gres=gpu:a100:1", "-t", "5"),
            "failed": cluster.submit("news", "physics", *ONE_CPU, script="exit 3"),
            "cancelled": cluster.submit("news", "physics", *ONE_CPU),
            "waiting": cluster.submit("news", "physics", *ONE_CPU, "--gres=gpu:4"),
        }
        cluster.wait("a job to run", lambda: job_state(cluster, "running") == "RUNNING")
        cluster.run("scancel", cluster.jobs["cancelled"])
        cluster.wait("a job to fail", lambda: job_state(cluster, "failed") == "FAILED")
        # slurmctld sends its records to slurmdbd in the background.
        cluster.wait("sacct", lambda: {"RUNNING", "FAILED", "PENDING"} <= states(cluster))
        yield cluster


def job_state(cluster: SlurmCluster, name: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", "-j", cluster.jobs[name], "-o", "%T").strip()


def states(cluster: SlurmCluster) -> set[str]:
    """`CANCELLED by 0` is cancelled."""
    return {row[0].split()[0] for row in Accounting(cluster).jobs("State").values()}


def gpus_in(tres: str) -> int:
    found = re.search(r"gres/gpu=(\d+)", tres)
    return int(found[1]) if found else 0


def test_jobs_are_those_of_sacct(accounted: SlurmCluster) -> None:
    jobs = by_commands(accounted).jobs
    assert jobs is not ABSENT
    known = {
        str(job.job_id): (job.state, job.user, job.account, job.partitions[0], job.gpus, job.submitted_at)
        for job in jobs
    }
    fields = ("State", "User", "Account", "Partition", "AllocTRES", "ReqTRES", "Submit")
    for number, row in Accounting(accounted).jobs(*fields).items():
        state, user, account, partition, allocated, requested, submitted = row
        gpus = gpus_in(requested if state == "PENDING" else allocated)
        expected = (state.split()[0], user, account, partition, gpus, parse_time(submitted))
        if state.split()[0] in ENDED:  # slurmctld forgets the GPUs of a job that has ended
            assert known[number][:4] == expected[:4]
        else:
            assert known[number] == expected
    assert known.keys() == Accounting(accounted).jobs("State").keys()


def test_shares_are_those_of_sshare(accounted: SlurmCluster) -> None:
    state = by_commands(accounted)
    printed = accounted.run("sshare", "-a", "-n", "-P", "-o", "Account,User,RawShares,FairShare")
    rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()]
    assert state.shares is not ABSENT
    assert [(share.account, share.user) for share in state.shares] == [(row[0], row[1]) for row in rows]
    assert {row[1]: row[0] for row in rows if row[1] in accounting.USERS} == accounting.USERS
    factors = {row[1]: float(row[3]) for row in rows if row[1] in accounting.USERS}
    assert {share.user: share.fair_share for share in state.shares if share.user in factors} == factors
    family = samples(state, SlurmBuilder())
    for user, account in accounting.USERS.items():
        assert family[f'slurm_account_fairshare{{account="{account}"}}'] == factors[user]


def test_what_pending_jobs_ask_for_is_known(accounted: SlurmCluster) -> None:
    found = samples(by_commands(accounted), SlurmMetrics())
    requested = {
        name: value for name, value in found.items() if "partition_gpus_requested" in name and 'gpu"' in name
    }
    assert sum(requested.values()) == 4, requested


def test_every_native_metric_is_what_the_clients_say(accounted: SlurmCluster, tmp_path: Path) -> None:
    """Those of fair share and of requested GPUs too, which there are only with slurmdbd."""
    with recording_clients(accounted, tmp_path) as clients:
        differing, compared = native_differences(accounted, clients)
    assert differing == {}
    assert compared >= WITH_SLURMDBD


def test_slurmdbd_stops_and_starts(accounted: SlurmCluster, caplog: pytest.LogCaptureFixture) -> None:
    """slurmctld itself answers sshare. It keeps records until slurmdbd is back; only their number changes."""
    service = Accounting(accounted)
    source = SlurmSource(SlurmCommands(str(accounted.clients), 60.0), interval=0.0, slow_interval=0.0)
    before = source.read(frozenset()).slurm
    assert before is not ABSENT
    service.stop_daemon()
    try:
        ended = accounted.submit("games", "ml", *ON_GPU2, script="true")
        accounted.wait("a record to wait", lambda: waiting_records(source) > 0)
        without = source.read(frozenset()).slurm
        assert without is not ABSENT
        assert {query.name for query in without.queries if not query.success} == set()
        assert (names_of(without), without.nodes is ABSENT) == (names_of(before), False)
        assert without.jobs is not ABSENT
        assert int(ended) in {job.job_id for job in without.jobs}
    finally:
        service.start_daemon()
    accounted.wait("the records to be sent", lambda: waiting_records(source) == 0)
    accounted.wait("sacct", lambda: ended in service.jobs("State"))
    assert [record for record in caplog.records if record.name == "gpuscope.source"] == []


def names_of(state: SlurmState) -> list[tuple[str, str]]:
    assert state.shares is not ABSENT
    return [(share.account, share.user) for share in state.shares]


def waiting_records(source: SlurmSource) -> float:
    state = source.read(frozenset()).slurm
    assert state is not ABSENT
    return samples(state, SlurmMetrics())["gpuscope_slurm_dbd_agent_queue_size"]


def test_receipts_are_those_of_sacct(accounted: SlurmCluster, driver: FakeDriver, tmp_path: Path) -> None:
    """Jobs with one and two GPUs at the same time: GPU-seconds are sacct's elapsed time times GPUs."""
    driver.gpus(4)
    service = Accounting(accounted)
    with running_up(accounted, driver, tmp_path / "data", node="gpu2") as url:
        jobs = {
            accounted.submit("games", "ml", *ON_GPU2, "--gres=gpu:1", script="sleep 20"): 1,
            accounted.submit("news", "physics", *ON_GPU2, "--gres=gpu:2", script="sleep 30"): 2,
        }
        used = {}
        for job in jobs:
            accounted.wait("jobs to start", partial(indices_of, accounted, job, "gpu2"))
            used[job] = put_to_work(accounted, driver, job)
        for job, indices in used.items():
            accounted.wait("jobs to end", partial(is_completed, accounted, job))
            for index in indices:
                driver.processes(index, [])
        for job, gpus in jobs.items():
            wait_for(partial(has_ended, url, job), "its receipt")
            elapsed, allocated, account = service.jobs("ElapsedRaw", "AllocTRES", "Account")[job]
            found = printed_receipt(url, job)
            assert gpus_in(allocated) == len(found["gpus"]) == gpus
            assert abs(found["gpu_hours"] * 3600 - int(elapsed) * gpus) <= INTERVAL_SECONDS * gpus
            assert abs(found["run_seconds"] - int(elapsed)) <= INTERVAL_SECONDS
            assert found["account"] == account


def is_completed(cluster: SlurmCluster, job: str) -> bool:
    return Accounting(cluster).jobs("State").get(job) == ("COMPLETED",)


def has_ended(url: str, job: str) -> bool:
    found = receipt(url, job)
    return found is not None and not found["running"]


def put_to_work(cluster: SlurmCluster, driver: FakeDriver, job: str, gpus: int | None = None) -> list[int]:
    """The indices of its GPUs; a process of the job runs on each, or on the first `gpus` of them."""
    cluster.wait("a process of the job", lambda: bool(pids_of(cluster, job, "gpu2")))
    indices = [int(index) for index in indices_of(cluster, job, "gpu2")]
    for index in indices[:gpus]:
        driver.processes(index, [Process(pids_of(cluster, job, "gpu2")[0], name="sleep", memory=GIB)])
    return indices


def printed_receipt(url: str, job: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpuscope", "job", job, "--json", "--since", "1h", "--server", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_reportseff_shows_the_receipt(accounted: SlurmCluster, driver: FakeDriver, tmp_path: Path) -> None:
    """The epilog writes a job's AdminComment after its end; reportseff reads it through the real sacct.

    The job has two GPUs and uses one of them: the other one is 0 %, not left out of the average.
    """
    driver.gpus(4)
    with running_up(accounted, driver, tmp_path / "data", node="gpu2") as url:
        job = accounted.submit("games", "ml", *ON_GPU2, "--gres=gpu:2", script="sleep 20")
        accounted.wait("the job to start", partial(indices_of, accounted, job, "gpu2"))
        used, unused = put_to_work(accounted, driver, job, gpus=1)
        driver.busy(used, 80)
        accounted.wait("the job to end", partial(is_completed, accounted, job))
        driver.processes(used, [])
        wait_for(partial(has_ended, url, job), "its receipt")
        found = printed_receipt(url, job)
        path = {"PATH": f"{clients(accounted, tmp_path / 'clients')}:{os.environ['PATH']}"}
        done = run_epilog(url, job, tmp_path, {**path, "RECEIPT_COMMENT": "1"})
    (stored,) = Accounting(accounted).jobs("AdminComment")[job]
    if accounted.version == (22, 5):  # its sacctmgr writes in lower case
        assert stored == ""
        assert "lower case" in done.stderr
        return
    assert stored.startswith("JS1:"), done.stderr
    command = ["reportseff", "--parsable", "--format=JobID,State,GPUEff,GPUMem", "--node-and-gpu", job]
    path["PATH"] = f"{Path(sys.executable).parent}:{path['PATH']}"
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **path})
    assert shown.returncode == 0, shown.stderr
    rows = {row[0].strip(): row[1:] for row in csv.reader(shown.stdout.splitlines(), delimiter="|")}
    by_gpu = {gpu["gpu"]: gpu for gpu in found["gpus"]}
    assert rows[job][0] == "COMPLETED"
    assert float(rows[str(used)][1]) == pytest.approx(100 * by_gpu[str(used)]["busy_ratio"], abs=0.1) != 0
    assert [float(cell) for cell in rows[str(unused)][1:]] == [0, 0]
    assert float(rows[job][1]) == pytest.approx(float(rows[str(used)][1]) / 2, abs=0.1)


def clients(cluster: SlurmCluster, folder: Path) -> Path:
    """A folder with the clients that the epilog and reportseff run, as programs."""
    folder.mkdir()
    for name in ("sacct", "sacctmgr", "scontrol"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {" ".join(cluster.enter(f"/usr/bin/{name}"))} "$@"\n')
        program.chmod(0o755)
    return folder
