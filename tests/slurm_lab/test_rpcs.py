"""What reading costs slurmctld: the requests that gpuscope counts, and those that sdiag counts for its user."""

from __future__ import annotations

import pwd
import re
from pathlib import Path

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.model.readings import ABSENT
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import FakeClock
from tests.slurm_lab.cluster import CLIENTS, SlurmCluster
from tests.slurm_lab.native_truth import series
from tests.slurm_lab.test_every_native_metric import QUERIES
from tests.slurm_lab.test_jobs import GIB, agent_once, job_map, labelled
from tests.slurm_lab.test_live import samples
from tests.slurm_lab.test_receipt import pids_of

__all__ = ["driver"]

USER = "irc"
"""Every Debian has this user, and nothing else in the lab runs as it."""
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
INTERVAL, SLOW_INTERVAL, ROUNDS = 15.0, 60.0, 9
DOCUMENTED = {"squeue": 2, "sinfo": 2, "scontrol show job": 2}
CONFIGURATION = ("scontrol", "show", "config")
"""RPCs of a command with 22.05, in docs/slurm.md; all others send one."""


@pytest.fixture
def clients(cluster: SlurmCluster, tmp_path: Path) -> Path:
    """The cluster's clients, run by a user of their own."""
    for name in CLIENTS:
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec {" ".join(cluster.enter(*AS_USER, name))} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def rpcs_served(cluster: SlurmCluster) -> int:
    found = re.search(rf"^\t{USER} +\( *\d+\) count:(\d+)", cluster.run("sdiag"), re.M)
    return int(found[1]) if found else 0


def rpcs_of(cluster: SlurmCluster, command: tuple[str, ...]) -> int:
    before = rpcs_served(cluster)
    cluster.run(*AS_USER, *command)
    return rpcs_served(cluster) - before


def test_slurmctld_serves_the_requests_that_are_counted(cluster: SlurmCluster, clients: Path) -> None:
    costs = {query: rpcs_of(cluster, command) for query, command in QUERIES.items()}
    configuration = rpcs_of(cluster, CONFIGURATION)
    imitated = rpcs_of(cluster, (*QUERIES["scontrol show job"], cluster.jobs["mig"]))
    if cluster.version == (22, 5):
        assert (configuration, imitated) == (2, 3)
        assert costs == {query: DOCUMENTED.get(query, 1) for query in QUERIES}
    clock = FakeClock()
    commands = SlurmCommands(str(clients), 60.0, pwd.getpwnam(USER).pw_uid)
    source = SlurmSource(commands, interval=INTERVAL, slow_interval=SLOW_INTERVAL, clock=clock)
    before = rpcs_served(cluster)
    for _ in range(ROUNDS):
        state = source.read(frozenset()).slurm
        clock.pass_seconds(INTERVAL)
    served = rpcs_served(cluster)
    assert state is not ABSENT
    found = samples(state, SlurmMetrics())
    counted = {query: found[series("queries_total", query=query)] for query in QUERIES}
    # 0, 15, … 120 s: every round, or those at 0, 60 and 120 s.
    slow = {"sshare", "scontrol show job", "scontrol show reservation", "scontrol show licenses"}
    assert counted == dict.fromkeys(QUERIES, float(ROUNDS)) | dict.fromkeys(slow, 3.0)
    # For an ordinary user the configuration in every round, and once the job that another one imitates.
    further = ROUNDS * configuration + imitated
    assert served - before == further + sum(costs[query] * count for query, count in counted.items())
    # The last sdiag was run before the other commands of its round.
    assert before < found[series("user_rpcs_total", user=USER)] <= served


def test_an_agent_on_a_compute_node_sends_slurmctld_nothing(
    cluster: SlurmCluster, driver: FakeDriver, tmp_path: Path
) -> None:
    """It runs at most `scontrol listpids`, which slurmstepd answers, and no other command of Slurm."""
    for name in CLIENTS:
        program = tmp_path / name
        lines = ("#!/bin/sh", f'echo "{name} $1" >> {tmp_path}/commands', f'exec {cluster.clients}/{name} "$@"')
        program.write_text("\n".join(lines))
        program.chmod(0o755)
    (tmp_path / "commands").touch()
    number = cluster.jobs["two"]
    pids = pids_of(cluster, number)
    driver.gpus(4)
    driver.processes(0, [Process(pids[0], name="sleep", memory=GIB)])
    flags = ("--job-map-dir", str(job_map(cluster, "gpu1")), "--slurm-bin-dir", str(tmp_path))
    found = agent_once(cluster, driver, *flags)
    assert labelled(found, "gpuscope_process_memory_bytes", "slurm_job").keys() == {number}
    assert set((tmp_path / "commands").read_text().splitlines()) <= {"scontrol listpids"}
    assert rpcs_of(cluster, ("scontrol", "listpids")) == 0
