"""deploy/slurm's prolog, epilog and health check, run as slurmd runs them: with nothing but its variables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuscope.agent.owners.job_files import read_job_files

SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"
UUID = "GPU-5a5a7118-e550-79a1-597e-7631e126c57a"
SLUID = "s8FXKTA79XAR00"


def run(script: str, folder: Path, **variables: str) -> None:
    """Both must succeed whatever happens: slurmd drains the node otherwise."""
    environment = {"GPUSCOPE_JOB_DIR": str(folder / "jobs"), **variables}
    done = subprocess.run(["/bin/sh", str(SCRIPTS / script)], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def claims(folder: Path) -> set[tuple[str, str]]:
    return {(claim.device_id, str(claim.job)) for claim in read_job_files(str(folder / "jobs")).claims}


def test_two_jobs_share_a_gpu_and_end(tmp_path: Path) -> None:
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2", CUDA_VISIBLE_DEVICES="0,2")
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="71", SLURM_JOB_GPUS="2")
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2")  # once for each step of a salloc
    assert claims(tmp_path) == {("0", "7"), ("2", "7"), ("2", "71")}
    assert (tmp_path / "jobs/2").read_text() == "7\n71\n", "as dcgm-exporter reads it"
    run("gpuscope-epilog", tmp_path, SLURM_JOB_ID="7")
    assert claims(tmp_path) == {("2", "71")}
    assert {path.name for path in (tmp_path / "jobs").glob("[!.]*")} == {"2", "job-71"}
    run("gpuscope-epilog", tmp_path, SLURM_JOB_ID="71")
    assert {path.name for path in (tmp_path / "jobs").glob("[!.]*")} == set()


def test_uuids_of_newer_versions_and_of_mig(tmp_path: Path) -> None:
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="8", SLURM_JOB_GPUS="1", CUDA_VISIBLE_DEVICES=UUID)
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="9", CUDA_VISIBLE_DEVICES=f"MIG-{UUID}/7/0")
    assert claims(tmp_path) == {(UUID, "8"), (f"MIG-{UUID}/7/0", "9")}
    assert (tmp_path / "jobs/1").read_text() == "8\n", "the number is for dcgm-exporter"


def test_what_slurm_says_about_the_job(tmp_path: Path) -> None:
    variables = {
        "SLURM_JOB_USER": "alice", "SLURM_JOB_ACCOUNT": "ml\nuser=eve", "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_END_TIME": "1800003600", "SLURM_JOB_SLUID": SLUID, "SLURM_ARRAY_JOB_ID": "6",
        "SLURM_ARRAY_TASK_ID": "3",
    }  # fmt: skip
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", **variables)
    files = read_job_files(str(tmp_path / "jobs"))
    facts = files.jobs["7"]
    assert (facts.user, facts.account, facts.partition) == ("alice", "mluser=eve", "gpu")
    assert (facts.array, facts.ends_at) == ("6_3", 1_800_003_600.0)
    assert files.sluids == {SLUID: "7"}


def test_odd_variables_and_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    run("gpuscope-prolog", tmp_path, SLURM_JOB_GPUS="0")
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="../7", SLURM_JOB_GPUS="0")
    run(
        "gpuscope-prolog",
        tmp_path,
        SLURM_JOB_ID="7",
        SLURM_JOB_GPUS="../x,$(id),-1,0",
        CUDA_VISIBLE_DEVICES="GPU-../../x",
    )
    assert claims(tmp_path) == {("0", "7")}
    assert not (tmp_path / "x").exists()
    run("gpuscope-epilog", tmp_path, SLURM_JOB_ID="*")
    assert claims(tmp_path) == {("0", "7")}
    (tmp_path / "file").write_text("")
    run("gpuscope-prolog", tmp_path / "file", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    run("gpuscope-epilog", tmp_path / "file", SLURM_JOB_ID="7")


def test_a_lock_that_is_held_delays_a_job_by_a_second_at_most(tmp_path: Path) -> None:
    """And no user can hold it: that takes a file one can open, for reading too."""
    program(tmp_path / "flock", f'echo "$*" >> {tmp_path}/waits\nexit 1\n')  # somebody holds it
    path = f"{tmp_path}:/usr/bin:/bin"
    run("gpuscope-prolog", tmp_path, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", PATH=path)
    assert claims(tmp_path) == {("0", "7")}, "the job is noted all the same"
    run("gpuscope-epilog", tmp_path, SLURM_JOB_ID="7", PATH=path)
    assert claims(tmp_path) == set()
    assert (tmp_path / "waits").read_text() == "-w 1 9\n" * 2
    locks = [path for path in (tmp_path / "jobs").iterdir() if "lock" in path.name]
    assert [lock.stat().st_mode & 0o777 for lock in locks] == [0o600]


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


@pytest.mark.parametrize("given", ["-f FILE", "-fFILE", "SLURM_CONF"])
def test_the_health_check_has_the_configuration_of_its_slurmd(tmp_path: Path, given: str) -> None:
    """slurmd gives it neither PATH nor SLURM_CONF. The parent stands in for slurmd."""
    conf = str(tmp_path / "other.conf")
    program(tmp_path / "gpuscope", f'echo "$SLURM_CONF" > {tmp_path}/seen\n')
    program(tmp_path / "logger", "true\n")
    check = f"env -i GPUSCOPE={tmp_path}/gpuscope PATH={tmp_path} /bin/sh {SCRIPTS}/gpuscope-health-check"
    arguments = [] if given == "SLURM_CONF" else ["slurmd", *given.replace("FILE", conf).split()]
    environment = {"PATH": "/usr/bin:/bin", **({"SLURM_CONF": conf} if given == "SLURM_CONF" else {})}
    # Two commands: a shell replaces itself by a single one.
    done = subprocess.run(["/bin/sh", "-c", f"{check}; true", *arguments], env=environment, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "seen").read_text().strip() == conf
