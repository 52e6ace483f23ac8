"""A list that lacks jobs is not shown: PrivateData without the rights to see all, and lists that are empty.

Slurm's clients leave out what their user may not see, and exit with 0.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.restd import SlurmRest
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.slurm import SlurmFailure, SlurmState
from tests.fake_slurm import fake_clients
from tests.fake_slurm.rest_server import API, rest_answers, serving
from tests.fakes import FakeClock

NOBODY, SLURM = 65534, 64030


class Cluster:
    """A source over fake clients, read by an ordinary user."""

    def __init__(self, folder: Path, user_id: int = NOBODY) -> None:
        self.bin = fake_clients(folder / "bin", "24.11")
        self.clock = FakeClock()
        self.source = SlurmSource(
            SlurmCommands(str(self.bin), 60.0, user_id), interval=15.0, slow_interval=60.0, clock=self.clock
        )

    def hide(self, items: str) -> None:
        text = f"PluginDir = /usr/lib\nPrivateData             = {items}\nSlurmUser      = slurm({SLURM})\n"
        (self.bin / "show_config.txt").write_text(text)

    def grant(self, level: str) -> None:
        (self.bin / "sacctmgr.fail").unlink(missing_ok=True)
        (self.bin / "sacctmgr.txt").write_text(level + "\n")

    def next_state(self) -> SlurmState:
        self.clock.pass_seconds(60)
        state = self.source.read(frozenset()).slurm
        assert state is not ABSENT
        assert state.up
        return state


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def why(state: SlurmState, name: str) -> str:
    return next(query.why for query in state.queries if query.name == name)


def queue_lines(state: SlurmState) -> list[str]:
    text = encode_text(SlurmBuilder().to_families(Snapshot(node="m", taken_at=0.0, slurm=state))).decode()
    return [line for line in text.splitlines() if line.startswith("slurm_queue")]


def test_hidden_jobs_are_not_zero_jobs(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Also if slurm.conf changes while the agent runs. It is said once, and once when it is over."""
    assert queue_lines(cluster.next_state())
    caplog.clear()
    cluster.hide("jobs,usage")
    with caplog.at_level(logging.INFO):
        states = [cluster.next_state() for _ in range(3)]
    for state in states:
        assert (state.jobs, state.shares) == (ABSENT, ABSENT)
        assert queue_lines(state) == []
        assert state.nodes is not ABSENT, "nodes are not hidden"
        assert state.placements == {}
    assert "PrivateData in slurm.conf hides other users' jobs from nobody" in why(states[0], "squeue")
    assert [query.failure for query in states[0].queries if query.name == "squeue"] == [SlurmFailure.HIDDEN]
    warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in warned if "squeue" in line and "hides" in line]) == 1
    cluster.hide("none")
    assert queue_lines(cluster.next_state())


@pytest.mark.parametrize("level", ["Operator", "Administrator"])
def test_an_operator_sees_everything(cluster: Cluster, level: str) -> None:
    cluster.hide("jobs,usage,reservations")
    cluster.grant("None")
    assert cluster.next_state().jobs is ABSENT
    cluster.grant(level)
    state = cluster.next_state()
    assert ABSENT not in (state.jobs, state.shares, state.reservations)


@pytest.mark.parametrize("user_id", [0, SLURM])
def test_root_and_slurms_user_see_everything(tmp_path: Path, user_id: int) -> None:
    cluster = Cluster(tmp_path, user_id)
    cluster.hide("jobs")
    assert cluster.next_state().jobs is not ABSENT
    asked = "show config" in (cluster.bin / "calls").read_text()
    assert asked == (user_id != 0), "nothing is hidden from root, so slurmctld is not asked"


def test_a_configuration_that_cannot_be_read_hides_nobody(cluster: Cluster) -> None:
    (cluster.bin / "show_config.txt").write_text("")
    state = cluster.next_state()
    assert state.jobs is ABSENT
    assert "printed no PrivateData" in why(state, "squeue")


@pytest.mark.parametrize("user_id", [0, NOBODY])
def test_an_empty_list_is_shown_only_if_slurmctld_counts_no_jobs(tmp_path: Path, user_id: int) -> None:
    """squeue that prints nothing and exits with 0."""
    cluster = Cluster(tmp_path, user_id)
    assert cluster.next_state().jobs
    (cluster.bin / "squeue.txt").write_text("")
    state = cluster.next_state()
    assert state.jobs is ABSENT
    assert "0 jobs are listed where slurmctld counts 18" in why(state, "squeue")
    assert queue_lines(state) == []

    statistics = (cluster.bin / "sdiag.txt").read_text()
    (cluster.bin / "sdiag.fail").write_text("sdiag: error: busy\n")
    assert "do not confirm it" in why(cluster.next_state(), "squeue")
    (cluster.bin / "sdiag.fail").unlink()
    idle = statistics.replace("Jobs pending:   8", "Jobs pending:   0").replace("running:   10", "running:   0")
    (cluster.bin / "sdiag.txt").write_text(idle)
    state = cluster.next_state()
    assert state.jobs == ()
    assert "slurm_queue_running 0" in queue_lines(state)


def test_a_list_without_nodes_is_not_a_cluster_without_cpus(cluster: Cluster) -> None:
    (cluster.bin / "sinfo.txt").write_text("")
    state = cluster.next_state()
    assert state.nodes is ABSENT
    assert "lists no nodes" in why(state, "sinfo")


def test_a_token_that_sees_only_its_own_jobs() -> None:
    """slurmrestd says nothing about PrivateData: the statistics count more jobs than it lists."""
    answers = rest_answers("26.05")
    path = f"/slurm/{API['26.05']}/jobs"
    everything = json.loads(answers[path])
    own = [
        row for row in everything["jobs"] if row["user_name"] == "bob" and "..." not in row["array_task_string"]
    ]
    answers[path] = json.dumps({**everything, "jobs": own}).encode()
    with serving(answers, []) as address:
        source = SlurmSource(SlurmRest(address, 60.0), interval=15.0, slow_interval=60.0)
        state = source.read(frozenset()).slurm
    assert state is not ABSENT
    assert (state.jobs, state.placements) == (ABSENT, ABSENT)
    assert "slurmctld counts 123 that wait or run" in why(state, "jobs")
