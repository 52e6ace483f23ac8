"""Real Slurm: nothing that a user writes changes another job's numbers, and no list is shown in part.

Users write names, accounts, comments, folders, script names and whole submit lines. The name of this file puts
it behind those whose plain parsers such jobs would break.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.job_text import FIELDS, WIDTHS
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import format_argument
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import JobPlacement, SlurmFailure, SlurmJob, SlurmState
from tests.fake_slurm.printed import PrintedJob, print_squeue
from tests.slurm_lab.cluster import LASTING, SlurmCluster
from tests.slurm_lab.test_live import by_commands, read, samples
from tests.slurm_lab.test_rpcs import USER, clients

__all__ = ["clients"]

SEPARATORS = "\r\v\f\x1c\x85\u2028\u2029|\t\x1b[31m\u202e"
SMALL = ("-p", "cpu", "-c", "1", "--mem=100")


def forged_texts(cluster: SlurmCluster) -> list[str]:
    """The record of a job that holds GPUs, in scontrol's form and in squeue's, behind several line breaks."""
    victim, argument = cluster.jobs["two"], format_argument(WIDTHS, FIELDS)
    node = "     Nodes=gpu1 CPU_IDs=0 Mem=1 GRES=gpu:a100:4(IDX:0-3)"
    details = f"JobId={victim} JobName=y\n   JOB_GRES=gpu:a100:4\n{node}\n   x"
    row = print_squeue([PrintedJob(int(victim), "root", cpus=640, indices=tuple(range(80)))], argument).decode()
    return [
        f"x\n{details}",
        f"x\n\n{details}\n\nJobId=99999 JobName=z",
        f"x\nJobId={victim} x",
        f"x\n   JOB_GRES=gpu:a100:4\n{node}",
        f"x|1|1|\n{row}",
        row,
        SEPARATORS.join(("x", details, row, "y")),
        argument,
    ]


@pytest.fixture
def hostile(cluster: SlurmCluster) -> Iterator[set[int]]:
    """Jobs of `news` whose texts are forged records; the first of them run, others may wait."""
    numbers: list[int] = []
    try:
        numbers.extend(submit_hostile(cluster))
        first = {str(number) for number in numbers[: len(forged_texts(cluster))]}
        running = ("squeue", "-a", "-h", "-t", "R", "-u", "news", "-o", "%A")
        cluster.wait("hostile jobs", lambda: first <= set(cluster.run(*running).split()))
        yield set(numbers)
    finally:
        cluster.run("scancel", *map(str, numbers), check=False)


def submit_hostile(cluster: SlurmCluster) -> Iterator[int]:
    """Options that this version of sbatch lacks are left out."""

    def submit(*arguments: str, account: str = "physics") -> int:
        return int(cluster.submit("news", account, *SMALL, *arguments))

    texts = forged_texts(cluster)
    for text in texts:
        yield submit("-J", text)
    help_text = cluster.run("sbatch", "--help")
    fields = ("--comment", "--wckey", "--extra", "--mail-user")
    known = [option for option in fields if f"{option}=" in help_text]
    assert "--comment" in known
    for text in texts[:3]:
        yield submit(*(f"{option}={text}" for option in known))
    yield submit("-J", texts[0], "--array=0-2")
    yield submit("-J", texts[1], ":", "-J", texts[1], "-p", "gpu", "-c", "1", "--mem=100")
    yield submit("-J", texts[4], account=texts[4])
    folder = cluster.outside / "jobs" / "x\nJobId=1 y\n   JOB_GRES=gpu:4\n"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    inside = cluster.inside / folder.relative_to(cluster.outside)
    yield submit("-D", str(inside))
    script = folder / "script\nJobId=2 x\n   JOB_GRES=gpu:4"
    script.write_text(f"#!/bin/sh\n{LASTING}\n")
    as_user = ("setpriv", "--reuid=news", "--regid=news", "--clear-groups")
    arguments = ("--parsable", "-o", "/dev/null", *SMALL, str(inside / script.name))
    yield int(cluster.run(*as_user, "sbatch", *arguments))


def others(state: SlurmState, hostile: set[int]) -> dict[int, SlurmJob]:
    assert state.jobs is not ABSENT, [query.why for query in state.queries if query.why]
    return {job.job_id: job for job in state.jobs if not is_hostile(job, hostile)}


def is_hostile(job: SlurmJob, hostile: set[int]) -> bool:
    return bool({job.job_id, job.array_job_id, job.het_job_id} & hostile)


def placements_of(state: SlurmState, jobs: dict[int, SlurmJob]) -> dict[int, tuple[JobPlacement, ...]]:
    assert state.placements is not ABSENT
    return {number: where for number, where in state.placements.items() if number in jobs}


def test_no_text_of_a_job_changes_another(cluster: SlurmCluster, request: pytest.FixtureRequest) -> None:
    cluster.wait_for_nodes()
    before = by_commands(cluster)
    hostile: set[int] = request.getfixturevalue("hostile")
    after = by_commands(cluster)
    jobs = others(after, hostile)
    steady = {
        number: job._replace(reason="", started_at=ABSENT, ends_at=ABSENT) for number, job in jobs.items()
    }
    assert steady == {
        number: job._replace(reason="", started_at=ABSENT, ends_at=ABSENT)
        for number, job in others(before, set()).items()
    }
    assert placements_of(after, jobs) == placements_of(before, jobs)
    assert cluster.jobs["two"] in map(str, placements_of(after, jobs))
    assert after.jobs is not ABSENT
    for job in after.jobs:
        if is_hostile(job, hostile):
            assert (job.user, job.cpus, job.gpus) == ("news", 1, 0)
    shown = samples(after, SlurmBuilder())
    expected = samples(before, SlurmBuilder())
    for name in ('slurm_user_jobs_running{user="games"}', 'slurm_user_cpus_running{user="games"}'):
        assert shown[name] == expected[name]
    assert not [name for name in shown if 'user="root"' in name and "jobs" in name]
    gpus = {name: count for name, count in samples(after, SlurmMetrics()).items() if "gpus_allocated{" in name}
    assert gpus == {name: count for name, count in samples(before, SlurmMetrics()).items() if name in gpus}


@pytest.fixture
def hidden_job(cluster: SlurmCluster) -> Iterator[str]:
    number = cluster.submit("games", "ml", "-p", "all", "-w", "cpu1", "-c", "1", "--mem=100")
    state = ("squeue", "-a", "-h", "-j", number, "-o", "%T")
    try:
        cluster.wait("the job", lambda: cluster.run(*state).strip() == "RUNNING")
        yield number
    finally:
        cluster.run("scancel", number)


def test_an_ordinary_user_sees_jobs_of_hidden_partitions(
    cluster: SlurmCluster, clients: Path, hidden_job: str
) -> None:
    state = read(SlurmCommands(str(clients), 60.0, pwd.getpwnam(USER).pw_uid))
    assert (
        samples(state, SlurmMetrics())[f'gpuscope_slurm_job_node_info{{slurm_job="{hidden_job}",node="cpu1"}}']
        == 1
    )


@pytest.fixture
def reservations(cluster: SlurmCluster) -> Iterator[None]:
    wanted = (
        "StartTime=now+2days",
        "Duration=60",
        "Nodes=gpu2",
        "CoreCnt=2",
        "Users=games",
        "Flags=IGNORE_JOBS",
    )
    cluster.run("scontrol", "create", "reservation", "ReservationName=cores", *wanted, check=False)
    if "ReservationName=cores" not in cluster.run("scontrol", "show", "reservation"):
        pytest.skip("this version of Slurm (26.05) reserves no cores of a node with jobs")
    yield
    cluster.run("scontrol", "delete", "ReservationName=cores")


def test_two_cores_of_a_node_are_none_of_its_gpus(cluster: SlurmCluster, reservations: None) -> None:
    found = samples(by_commands(cluster), SlurmMetrics())
    # 22.05 does not always say which cores they are: then there is no number.
    assert found.get('gpuscope_slurm_reservation_gpus{reservation="cores"}', 0) == 0
    assert found['gpuscope_slurm_reservation_gpus{reservation="course"}'] == 4


@pytest.fixture
def waits_for_maintenance(cluster: SlurmCluster) -> Iterator[str]:
    cluster.run("scontrol", "create", "reservation", "ReservationName=window", "StartTime=now+30minutes",
                "Duration=60", "Nodes=cpu1", "Users=root", "Flags=MAINT,IGNORE_JOBS")  # fmt: skip
    number = cluster.submit("games", "ml", *SMALL, "-t", "300")
    shown = ("squeue", "-h", "-j", number, "-o", "%r")
    cluster.wait("the reason", lambda: "maintenance" in cluster.run(*shown))
    yield number
    cluster.run("scancel", number)
    cluster.run("scontrol", "delete", "ReservationName=window")


def test_a_reason_is_shown_in_slurms_words(cluster: SlurmCluster, waits_for_maintenance: str) -> None:
    found = samples(by_commands(cluster), SlurmMetrics())
    reason = "ReqNodeNotAvail, Reserved for maintenance"
    assert found[f'gpuscope_slurm_partition_jobs_pending{{partition="cpu",reason="{reason}"}}'] == 1


@pytest.mark.slow  # it restarts slurmctld twice
def test_private_jobs_are_not_zero_jobs(cluster: SlurmCluster, clients: Path) -> None:
    """Also where gpuscope does not know that Slurm sees it as an ordinary user: `user_id` 0."""
    sources = [
        SlurmSource(SlurmCommands(str(clients), 60.0, user_id), interval=0.0, slow_interval=0.0)
        for user_id in (pwd.getpwnam(USER).pw_uid, 0)
    ]
    for source in sources:
        state = source.read(frozenset()).slurm
        assert state is not ABSENT
        assert state.jobs
    path = cluster.outside / "slurm.conf"
    conf = path.read_text()
    cluster.stop_controller()
    try:
        path.write_text(conf.replace("MetricsType", "#MetricsType") + "PrivateData=jobs\n")
        cluster.start_controller()
        # slurmctld counts jobs every half minute.
        cluster.wait("the count of jobs", lambda: "Jobs running:   0" not in cluster.run("sdiag"))
        assert (
            cluster.run("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "squeue", "-ah")
            == ""
        )
        for _ in range(2):
            for source in sources:
                state = source.read(frozenset()).slurm
                assert state is not ABSENT
                assert not [name for name in samples(state, SlurmBuilder()) if name.startswith("slurm_queue")]
                (query,) = (query for query in state.queries if query.name == "squeue")
                assert query.failure is SlurmFailure.HIDDEN
    finally:
        cluster.stop_controller()
        path.write_text(conf)
        cluster.start_controller()
