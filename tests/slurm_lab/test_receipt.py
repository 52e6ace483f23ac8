"""A real Slurm job on the fake driver, from submission to its receipt: its GPU-seconds are Slurm's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.ports import free_port
from tests.slurm_lab.cluster import SlurmCluster
from tests.slurm_lab.test_jobs import held_on, job_map
from tests.waiting import wait_for

__all__ = ["driver"]

GIB = 1 << 30
INTERVAL_SECONDS = 5
"""The prolog's files are read this often."""
EPILOG = Path(__file__).parents[2] / "deploy/slurm/receipt-epilog.sh"


@contextmanager
def running_up(cluster: SlurmCluster, driver: FakeDriver, data: Path, node: str = "gpu1") -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "gpuscope", "up", "--source", "nvml", "--node", node, "--listen", address,
        "--data", str(data), "--store-interval", "1s", "--job-map-dir", str(job_map(cluster, node)),
        "--slurm-bin-dir", str(cluster.clients),
    ]  # fmt: skip
    environment = {**os.environ, **driver.env, "SLURM_CONF": str(cluster.outside / "slurm.conf")}
    with (data.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(lambda: is_ready(f"http://{address}"), "gpuscope up to be ready")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        pass
    return False


def receipt(url: str, job: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{url}/api/job?id={job}&since=1h", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        error.close()
        return None


def state(cluster: SlurmCluster, job: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", cluster.run("scontrol", "show", "job", job)))


@pytest.mark.slow
def test_from_submission_to_receipt(cluster: SlurmCluster, driver: FakeDriver, tmp_path: Path) -> None:
    driver.gpus(4)
    with running_up(cluster, driver, tmp_path / "data") as url:
        job = cluster.submit("games", "ml", "-J", "receipt", "-p", "gpu", "-w", "gpu1", "-c", "1", "--mem=1G",
                             "--gres=gpu:1", "-t", "5", script="sleep 25")  # fmt: skip
        cluster.wait("the job's GPU", lambda: indices_of(cluster, job) != [])
        cluster.wait("the job's process", lambda: pids_of(cluster, job) != [])
        (index,) = indices_of(cluster, job)
        driver.processes(int(index), [Process(pids_of(cluster, job)[0], name="sleep", memory=2 * GIB)])
        cluster.wait("the job to end", lambda: state(cluster, job)["JobState"] == "COMPLETED")
        driver.processes(int(index), [])
        wait_for(lambda: (found := receipt(url, job)) is not None and not found["running"], "its receipt")
        found, slurm = receipt(url, job), state(cluster, job)
        assert found is not None
        # What sacct has as Elapsed of one GPU; the lab has no slurmdbd, so slurmctld is asked.
        elapsed = int(slurm["EndTime"]) - int(slurm["StartTime"])
        assert abs(found["run_seconds"] - elapsed) <= INTERVAL_SECONDS
        assert abs(found["gpu_hours"] * 3600 - elapsed) <= INTERVAL_SECONDS
        assert [gpu["gpu"] for gpu in found["gpus"]] == [index]
        assert (found["user"], found["account"], found["partition"]) == ("games", "ml", "gpu")
        printed = run_epilog(url, job, tmp_path).stdout
        assert f"job {job}" in printed.splitlines()[0]
        assert "GPU-hours" in printed
        assert max(map(len, printed.splitlines())) <= 80


def indices_of(cluster: SlurmCluster, job: str, node: str = "gpu1") -> list[str]:
    return sorted(index for index, number in held_on(cluster, node) if number == job)


def pids_of(cluster: SlurmCluster, job: str, node: str = "gpu1") -> list[int]:
    rows = cluster.run("scontrol", "listpids", job, node, check=False).splitlines()[1:]
    return [int(row.split()[0]) for row in rows]


def run_epilog(
    url: str, job: str, folder: Path, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What slurmctld runs after a job, here in the foreground."""
    (folder / "bin").mkdir()
    gpuscope = folder / "bin/gpuscope"
    gpuscope.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuscope "$@"\n')
    gpuscope.chmod(0o755)
    environment = {
        **os.environ,
        **(settings or {}),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_USER": "games",
        "GPUSCOPE_SERVER": url,
        "RECEIPT_FOREGROUND": "1",
        "RECEIPT_DELAY": "0",
    }
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    done = subprocess.run([str(EPILOG)], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done
