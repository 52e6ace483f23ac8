"""The Slurm source with clients that print recorded output: intervals, failures, and what stays known."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpuscope.agent.collect.source_worker import SourceWorker, choose_sources
from gpuscope.agent.sources.slurm import SOURCE
from gpuscope.agent.sources.slurm.backends import choose_mode, open_backend
from gpuscope.agent.sources.slurm.job_text import WIDTHS
from gpuscope.agent.sources.slurm.plan import SlurmSettings
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands, client_environment
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.base.errors import SourceMissing, UsageError
from gpuscope.base.settings import Settings, load_settings
from gpuscope.base.source_plan import families_without_gpus
from gpuscope.model.readings import ABSENT, Reading
from gpuscope.model.readings.slurm import SlurmFailure, SlurmState
from gpuscope.model.source import SourceSpec
from tests.fake_slurm import VERSIONS, fake_clients, recorded, recorded_bytes
from tests.fakes import FakeClock, make_settings


class Cluster:
    """A source over fake clients, with a clock that is moved by hand."""

    def __init__(self, folder: Path, version: str = "22.05") -> None:
        self.bin = fake_clients(folder / "bin", version)
        self.clock = FakeClock()
        commands = SlurmCommands(str(self.bin), 60.0)
        self.source = SlurmSource(commands, interval=15.0, slow_interval=60.0, clock=self.clock)

    def reading(self) -> Reading:
        return self.source.read(frozenset())

    def state(self) -> SlurmState:
        state = self.reading().slurm
        assert state is not ABSENT
        return state

    def calls(self) -> list[str]:
        """The command lines since the last call, without their formats."""
        log = self.bin / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [" ".join(line.split()[:3]) for line in lines]

    def fail(self, name: str, complaint: str) -> None:
        (self.bin / f"{name}.fail").write_text(complaint + "\n")

    def mend(self, name: str) -> None:
        (self.bin / f"{name}.fail").unlink()

    def worker(self) -> SourceWorker:
        spec = SourceSpec(name="slurm", summary="the cluster", open=lambda settings: self.source)
        return SourceWorker(spec, Settings(), self.clock)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_part_is_read(tmp_path: Path, version: str) -> None:
    state = Cluster(tmp_path, version).state()
    assert state.up
    assert str(state.version).startswith(version)
    for part in ("jobs", "nodes", "scheduler", "shares", "placements", "reservations", "licenses"):
        assert getattr(state, part) is not ABSENT, part
    assert all(query.success for query in state.queries)


def test_each_command_runs_once_per_its_interval_and_ping_first(cluster: Cluster) -> None:
    cluster.state()
    first = cluster.calls()
    assert first[0] == "scontrol ping"
    assert len(first) == 10  # ping, version, seven queries, and the job that another imitates
    cluster.clock.pass_seconds(15)
    cluster.state()
    assert [line.split()[0] for line in cluster.calls()] == ["scontrol", "sdiag", "squeue", "sinfo"]
    cluster.clock.pass_seconds(45)
    state = cluster.state()
    assert "scontrol show job" in cluster.calls()
    assert {query.name: query.runs for query in state.queries}["sshare"] == 2


def test_a_controller_that_is_down_costs_one_ping(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    worker = cluster.worker()
    worker.read_once()
    assert worker.status().up
    cluster.calls()
    caplog.clear()
    cluster.bin.joinpath("ping.txt").write_text("Slurmctld(primary) at master is DOWN\n")
    with caplog.at_level(logging.INFO, "gpuscope.source"):
        for _ in range(3):
            cluster.clock.pass_seconds(15)
            worker.read_once()
    assert cluster.calls() == ["scontrol ping"] * 3
    down = worker.fresh()
    assert down is not ABSENT
    assert down.slurm is not ABSENT
    assert (down.slurm.up, down.slurm.jobs, down.slurm.nodes) == (False, ABSENT, ABSENT)
    assert "slurmctld is down (primary at master)" in worker.status().why
    assert not any(query.success for query in down.slurm.queries)
    assert worker.is_down()
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    cluster.bin.joinpath("ping.txt").write_text("Slurmctld(primary) at master is UP\n")
    cluster.clock.pass_seconds(15)
    with caplog.at_level(logging.INFO, "gpuscope.source"):
        worker.read_once()
    assert worker.status().up
    assert len(cluster.calls()) == 8  # ping and every query: what was known before is not trusted
    assert "answers" in caplog.messages[-1]


def test_a_backup_controller_is_enough(cluster: Cluster) -> None:
    cluster.bin.joinpath("ping.txt").write_text(
        "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n"
    )
    assert cluster.state().up


def test_one_failing_command_takes_no_other_down(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.state()
    cluster.fail("squeue", "slurm_load_jobs error: Unexpected message received")
    for _ in range(3):
        cluster.clock.pass_seconds(15)
        state = cluster.state()
    assert state.up
    assert state.jobs is ABSENT  # never old, never empty
    assert state.nodes is not ABSENT
    (query,) = (query for query in state.queries if query.name == "squeue")
    assert (query.success, query.failures) == (False, 3)
    assert "Unexpected message received" in query.why
    assert len([line for line in caplog.messages if "squeue" in line]) == 1
    cluster.mend("squeue")
    cluster.clock.pass_seconds(15)
    assert cluster.state().jobs is not ABSENT


def test_a_controller_that_dies_during_a_round_ends_it(cluster: Cluster) -> None:
    cluster.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    (cluster.bin / "squeue").write_text(
        (cluster.bin / "squeue").read_text().replace("#!/bin/sh", f"#!/bin/sh\nrm -f {cluster.bin}/ping.txt", 1)
    )
    reading = cluster.reading()
    assert reading.down
    assert [line.split()[0] for line in cluster.calls()] == ["scontrol"] * 2 + ["sdiag", "squeue", "scontrol"]


def test_without_slurmdbd_there_are_no_shares_and_nothing_fails(cluster: Cluster) -> None:
    cluster.bin.joinpath("sshare.txt").write_text("")
    state = cluster.state()
    assert state.shares == ()
    assert all(query.success for query in state.queries)


def test_a_field_that_an_old_client_refuses_is_left_out(cluster: Cluster) -> None:
    """Slurm names the field it does not have, and prints nothing."""
    real = (cluster.bin / "sinfo").read_text()
    refuse = (
        '#!/bin/sh\ncase "$*" in *StateComplete*) echo "sinfo: error: Invalid node format specification: '
        'statecomplete" >&2; exit 1 ;; esac\n'
    )
    (cluster.bin / "sinfo").write_text(refuse + real.removeprefix("#!/bin/sh\n"))
    rows = [
        line.split("|") for line in recorded("22.05", "sinfo").replace("off | the", "off / the").splitlines()
    ]
    cluster.bin.joinpath("sinfo.txt").write_text("".join("|".join(r[:3] + r[4:]) + "\n" for r in rows))
    nodes = cluster.state().nodes
    assert nodes is not ABSENT
    by_name = {node.name: node for node in nodes}
    assert by_name["gpu3"].flags == {"drain"}
    assert by_name["gpu4"].flags == {"not_responding"}


def test_truncated_output_is_a_failure_of_that_command(cluster: Cluster) -> None:
    path = cluster.bin / "squeue.txt"
    path.write_bytes(path.read_bytes()[:-40])
    state = cluster.state()
    assert state.jobs is ABSENT
    (query,) = (query for query in state.queries if query.name == "squeue")
    assert "cut off" in query.why
    assert query.failure is SlurmFailure.UNUSABLE_ANSWER


def test_output_of_something_else_is_a_failure(cluster: Cluster) -> None:
    cluster.bin.joinpath("sinfo.txt").write_text("welcome".rjust(300) + "\n")
    state = cluster.state()
    assert state.nodes is ABSENT
    assert "unknown format" in {query.name: query.why for query in state.queries}["sinfo"]


def test_a_job_that_ended_between_two_calls_has_no_gpus(cluster: Cluster) -> None:
    first = cluster.state()
    assert first.placements is not ABSENT
    assert 2 in first.placements
    listed = recorded_bytes("22.05", "squeue")
    assert listed.count(b"2|2|N/A|N/A|bob|gpu|RUNNING|") == 1
    ended = listed.replace(b"2|2|N/A|N/A|bob|gpu|RUNNING|", b"2|2|N/A|N/A|bob|gpu|COMPLETED|")
    cluster.bin.joinpath("squeue.txt").write_bytes(ended)
    cluster.clock.pass_seconds(15)  # scontrol's list is a minute old before it is read again
    later = cluster.state()
    assert later.placements is not ABSENT
    assert 2 not in later.placements
    assert 3 in later.placements


def test_a_hundred_thousand_array_tasks_are_one_record(cluster: Cluster) -> None:
    cells = "77|77|0-99999%50|N/A|eve|gpu|PENDING|1|1|cpu=1,gres/gpu=1||1|1|N/A|N/A|normal|"
    cluster.bin.joinpath("squeue.txt").write_text("a".rjust(sum(WIDTHS.values())) + cells + "\n")
    jobs = cluster.state().jobs
    assert jobs is not ABSENT
    assert [job.tasks for job in jobs] == [100_000]


def test_variables_of_the_user_do_not_change_what_is_printed() -> None:
    found = client_environment(
        {"SQUEUE_STATES": "RUNNING", "SINFO_PARTITION": "x", "SLURM_CONF": "/a", "SLURM_TIME_FORMAT": "%D"}
    )
    assert found == {"SLURM_CONF": "/a", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def test_missing_clients_say_what_to_install(tmp_path: Path) -> None:
    own = make_settings(slurm="commands", slurm_bin_dir=str(tmp_path)).view(SlurmSettings)
    with pytest.raises(SourceMissing, match="install Slurm's client commands"):
        open_backend(own)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"slurm": "restd"}, "restd"),
        ({"slurm_bin_dir": "/nowhere", "slurm_rest": "http://a:6820"}, "restd"),
        ({"slurm_bin_dir": "/nowhere", "slurm_metrics": "http://a:6817"}, "metrics"),
        ({"slurm_bin_dir": "/nowhere"}, "commands"),
    ],
)
def test_modes(settings: dict[str, str], mode: str) -> None:
    assert choose_mode(load_settings(settings, {}).view(SlurmSettings)) == mode


@pytest.mark.parametrize(
    ("mode", "families", "used"),
    [
        ("auto", ("native", "host"), False),  # a compute node's agent never asks slurmctld
        ("auto", ("slurm",), True),
        ("commands", ("native",), True),
        ("off", ("slurm",), False),
    ],
)
def test_when_slurm_is_read(mode: str, families: tuple[str, ...], used: bool) -> None:
    names = [choice.name for choice in choose_sources(make_settings(slurm=mode), families)]
    assert ("slurm" in names) == used
    assert families_without_gpus() == {"host", "slurm"}


def test_a_wrong_address_is_one_sentence() -> None:
    own = make_settings(slurm="restd", slurm_rest="slurm.example:6820").view(SlurmSettings)
    with pytest.raises(Exception, match=r"--slurm-rest: 'slurm\.example:6820' is not http://HOST:PORT"):
        open_backend(own)


@pytest.mark.parametrize("mode", ["restd", "metrics"])
def test_a_mode_without_its_address_is_refused_at_the_start(mode: str) -> None:
    with pytest.raises(UsageError, match=f"^--slurm {mode} needs .*: --slurm-"):
        SOURCE.check(make_settings(slurm=mode))
