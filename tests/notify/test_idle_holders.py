"""Whose idle times the idle policy reads from an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store
from gpuscope.judge.checks.judgement import JudgedMoment
from gpuscope.judge.notify.idle_policy.idle_holders import DECIDING_CHECKS, IdleHolder, read_idle_holders
from tests.notify.judged import judge_idle
from tests.store.support import HandClock, tick

JOB = {"kind": "job", "name": "40", "gpu": "0", "uuid": "GPU-1"}
OF_JOB = {"slurm_job": "40", "gpu": "0", "uuid": "GPU-1"}


@pytest.mark.parametrize(("seconds", "is_read"), [(0, True), (179, True), (181, False), (290, False)])
def test_an_idle_time_counts_for_three_minutes(tmp_path: Path, seconds: int, is_read: bool) -> None:
    """An engine shows it for five: meanwhile the job may have worked."""
    clock = HandClock()
    job = {
        "__name__": "gpuscope_owner_idle_seconds", "kind": "job", "name": "40", "instance": "n1", "gpu": "0",
        "uuid": "GPU-1",
    }  # fmt: skip
    process = {"__name__": "gpuscope_process_idle_seconds", "instance": "n1", "pid": "7", **OF_JOB}
    with Store(tmp_path, clock=clock) as store:
        target = store.target("n1")
        series = store.resolve(target, [tuple(sorted(one.items())) for one in (job, process)])
        store.append(tick(target, clock.at, series, [7200.0, 7200.0]))
        engine = EmbeddedEngine(store, Engine(store))
        at_ms = clock.at + seconds * 1000
        judged = judge_idle(engine, at_ms / 1000)
        reading = asyncio.run(read_idle_holders(engine, at_ms, judged, lambda labels: True))
    assert [holder.longest_idle for holder in reading.holders] == ([7200.0] if is_read else [])


def test_the_labels_of_a_pod_are_known_by_a_verified_series(tmp_path: Path) -> None:
    idle = {"__name__": "gpuscope_owner_idle_seconds", "kind": "pod", "name": "a", "namespace": "ml"}
    labels = {"__name__": "gpuscope_pod_labels", "pod": "a", "namespace": "ml"}
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        target = store.target("n1")
        ids = store.resolve(
            target, [tuple(sorted({**one, "instance": "n1"}.items())) for one in (idle, labels)]
        )
        store.append(tick(target, clock.at, ids, [7200.0, 1.0]))
        engine = EmbeddedEngine(store, Engine(store))
        for is_verified in (True, False):
            reading = asyncio.run(
                read_idle_holders(engine, clock.at, None, lambda _: is_verified)  # noqa: B023
            )
            assert [holder.are_labels_known for holder in reading.holders] == [is_verified]


def test_the_uid_of_a_pod_comes_from_its_processes(tmp_path: Path) -> None:
    """Two pods share the GPU."""
    gpu = {"gpu": "0", "uuid": "GPU-1", "instance": "n1"}
    series = []
    for pod, uid, pid in (("a", "uid-a", "10"), ("b", "uid-b", "11")):
        owner = {"kind": "pod", "name": pod, "namespace": "ml"}
        process = {**gpu, "pid": pid}
        series += [
            {"__name__": "gpuscope_owner_idle_seconds", **owner, **gpu},
            {"__name__": "gpuscope_process_memory_bytes", "pod": pod, "namespace": "ml", **process},
            {"__name__": "gpuscope_process_info", "pod_uid": uid, **process},
        ]
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        target = store.target("n1")
        ids = store.resolve(target, [tuple(sorted(labels.items())) for labels in series])
        store.append(tick(target, clock.at, ids, [1.0] * len(series)))
        engine = EmbeddedEngine(store, Engine(store))
        reading = asyncio.run(read_idle_holders(engine, clock.at, None, lambda labels: True))
    assert {holder.key.name: holder.uids for holder in reading.holders} == {"a": {"uid-a"}, "b": {"uid-b"}}


def read_job(
    folder: Path,
    *series: Mapping[str, str],
    forged: str = "n9",
    started: float | None = None,
    process_idle: float = 7200.0,
    change: Callable[[JudgedMoment], JudgedMoment | None] | None = None,
) -> IdleHolder:
    """Job 40, idle on n1/0 for two hours, and what `series` say about it; those of n9 are not verified."""
    clock = HandClock()
    samples = [({"__name__": "gpuscope_owner_idle_seconds", **JOB}, 7200.0)]
    samples += [({"__name__": "gpuscope_process_idle_seconds", "pid": "7", **OF_JOB}, process_idle)]
    samples += [({"slurm_job": "40", **labels}, 1000.0 if "hung" in str(labels) else 1.0) for labels in series]
    if started is not None:
        start = {"__name__": "gpuscope_slurm_job_start_timestamp_seconds", "slurm_job": "40"}
        samples.append((start, clock.at / 1000 - started))
    with Store(folder, clock=clock) as store:
        for number, (labels, value) in enumerate(samples):
            target = store.target(f"target {number}")
            ids = store.resolve(target, [tuple(sorted({"instance": "n1", **labels}.items()))])
            store.append(tick(target, clock.at, ids, [value]))
        engine = EmbeddedEngine(store, Engine(store))
        now_judged = judge_idle(engine, clock.at / 1000)
        judged = now_judged if change is None else change(now_judged)
        reading = asyncio.run(
            read_idle_holders(engine, clock.at, judged, lambda labels: labels["instance"] != forged)
        )
    (holder,) = reading.holders
    return holder


@pytest.mark.parametrize(("age", "is_idle"), [(0.0, True), (179.0, True), (181.0, False), (-5.0, False)])
def test_a_judgement_that_is_old_or_of_the_future_makes_nobody_idle(
    tmp_path: Path, age: float, is_idle: bool
) -> None:
    """An engine that hangs leaves the last judgement as it was; a clock may be set back."""
    holder = read_job(tmp_path, change=lambda judged: replace(judged, at=judged.at - age))
    assert (holder.longest_idle, holder.held) == (7200.0 if is_idle else 0.0, {"n1/0"})


@pytest.mark.parametrize("kind", [check.kind for check in DECIDING_CHECKS])
def test_nobody_is_idle_while_a_check_that_decides_is_not_known(tmp_path: Path, kind: str) -> None:
    """Also one that would explain why the GPU does nothing."""
    holder = read_job(tmp_path, change=lambda judged: replace(judged, not_known={kind: "refused"}))
    assert (holder.longest_idle, holder.held) == (0.0, {"n1/0"})


def test_nobody_is_idle_before_the_first_judgement(tmp_path: Path) -> None:
    holder = read_job(tmp_path, change=lambda judged: None)
    assert (holder.longest_idle, holder.held) == (0.0, {"n1/0"})


RECORD = {"__name__": "gpuscope_slurm_job_info", "user": "ann", "partition": "gpu"}
GPUS = {"__name__": "gpuscope_slurm_job_gpus"}


def test_a_task_of_an_array_has_its_own_name_in_a_command(tmp_path: Path) -> None:
    """One task has the number of its array, and `scancel 40` would end all of them."""
    holder = read_job(tmp_path, {**RECORD, "array_job": "40", "array_task": "3"}, GPUS)
    assert (holder.command_name, holder.allocated) == ("40_3", 1)


def test_only_a_verified_agent_that_reads_slurm_names_a_task(tmp_path: Path) -> None:
    forged = {**RECORD, "array_job": "99", "array_task": "1", "instance": "n9"}
    of_environment = {"__name__": "gpuscope_job_info", "user": "ann", "array": "98_1"}
    assert read_job(tmp_path, forged, of_environment, RECORD, GPUS).command_name == "40"


def test_without_the_record_of_slurm_the_number_of_gpus_is_not_enough(tmp_path: Path) -> None:
    assert read_job(tmp_path, GPUS).allocated is None
    assert read_job(tmp_path / "forged", GPUS, {**RECORD, "instance": "n9"}).allocated is None


def test_a_suspended_job_is_not_idle(tmp_path: Path) -> None:
    """Slurm has stopped it: for a job of a higher priority, or an administrator has."""
    holder = read_job(tmp_path, RECORD, GPUS, {"__name__": "gpuscope_slurm_job_suspended"})
    assert (holder.idle_seconds, holder.held) == ({}, {"n1/0"})


@pytest.mark.parametrize(("started", "is_idle"), [(7190.0, True), (6000.0, False), (30.0, False)])
def test_the_idle_time_of_the_run_before_a_requeue_does_not_count(
    tmp_path: Path, started: float, is_idle: bool
) -> None:
    """The samples of the node that the job has left are there for three minutes."""
    holder = read_job(tmp_path, RECORD, GPUS, started=started)
    assert (set(holder.idle_seconds), holder.held) == ({"n1/0"} if is_idle else set(), {"n1/0"})


def test_the_leader_of_a_heterogeneous_job_is_known(tmp_path: Path) -> None:
    assert read_job(tmp_path, {**RECORD, "het_job": "40"}, GPUS).het_job == "40"


def test_a_process_that_says_it_is_of_another_users_job_makes_the_user_uncertain(tmp_path: Path) -> None:
    """Where no cgroup names the job, it is what SLURM_JOB_ID says, which every process can set."""
    holder = read_job(tmp_path, {"__name__": "gpuscope_job_info", "user": "eve"}, RECORD, GPUS)
    assert (holder.user, holder.other_user) == ("ann", "eve")


def test_a_series_that_anybody_may_have_sent_does_not_make_the_user_known(tmp_path: Path) -> None:
    forged = {"__name__": "gpuscope_job_info", "user": "eve", "partition": "gpu", "instance": "n9"}
    holder = read_job(tmp_path, forged, GPUS)
    assert (holder.user, holder.partition) == ("", "")


@pytest.mark.parametrize(
    ("series", "process_idle", "idle"),
    [
        ((), 7200.0, {"n1/0": 7200.0}),
        ((), 5000.0, {"n1/0": 5000.0}),
        ((), 600.0, {}),
        # Another program works on the GPU.
        (({"__name__": "gpuscope_process_memory_bytes", "gpu": "0", "uuid": "GPU-1", "pid": "8"},), 7200.0, {}),
        # It hangs: that is another finding.
        (({"__name__": "gpuscope_gpu_hung_seconds", "gpu": "0", "uuid": "GPU-1"},), 7200.0, {}),
    ],
)
def test_a_gpu_is_idle_while_the_finding_that_says_so_is_open(
    tmp_path: Path, series: tuple[Mapping[str, str], ...], process_idle: float, idle: Mapping[str, float]
) -> None:
    """What no episode of `held_idle` says is not known, whatever the account of the owner says."""
    holder = read_job(tmp_path, RECORD, GPUS, *series, process_idle=process_idle)
    assert (holder.idle_seconds, holder.held) == (idle, {"n1/0"})
