"""deploy/slurm's prolog and epilog, run as slurmd runs them: with nothing but its variables."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpuscope.owners.job_files import read_job_files

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
