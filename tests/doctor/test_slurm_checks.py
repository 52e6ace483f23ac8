"""The doctor about Slurm: silent where it is not asked for, and a fix for each thing that is missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuscope.base.settings import load_settings
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT, Maybe, Snapshot
from gpuscope.model.readings.slurm import Gres, SlurmFailure, SlurmJob, SlurmNode, SlurmQuery, SlurmState
from gpuscope.serve.doctor.gpus import visible_gpus
from gpuscope.serve.doctor.slurm_access import slurm_access, slurm_controller
from tests.fake_slurm import fake_clients


def context(
    flags: dict[str, str] | None = None,
    state: Maybe[SlurmState] = ABSENT,
    environment: dict[str, str] | None = None,
    root: Path = Path("/nowhere"),
) -> DoctorContext:
    snapshot = Snapshot(node="master", taken_at=1.0, slurm=state)
    return DoctorContext(load_settings(flags or {}, {}), snapshot, environment=environment or {}, root=root)


def the_only(findings: Iterable[CheckResult]) -> CheckResult:
    (finding,) = findings
    return finding


def test_a_compute_node_hears_nothing_of_slurm() -> None:
    assert list(slurm_access(context())) == []
    assert list(slurm_controller(context())) == []


def test_the_controller_of_a_cluster_needs_no_gpu() -> None:
    snapshot = Snapshot(node="master", taken_at=1.0, expected_gpus=0)
    for flags, verdict in (({}, Verdict.BAD), ({"slurm": "commands"}, Verdict.NOTE)):
        found = the_only(visible_gpus(DoctorContext(load_settings(flags, {}), snapshot)))
        assert (found.verdict, "no GPU of a known vendor" in found.what) == (verdict, True)


def test_missing_clients_and_what_to_mount(tmp_path: Path) -> None:
    found = the_only(slurm_access(context({"slurm": "commands", "slurm_bin_dir": str(tmp_path)})))
    assert found.verdict is Verdict.BAD
    assert "squeue" in found.what
    assert "/run/munge" in found.fix


def test_clients_without_a_configuration(tmp_path: Path) -> None:
    flags = {"slurm": "commands", "slurm_bin_dir": str(fake_clients(tmp_path / "bin", "22.05"))}
    found = list(slurm_access(context(flags, environment={"SLURM_CONF": "/nowhere/slurm.conf"})))
    assert [finding.verdict for finding in found] == [Verdict.GOOD, Verdict.BAD]
    assert "/nowhere/slurm.conf" in found[1].what


@pytest.mark.parametrize(
    ("conf", "verdict", "fix"),
    [
        (None, Verdict.NOTE, "mount /etc/slurm"),
        ("AuthType=auth/munge\n", Verdict.BAD, "mount /run/munge of the host"),
        ("AuthInfo=cred_expire=60,socket=/srv/m/socket\n", Verdict.BAD, "mount /srv/m of the host"),
        ("AuthType = auth/slurm\n", None, ""),
    ],
)  # fmt: skip
def test_mounts_that_a_container_lacks(
    tmp_path: Path, conf: str | None, verdict: Verdict | None, fix: str
) -> None:
    flags = {"slurm": "commands", "slurm_bin_dir": str(fake_clients(tmp_path / "bin", "22.05"))}
    if conf is not None:
        (tmp_path / "etc/slurm").mkdir(parents=True)
        (tmp_path / "etc/slurm/slurm.conf").write_text(conf)
    clients, *others = slurm_access(context(flags, root=tmp_path))
    assert clients.verdict is Verdict.GOOD
    assert [(one.verdict, fix in one.fix) for one in others] == ([] if verdict is None else [(verdict, True)])


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "scontrol: error while loading shared libraries: libslurmfull.so: cannot open shared object file",
            "mount /usr/lib/x86_64-linux-gnu/slurm-wlm",
        ),
        (
            "scontrol: error: plugin_load_from_file: dlopen(auth_munge.so): libmunge.so.2: cannot open shared",
            "mount /usr/lib/x86_64-linux-gnu/libmunge.so.2",
        ),
        ("error while loading shared libraries: libx.so.1: cannot open", "mount libx.so.1 of the host"),
        ("scontrol: libc.so.6: version `GLIBC_2.38' not found", "need GLIBC_2.38: use an image of a newer"),
    ],
)
def test_clients_without_their_library(said: str, fix: str) -> None:
    state = SlurmState(up=False, why=f"scontrol ping exited with 127: {said}")
    assert fix in the_only(slurm_controller(context(state=state))).fix


@pytest.mark.parametrize(
    ("flags", "what", "fix"),
    [
        ({"slurm": "restd", "slurm_rest": "http://a:6820"}, "no JWT", "scontrol token"),
        (
            {"slurm": "restd", "slurm_rest": "/nowhere/s"},
            "/nowhere/s is not there",
            "mount the folder /nowhere",
        ),
    ],
)
def test_other_ways(flags: dict[str, str], what: str, fix: str) -> None:
    found = the_only(slurm_access(context(flags)))
    assert what in found.what
    assert fix in found.fix


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        (SlurmFailure.TOKEN_REFUSED, "scontrol token username=USER"),
        (SlurmFailure.DOWN_OR_TOKEN_REFUSED, "systemctl status slurmctld; if it is up, a new JWT"),
        (SlurmFailure.OTHER, "systemctl status slurmctld; here: scontrol ping"),
    ],
)
def test_a_controller_that_may_refuse_the_token(failure: SlurmFailure, fix: str) -> None:
    state = SlurmState(up=False, why="no", failure=failure)
    assert fix in the_only(slurm_controller(context(state=state))).fix


def test_a_dead_controller() -> None:
    found = the_only(
        slurm_controller(context(state=SlurmState(up=False, why="slurmctld is down (primary at m)")))
    )
    assert "primary at m" in found.what
    assert "systemctl status slurmctld" in found.fix


@pytest.mark.parametrize(
    ("mode", "why", "failure", "fix"),
    [
        ("commands", "killed", SlurmFailure.TIMEOUT, "--slurm-timeout"),
        ("commands", "cut off", SlurmFailure.UNUSABLE_ANSWER, "wrapper"),
        ("commands", "Access/permission denied", SlurmFailure.OTHER, "PrivateData"),
        ("commands", "PrivateData hides jobs", SlurmFailure.HIDDEN, "set adminlevel=operator"),
        ("commands", "exited with 1", SlurmFailure.OTHER, "run it by hand as this user: squeue"),
        ("restd", "cut off", SlurmFailure.UNUSABLE_ANSWER, "the log of slurmrestd"),
        ("metrics", "an empty page", SlurmFailure.OTHER, "MetricsType"),
    ],
)
def test_a_failing_query(mode: str, why: str, failure: SlurmFailure, fix: str) -> None:
    query = SlurmQuery(name="squeue", success=False, why=why, failure=failure)
    state = SlurmState(up=True, mode=mode, version="24.11.5", queries=(query,))
    good, bad = slurm_controller(context(state=state))
    assert "24.11.5" in good.what
    assert fix in bad.fix


def test_without_slurmdbd() -> None:
    job = SlurmJob(1, "a", "b", ("gpu",), "PENDING", "Resources", "x", 1, 1, (), "")
    node = SlurmNode(name="n", long_state="mixed", gres_used=(Gres("gpu", "", 1),))
    state = SlurmState(up=True, shares=(), jobs=(job,), nodes=(node,))
    _, shares, tres = slurm_controller(context(state=state))
    assert "slurmdbd is not used" in shares.what
    assert "AccountingStorageTRES=gres/gpu" in tres.fix
