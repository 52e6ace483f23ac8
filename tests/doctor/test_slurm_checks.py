"""The doctor about Slurm: silent where it is not asked for, and a fix for each thing that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.doctor import CheckResult, DoctorContext, Verdict
from gpuscope.doctor.slurm_access import the_controller, the_way_to_slurm
from gpuscope.readings import ABSENT, Maybe, Snapshot
from gpuscope.readings.slurm import Gres, SlurmJob, SlurmNode, SlurmQuery, SlurmState
from gpuscope.settings import load_settings
from tests.fake_slurm import fake_clients


def context(
    flags: dict[str, str] | None = None,
    state: Maybe[SlurmState] = ABSENT,
    environment: dict[str, str] | None = None,
) -> DoctorContext:
    snapshot = Snapshot(node="master", taken_at=1.0, slurm=state)
    return DoctorContext(load_settings(flags or {}, {}), snapshot, environment=environment or {})


def the_only(findings: object) -> CheckResult:
    (finding,) = findings  # type: ignore[misc]
    return finding  # type: ignore[no-any-return]


def test_a_compute_node_hears_nothing_of_slurm() -> None:
    assert list(the_way_to_slurm(context())) == []
    assert list(the_controller(context())) == []


def test_missing_clients_and_what_to_mount(tmp_path: Path) -> None:
    found = the_only(the_way_to_slurm(context({"slurm": "commands", "slurm_bin_dir": str(tmp_path)})))
    assert found.verdict is Verdict.BAD
    assert "squeue" in found.what
    assert "/run/munge" in found.fix


def test_clients_without_a_configuration(tmp_path: Path) -> None:
    flags = {"slurm": "commands", "slurm_bin_dir": str(fake_clients(tmp_path / "bin", "22.05"))}
    found = list(the_way_to_slurm(context(flags, environment={"SLURM_CONF": "/nowhere/slurm.conf"})))
    assert [finding.verdict for finding in found] == [Verdict.GOOD, Verdict.BAD]
    assert "/nowhere/slurm.conf" in found[1].what


@pytest.mark.parametrize(
    ("flags", "what", "fix"),
    [
        ({"slurm": "restd"}, "no address", "--slurm-rest"),
        ({"slurm": "restd", "slurm_rest": "http://a:6820"}, "no JWT", "scontrol token"),
        (
            {"slurm": "restd", "slurm_rest": "/nowhere/s"},
            "/nowhere/s is not there",
            "mount the folder /nowhere",
        ),
        ({"slurm": "metrics"}, "no address", "MetricsType"),
    ],
)
def test_other_ways(flags: dict[str, str], what: str, fix: str) -> None:
    found = the_only(the_way_to_slurm(context(flags)))
    assert what in found.what
    assert fix in found.fix


def test_a_dead_controller() -> None:
    found = the_only(
        the_controller(context(state=SlurmState(up=False, why="slurmctld is down (primary at m)")))
    )
    assert "primary at m" in found.what
    assert "systemctl status slurmctld" in found.fix


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("squeue did not answer within 20 s and was killed", "--slurm-timeout"),
        ("squeue's output was cut off", "wrapper"),
        ("Access/permission denied", "PrivateData"),
        ("exited with 1", "run it by hand"),
    ],
)
def test_a_failing_query(why: str, fix: str) -> None:
    state = SlurmState(up=True, version="24.11.5", queries=(SlurmQuery(name="squeue", success=False, why=why),))
    good, bad = the_controller(context(state=state))
    assert "24.11.5" in good.what
    assert fix in bad.fix


def test_without_slurmdbd() -> None:
    job = SlurmJob(1, "a", "b", ("gpu",), "PENDING", "Resources", "x", 1, 1, (), "")
    node = SlurmNode(name="n", long_state="mixed", gres_used=(Gres("gpu", "", 1),))
    state = SlurmState(up=True, shares=(), jobs=(job,), nodes=(node,))
    _, shares, tres = the_controller(context(state=state))
    assert "slurmdbd is not used" in shares.what
    assert "AccountingStorageTRES=gres/gpu" in tres.fix
