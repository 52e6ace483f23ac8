"""Real Slurm: every number against the cluster's own clients at that moment, in each mode, and with it down.

22.05 runs in the normal tests, 24.11 and 26.05 with SLOW=1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.restd import SlurmRest
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import Backend, SlurmSource
from gpuscope.agent.sources.slurm.values import REST_API
from gpuscope.base.errors import SourceError
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.slurm import SlurmState
from tests.slurm_lab.cluster import CONTROLLER_PORT, ODD_ACCOUNT, ODD_NAME, SlurmCluster
from tests.slurm_lab.conftest import OWN_PAGES
from tests.slurm_lab.truth import expected_samples

TRIES = 5  # the scheduler may change something between two commands


def read(backend: Backend) -> SlurmState:
    state = SlurmSource(backend, interval=15.0, slow_interval=60.0).read(frozenset()).slurm
    assert state is not ABSENT
    return state


def by_commands(cluster: SlurmCluster) -> SlurmState:
    return read(SlurmCommands(str(cluster.clients), 60.0))


def samples(state: SlurmState, builder: SlurmBuilder | SlurmMetrics) -> dict[str, float]:
    text = encode_text(builder.to_families(Snapshot(node="master", taken_at=0.0, slurm=state))).decode()
    return parsed_samples(text)


def parsed_samples(text: str) -> dict[str, float]:
    # Not splitlines: a job's name may have other line separators in it.
    lines = (line for line in text.split("\n") if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def differences(cluster: SlurmCluster, backend: Backend) -> dict[str, tuple[float | None, float | None]]:
    """What differs, (expected, found), at a moment in which the cluster itself did not change."""
    for _ in range(TRIES):
        before = expected_samples(cluster)
        state = read(backend)
        assert state.up, state.why
        if expected_samples(cluster) == before:
            break
    return differing(before, samples(state, SlurmBuilder()))


def differing(
    before: dict[str, float], found: dict[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    family = {name for name in found if name.startswith("slurm_")}
    ours = {name for name in family if "scheduler" not in name and "fairshare" not in name}
    return {
        name: (before.get(name), found.get(name))
        for name in before.keys() | ours
        if before.get(name, 0) != found.get(name, 0)
    }


def test_the_family_shows_what_the_clients_say(cluster: SlurmCluster) -> None:
    assert differences(cluster, SlurmCommands(str(cluster.clients), 60.0)) == {}


def test_slurmrestd_shows_the_same(cluster: SlurmCluster) -> None:
    if not cluster.has("slurmrestd"):
        pytest.skip("slurmrestd is not installed")
    address = cluster.start_rest()
    if cluster.version < REST_API[-1][0]:
        with pytest.raises(SourceError, match="has no API between"):
            SlurmRest(address, 60.0).ping()
        return
    found = differences(cluster, SlurmRest(address, 60.0))
    assert {name: both for name, both in found.items() if "status=" not in name} == {}


def test_scheduler_values_are_sdiags(cluster: SlurmCluster) -> None:
    state = by_commands(cluster)
    assert state.scheduler is not ABSENT
    printed = cluster.run("sdiag")
    assert state.scheduler.server["Jobs submitted"] == int(re.findall(r"Jobs submitted: (\d+)", printed)[0])
    assert {rpc.name for rpc in state.scheduler.rpcs_by_user} <= set(re.findall(r"^\t(\w+) +\(", printed, re.M))


def test_jobs_reservations_and_licences(cluster: SlurmCluster) -> None:
    found = samples(by_commands(cluster), SlurmMetrics())
    numbers = cluster.jobs
    assert found[f'gpuscope_slurm_job_gpus{{slurm_job="{numbers["typed"]}"}}'] == 3
    indices = re.findall(
        rf'job_gres_info{{slurm_job="{numbers["nodes"]}",node="(gpu\d)",gres="gpu",model="a100",index="(\d)"}}',
        "\n".join(found),
    )
    detail = cluster.run("scontrol", "show", "job", "-d", numbers["nodes"])
    real = re.findall(r"Nodes=(\S+) .*GRES=gpu:a100:1\(IDX:(\d)\)", detail)
    assert sorted(indices) == sorted(real) or real[0][0] == "gpu[1-2]"
    assert found['gpuscope_slurm_reservation_active{reservation="course"}'] == 0
    assert found['gpuscope_slurm_reservation_gpus{reservation="course"}'] == 4
    assert found['gpuscope_slurm_licenses_used{license="matlab"}'] == 3
    assert found['gpuscope_slurm_node_flag{node="gpu3",flag="drain"}'] == 1
    assert found['gpuscope_slurm_node_reason_info{node="gpu3",reason="Xid 79: off | the bus",by="root"}'] == 1
    assert found['gpuscope_slurm_gpus{gres="gpu",model="a100_3g.20gb",state="allocated"}'] == 1
    assert not any('job="999"' in name for name in found)


def test_right_to_left_names_and_quotes(cluster: SlurmCluster) -> None:
    jobs = by_commands(cluster).jobs
    assert jobs is not ABSENT
    (job,) = (job for job in jobs if str(job.job_id) == cluster.jobs[ODD_NAME])
    assert (job.name, job.account, job.state, job.partitions) == (ODD_NAME, ODD_ACCOUNT, "RUNNING", ("cpu",))
    found = samples(by_commands(cluster), SlurmBuilder())
    assert found[f'slurm_account_jobs_running{{account="{ODD_ACCOUNT}"}}'] == 1


def test_an_ordinary_user_reads_everything(cluster: SlurmCluster) -> None:
    as_user = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups", sys.executable)
    if not cluster.is_this_machine or "ok" not in cluster.run(*as_user, "-c", "print('ok')", check=False):
        pytest.skip("this Python cannot be run by another user where this cluster is")
    shown = cluster.run(*as_user, "-m", "gpuscope", "agent", "--families", "slurm", "--once")
    found = dict(line.rsplit(" ", 1) for line in shown.splitlines() if not line.startswith("#"))
    expected = expected_samples(cluster)
    for name in ("slurm_gpus_alloc", "slurm_queue_pending", 'slurm_user_jobs_running{user="news"}'):
        assert float(found[name]) == expected[name], name
    assert "slurm_scheduler_threads" in found


def test_slurms_own_pages_agree(cluster: SlurmCluster) -> None:
    if OWN_PAGES not in (cluster.outside / "slurm.conf").read_text():
        pytest.skip("this version of Slurm has no metrics pages")
    url = f"http://127.0.0.1:{CONTROLLER_PORT}"
    enter = ["nsenter", f"--net=/run/netns/{cluster.namespace}", sys.executable, "-m", "gpuscope"]
    flags = ["--as", "slurm-exporter", "--once", "--slurm", "metrics", "--slurm-metrics", url]
    shown = subprocess.run([*enter, "agent", *flags], capture_output=True, text=True, timeout=120).stdout
    expected = expected_samples(cluster)
    for name in ("slurm_queue_pending", "slurm_queue_running", "slurm_queue_failed", "slurm_cpus_total",
                 "slurm_cpus_alloc", 'slurm_user_jobs_running{user="games"}'):  # fmt: skip
        assert f"{name} {expected[name]:g}\n" in shown, name
    # Without slurmdbd slurmctld does not count GPUs and says 0, which is not taken over.
    assert "slurm_gpus_total" not in shown


def test_a_controller_that_stops_and_starts(cluster: SlurmCluster) -> None:
    source = SlurmSource(SlurmCommands(str(cluster.clients), 60.0), interval=15.0, slow_interval=60.0)
    cluster.stop_controller()
    try:
        down = source.read(frozenset())
    finally:
        cluster.start_controller()
    assert "slurmctld is down" in down.down
    assert down.slurm is not ABSENT
    assert samples(down.slurm, SlurmMetrics())["gpuscope_slurm_up"] == 0
    (ping,) = (query for query in down.slurm.queries if query.name == "ping")
    assert ping.runs == 1
    up = source.read(frozenset()).slurm
    assert up is not ABSENT
    assert replace(up, queries=()).up
    assert up.jobs
