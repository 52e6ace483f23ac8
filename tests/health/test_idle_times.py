"""Idle since the last work: across restarts of the agent, under MIG, and never without proof."""

from __future__ import annotations

from gpuscope.health.facts import FleetFacts, Sample, sort_samples
from gpuscope.health.idle_times import IdleTimes
from gpuscope.health.use_checks import IDLE_SINCE
from tests.health.fleets import HOUR, NOW, gpu, node, process

KEY = ("n1:9400", "GPU-n1-0", "7")


def fleet(at: float, *more: list[Sample]) -> FleetFacts:
    return sort_samples([*node(at=at), *gpu("0"), *(sample for one in more for sample in one)], at)


def idle_since(times: IdleTimes, at: float, idle_for: float | None, **owner: str) -> float | None:
    shown = fleet(at, process("0", idle_for=idle_for, at=at, **owner))
    times.begin(at)
    times.apply(shown)
    return shown.processes[KEY].plain.get(IDLE_SINCE)


def test_an_agent_that_restarts_does_not_make_a_process_look_fresh() -> None:
    times = IdleTimes()
    assert idle_since(times, NOW, HOUR) == NOW - HOUR
    assert idle_since(times, NOW + 10, 5.0) == NOW - HOUR, "the agent counts from its own start"


def test_work_that_was_seen_ends_the_idle_time() -> None:
    times = IdleTimes()
    idle_since(times, NOW, HOUR)
    assert idle_since(times, NOW + 10, None) is None
    assert idle_since(times, NOW + 30, 5.0) == NOW + 25


def test_after_a_gap_the_agent_is_believed() -> None:
    times = IdleTimes()
    idle_since(times, NOW, HOUR)
    assert idle_since(times, NOW + 600, 300.0) == NOW + 300, "it worked while nobody looked"


def test_history_makes_an_idle_time_longer_but_not_longer_than_the_process_lives() -> None:
    times = IdleTimes()
    idle_since(times, NOW, 60.0)
    assert times.unknown() == {KEY: False}
    times.learn({KEY: NOW - 2 * HOUR}, [KEY])
    assert times.unknown() == {}
    assert idle_since(times, NOW + 1, 61.0) == NOW - 2 * HOUR
    young = IdleTimes()
    idle_since(young, NOW, 60.0)
    young.learn({KEY: NOW - 9 * HOUR}, [KEY])
    assert idle_since(young, NOW + 1, 61.0) == NOW - 3 * HOUR, "another process had this PID before"


def test_what_was_seen_at_work_is_not_looked_up() -> None:
    times = IdleTimes()
    idle_since(times, NOW, None)
    idle_since(times, NOW + 20, 20.0)
    assert times.unknown() == {}


INSTANCE = {"instance": "n1:9400", "gpu": "0_7_0", "uuid": "MIG-7"}


def mig_process(times: IdleTimes, at: float, sm_active: float | None, processes: int = 1) -> list[bool | None]:
    samples: list[Sample] = [
        *node(at=at),
        ("gpuscope_mig_info", {**INSTANCE, "parent_uuid": "GPU-n1-0", "profile": "1g.10gb"}, 1.0),
        *(
            ("gpuscope_process_memory_bytes", {**INSTANCE, "pid": str(number)}, 1e9)
            for number in range(processes)
        ),
    ]
    if sm_active is not None:
        samples.append(("gpuscope_gpu_sm_active_ratio", INSTANCE, sm_active))
    shown = sort_samples(samples, at)
    times.begin(at)
    times.apply(shown)
    return [process.is_active for process in shown.processes.values()]


def test_under_mig_the_instances_activity_decides() -> None:
    times = IdleTimes()
    assert mig_process(times, NOW, 0.5) == [True]
    assert mig_process(times, NOW + 20, 0.0) == [True], "a pause of less than a minute"
    assert mig_process(times, NOW + 40, 0.0) == [True]
    assert mig_process(times, NOW + 65, 0.0) == [False]


def test_of_several_processes_none_is_said_to_work() -> None:
    assert mig_process(IdleTimes(), NOW, 0.5, processes=2) == [None, None]
    assert mig_process(IdleTimes(), NOW, 0.0, processes=2) == [False, False]


def test_without_a_number_nothing_is_inferred() -> None:
    assert mig_process(IdleTimes(), NOW, None) == [None]
