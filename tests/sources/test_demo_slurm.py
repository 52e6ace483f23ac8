"""The simulated Slurm: its jobs are the simulated processes, those that wait run later, and sums add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.collect.source_worker import choose_sources
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.families.slurm_counts import gpus_of_node
from gpuscope.base.settings import Settings
from gpuscope.demo import DemoFleet
from gpuscope.demo.fleet import MIX
from gpuscope.demo.simulated_slurm import BROKEN_NODE, INTERVAL_SECONDS
from gpuscope.model.readings import ABSENT, Reading, Snapshot
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, PENDING, RUNNING, SlurmState
from tests.examples import examples
from tests.fakes import make_settings, present

NOW = 1_800_000_000.0
moments = st.integers(-2000, 2000).map(lambda number: NOW + INTERVAL_SECONDS * 240 * number)


def fleet(**changes: Any) -> DemoFleet:
    return DemoFleet(Settings(**({"demo_nodes": len(MIX)} | changes)), started_at=NOW)


FLEET = fleet()


def state_at(simulated: DemoFleet, at: float) -> SlurmState:
    state = simulated.slurm_state(at)
    assert state is not ABSENT
    return state


def held_by_processes(simulated: DemoFleet, at: float) -> dict[tuple[str, str], set[int]]:
    """Indices of the GPUs that each Slurm job has processes on, by job and node."""
    held: dict[tuple[str, str], set[int]] = {}
    for number, node in enumerate(simulated.node_names):
        reading = simulated.reading(number, at)
        places = {device.uuid: device.index for device in reading.devices}
        for process in () if reading.processes is ABSENT else reading.processes:
            if process.owner.job is not ABSENT:
                held.setdefault((process.owner.job, node), set()).add(places[process.gpu_uuid])
    return held


@settings(max_examples=examples(25), deadline=None)
@given(moments)
def test_jobs_hold_the_gpus_that_their_processes_are_on(at: float) -> None:
    state = state_at(FLEET, at)
    assert state.placements is not ABSENT
    placed = {
        (str(job), placement.node): {index for gres in placement.gres for index in present(gres.indices)}
        for job, placements in state.placements.items()
        for placement in placements
        if placement.gres
    }
    assert placed == held_by_processes(FLEET, at)


@settings(max_examples=examples(25), deadline=None)
@given(moments)
def test_sums_add_up(at: float) -> None:
    state = state_at(FLEET, at)
    assert state.jobs is not ABSENT
    assert state.nodes is not ABSENT
    assert len({job.job_id for job in state.jobs}) == len(state.jobs)
    by_jobs = sum(job.gpus for job in state.jobs if job.state in HOLDS_RESOURCES)
    counts = [(key, count) for node in state.nodes for key, count in gpus_of_node(node).items()]
    assert sum(count for (_, _, now), count in counts if now == "allocated") == by_jobs
    for node in state.nodes:
        assert node.cpus == node.cpus_allocated + node.cpus_idle + node.cpus_other  # type: ignore[operator]
    for job in state.jobs:
        assert job.state != PENDING or (not job.node_list and job.submitted_at <= at)  # type: ignore[operator]
        assert job.state != RUNNING or job.started_at <= at  # type: ignore[operator]


def test_a_job_that_waits_runs_later_under_its_number() -> None:
    waiting = [job for job in present(state_at(FLEET, NOW).jobs) if job.state == PENDING and job.gpus]
    starting = [job for job in waiting if job.started_at is not ABSENT]
    assert starting
    for job in starting:
        assert job.started_at is not ABSENT
        later = state_at(FLEET, job.started_at + INTERVAL_SECONDS)
        running = {one.job_id: one for one in present(later.jobs) if one.state == RUNNING}
        assert running[job.job_id].user == job.user
        assert running[job.job_id].gpus == job.gpus
        assert str(job.job_id) in {number for number, _ in held_by_processes(FLEET, later.read_at)}


def test_states_repeat_and_only_one_node_reads_them() -> None:
    assert fleet().slurm_state(NOW) == FLEET.slurm_state(NOW)
    assert FLEET.slurm_state(NOW + 1) is FLEET.slurm_state(NOW + 2)
    readings: list[Reading] = [FLEET.reading(number, NOW) for number in range(len(MIX))]
    assert [reading.slurm is not ABSENT for reading in readings] == [True] + [False] * (len(MIX) - 1)


def test_it_has_what_a_page_wants_to_show() -> None:
    states = [state_at(FLEET, NOW + 3600 * hour) for hour in range(48)]
    reasons = {job.reason for state in states for job in present(state.jobs) if job.state == PENDING}
    assert {"Resources", "Priority", "Dependency", "JobArrayTaskLimit"} <= reasons
    assert {job.state for state in states for job in present(state.jobs)} >= {PENDING, RUNNING, "COMPLETED"}
    assert any(job.tasks > 1 for job in present(states[0].jobs))
    assert {one.state for state in states for one in present(state.reservations)} == {"ACTIVE", "INACTIVE"}
    broken = {node.name: node for node in present(states[0].nodes)}[BROKEN_NODE]
    assert broken.flags == {"drain", "not_responding"}
    assert "XID 79" in broken.reason
    for state in states:
        for one in present(state.reservations):
            assert one.state == ("ACTIVE" if one.starts_at <= state.read_at < one.ends_at else "INACTIVE")  # type: ignore[operator]


def test_every_metric_of_the_slurm_exporter_has_a_value() -> None:
    snapshot = Snapshot(node="gpu-a01", taken_at=NOW, slurm=FLEET.slurm_state(NOW))
    families = {family.name: family.samples for family in SlurmBuilder().to_families(snapshot)}
    empty = {name for name, samples in families.items() if not samples}
    assert len(families) >= 60
    assert {name.rpartition("_")[2] for name in empty} <= {"suspended"}


@pytest.mark.parametrize("model", ["l4", "a100-80-mig"])
def test_a_fleet_without_slurm_has_none(model: str) -> None:
    assert fleet(demo_model=model).slurm_state(NOW) is ABSENT


def test_a_scenarios_job_is_in_the_queue_of_any_fleet() -> None:
    simulated = fleet(demo_model="l4", demo_nodes=1, scenario=("held-idle",))
    jobs = {str(job.job_id): job for job in present(state_at(simulated, NOW).jobs)}
    (number,) = {number for number, _ in held_by_processes(simulated, NOW)}
    assert jobs[number].gpus == 4


def test_a_leaking_process_restarts_within_its_job() -> None:
    simulated = fleet(demo_nodes=1, scenario=("memory-leak",))
    gpu = simulated.reading(0, NOW).devices[4].uuid
    seen = set()
    for minute in range(0, 100, 5):
        processes = simulated.reading(0, NOW + 60.0 * minute).processes
        seen |= {(one.pid, one.owner.job) for one in present(processes) if one.gpu_uuid == gpu}
    assert len({pid for pid, _ in seen}) > 2
    assert len({job for _, job in seen}) == 1


def test_a_simulated_fleet_asks_no_real_slurm() -> None:
    names = [choice.name for choice in choose_sources(Settings(source="demo"), ["slurm"])]
    assert names == ["demo"]
    both = choose_sources(make_settings(source="demo", slurm="commands"), ["native"])
    assert {choice.name for choice in both} >= {"demo", "slurm"}
