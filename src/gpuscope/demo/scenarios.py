"""Faults on demand: a table of scenarios, each of which changes the GPUs of the first node.

`NAME` begins with the program: a state (a GPU held idle) has then already lasted for hours, an event (an XID)
happens at the start. `NAME@+2m` begins two minutes after the start. Scenarios can be combined; if two set the
work of the same GPU, the last one named wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_duration
from gpuscope.demo.curve import Curve, CurveCache, Phase, load_phase
from gpuscope.demo.jobs import PEOPLE, Job, Tenant
from gpuscope.demo.simulated_gpu import Gpu
from gpuscope.demo.track import Activity
from gpuscope.demo.workload import (
    DISK_BOUND,
    HELD,
    HUNG,
    IDLE,
    NETWORK_BOUND,
    NOTEBOOK,
    STARVED,
    SWEEP,
    TRAINING,
    WAITING_RANK,
    Workload,
)
from gpuscope.model.demo_model import NOT_SLOWED, Slowdown

LASTED_SECONDS: Final = 8 * 3600.0  # how long a state without a start time has lasted
UNUSED_SECONDS: Final = 30 * 3600.0  # as above; a GPU is called unused after a day
LEAK_SECONDS: Final = 1800.0
FAILING_RUN_SECONDS: Final = 1500.0
MAX_FAILING_RUNS: Final = 1000  # then the last one goes on; more than two weeks
ILLEGAL_ACCESS_XID: Final = 31


@dataclass(frozen=True, slots=True)
class ScenarioNode:
    """The node that a scenario changes."""

    gpus: Sequence[Gpu]
    curves: CurveCache

    def gpu(self, index: int) -> Gpu:
        """GPU `index`, or the last one of a smaller node."""
        return self.gpus[min(index, len(self.gpus) - 1)]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    meaning: str
    apply: Callable[[ScenarioNode, float], None]
    lasting: bool = False  # a state rather than an event
    lasted_seconds: float = LASTED_SECONDS  # a state, when the program starts


@dataclass(frozen=True, slots=True)
class ScheduledScenario:
    """A scenario and its start in seconds after the program's start; None means together with the program."""

    scenario: Scenario
    after: float | None

    def begins(self, started_at: float) -> float:
        if self.after is not None:
            return started_at + self.after
        return started_at - (self.scenario.lasted_seconds if self.scenario.lasting else 0.0)


def _job(name: str, work: Workload, person: int, slot: int = 0) -> Job:
    """Jobs with different slots have different ids, which follow from the time when a job starts."""
    start = -30.0 * slot
    return Job(key=f"scenario/{name}", start=start, workload=work, person=PEOPLE[person], command="python3")


def _occupy(gpu: Gpu, at: float, activities: Sequence[Activity]) -> None:
    """Replaces the GPU's work from `at` on; on a split GPU that of the first instance, the others go idle."""
    for place, timeline in enumerate(gpu.timelines):
        chip_share = gpu.chip_shares[place]
        rest = Curve([load_phase(gpu.model, IDLE, 3600.0, 0.0, chip_share)], gpu.model.cooling_seconds)
        timeline.splice(at, activities if place == 0 else [Activity(0.0, rest, IDLE)])


def _steady(gpu: Gpu, work: Workload, level: float) -> Curve:
    chip_share = gpu.chip_shares[0]
    return Curve([load_phase(gpu.model, work, 60.0, level, chip_share)], gpu.model.cooling_seconds)


def _one_works(node: ScenarioNode, at: float) -> None:
    job = _job("one-works", TRAINING, 0)
    for gpu in node.gpus:
        if gpu.index == 0:
            chip_share = gpu.chip_shares[0]
            activity = Activity(
                0.0,
                node.curves.curve(TRAINING, chip_share=chip_share),
                TRAINING,
                (Tenant(job=job, memory_share=0.85),),
            )
        else:
            activity = Activity(0.0, _steady(gpu, HELD, 0.0), HELD, (Tenant(job=job, memory_share=0.006),))
        _occupy(gpu, at, [activity])


def _held_idle(node: ScenarioNode, at: float) -> None:
    job = _job("held-idle", HELD, 2)
    for rank, gpu in enumerate(node.gpus[len(node.gpus) // 2 :]):
        tenant = Tenant(job=job, rank=rank, memory_share=0.62)
        _occupy(gpu, at, [Activity(0.0, _steady(gpu, HELD, 0.0), HELD, (tenant,))])


def _thermal(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(2)
    full = load_phase(gpu.model, TRAINING, 60.0, 1.0, gpu.chip_shares[0])
    busy, watts, link = full.rates[:3]
    slowed = (busy, watts * 0.55, link * 0.5, 0.0)
    phases = [
        Phase(20.0, (*slowed, 1.0, 0.0), 0.58, Slowdown.HEAT),
        Phase(10.0, (*slowed, 1.0, 1.0), 0.42, Slowdown.HEAT | Slowdown.HOT_HARDWARE),
    ]
    tenants = (Tenant(job=_job("thermal", TRAINING, 4), memory_share=0.8),)
    lag = gpu.model.cooling_seconds
    warming = Activity(0.0, Curve([full], lag), TRAINING, tenants)
    _occupy(gpu, at, [warming, Activity(60.0, Curve(phases, lag), TRAINING, tenants)])
    gpu.faults.hot_at = at


def _xid79(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(3)
    gpu.faults.xids.append((at, 79))
    gpu.faults.lost_at = min(gpu.faults.lost_at, at + 0.5)


def _lost_gpu(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(5)
    gpu.faults.lost_at = min(gpu.faults.lost_at, at)


def _ecc_storm(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(1)
    if gpu.model.ecc:
        gpu.faults.ecc_at = at
        again = 94 if gpu.model.contains_errors else 48
        gpu.faults.xids += [(at, 48), (at, 63), *((at + 60.0 * n, again) for n in range(1, 240))]


def _pcie_x8(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(6)
    gpu.faults.narrow_at = at
    tenants = (Tenant(job=_job("pcie-x8", TRAINING, 7), memory_share=0.78),)
    _occupy(gpu, at, [Activity(0.0, _steady(gpu, TRAINING, 0.61), TRAINING, tenants)])


def _memory_leak(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(4)
    tenant = Tenant(job=_job("memory-leak", SWEEP, 5), memory_share=0.2, leak_seconds=LEAK_SECONDS)
    _occupy(gpu, at, [Activity(0.0, _steady(gpu, SWEEP, 0.72), SWEEP, (tenant,))])


def _burst(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(0)
    chip_share = gpu.chip_shares[0]
    phases = [
        load_phase(gpu.model, NOTEBOOK, 3.0, 1.0, chip_share),
        load_phase(gpu.model, NOTEBOOK, 57.0, 0.0, chip_share),
    ]
    tenants = (Tenant(job=_job("burst", NOTEBOOK, 9), memory_share=0.1),)
    _occupy(gpu, at, [Activity(0.0, Curve(phases, gpu.model.cooling_seconds), NOTEBOOK, tenants)])


def _run_on(
    node: ScenarioNode, gpus: Sequence[Gpu], at: float, name: str, work: Workload, person: int, slot: int
) -> None:
    """One job with a process on each of these GPUs."""
    job = _job(name, work, person, slot)
    for rank, gpu in enumerate(gpus):
        chip_share = gpu.chip_shares[0]
        tenants = (Tenant(job=job, rank=rank, memory_share=0.6),)
        _occupy(gpu, at, [Activity(0.0, node.curves.curve(work, chip_share=chip_share), work, tenants)])


def _slow_loader(node: ScenarioNode, at: float) -> None:
    _run_on(node, node.gpus[:2], at, "slow-loader", STARVED, 1, 1)


def _slow_disk(node: ScenarioNode, at: float) -> None:
    _run_on(node, [node.gpu(2)], at, "slow-disk", DISK_BOUND, 3, 2)


def _slow_network(node: ScenarioNode, at: float) -> None:
    _run_on(node, [node.gpu(3)], at, "slow-network", NETWORK_BOUND, 6, 3)


def _slow_rank(node: ScenarioNode, at: float) -> None:
    job = _job("slow-rank", TRAINING, 8, 4)
    gpus = node.gpus[len(node.gpus) // 2 :]
    for rank, gpu in enumerate(gpus):
        work, level = (TRAINING, 0.97) if gpu is gpus[-1] else (WAITING_RANK, 1.0)
        tenants = (Tenant(job=job, rank=rank, memory_share=0.75),)
        _occupy(gpu, at, [Activity(0.0, _steady(gpu, work, level), work, tenants)])


def _hang(node: ScenarioNode, at: float) -> None:
    job = _job("hang", HUNG, 10, 5)
    for rank, gpu in enumerate(node.gpus[:2]):
        tenants = (Tenant(job=job, rank=rank, memory_share=0.75),)
        _occupy(gpu, at, [Activity(0.0, _steady(gpu, HUNG, 1.0), HUNG, tenants)])


def _asked_for_all(node: ScenarioNode, at: float) -> None:
    job = _job("asked-for-all", TRAINING, 11, 6)
    for rank, gpu in enumerate(node.gpus):
        chip_share = gpu.chip_shares[0]
        uses_it = rank < 2
        work = TRAINING if uses_it else IDLE
        tenants = (Tenant(job=job, rank=rank, memory_share=0.8, has_process=uses_it),)
        _occupy(gpu, at, [Activity(0.0, node.curves.curve(work, chip_share=chip_share), work, tenants)])


def _unused(node: ScenarioNode, at: float) -> None:
    for gpu in node.gpus:
        chip_share = gpu.chip_shares[0]
        _occupy(gpu, at, [Activity(0.0, node.curves.curve(IDLE, chip_share=chip_share), IDLE)])


def _slow_sibling(node: ScenarioNode, at: float) -> None:
    job = _job("slow-sibling", TRAINING, 4, 7)
    for rank, gpu in enumerate(node.gpus):
        chip_share = gpu.chip_shares[0]
        phase = load_phase(gpu.model, TRAINING, 60.0, 0.97, chip_share)
        if gpu is node.gpu(3):
            phase = replace(phase, clock_ratio=0.6 * phase.clock_ratio, slowdown=NOT_SLOWED)
        curve = Curve([phase], gpu.model.cooling_seconds)
        tenants = (Tenant(job=job, rank=rank, memory_share=0.8),)
        _occupy(gpu, at, [Activity(0.0, curve, TRAINING, tenants)])


def _orphan_memory(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(6)
    _occupy(gpu, at, [Activity(0.0, _steady(gpu, IDLE, 0.0), IDLE)])
    gpu.faults.orphaned_at = at


def _failing_gpu(node: ScenarioNode, at: float) -> None:
    gpu = node.gpu(1)
    curve, runs = _steady(gpu, SWEEP, 0.72), []
    for number in range(MAX_FAILING_RUNS):
        start = FAILING_RUN_SECONDS * number
        job = replace(_job(f"failing-gpu/{number}", SWEEP, number % len(PEOPLE)), start=start)
        tenants = (Tenant(job=job, memory_share=0.4),)
        runs.append(Activity(start, curve, SWEEP, tenants, xid=ILLEGAL_ACCESS_XID if number else 0))
    _occupy(gpu, at, runs)


def _nothing(node: ScenarioNode, at: float) -> None:
    """Changes nothing."""


_TABLE: Final = (
    Scenario("none", "the usual mix of training, inference, notebooks and idle GPUs", _nothing),
    Scenario("one-works", "one process holds every GPU of the first node, only GPU 0 works", _one_works, True),
    Scenario("held-idle", "the upper half of the first node is held and never used", _held_idle, True),
    Scenario("thermal", "GPU 2 of the first node has no airflow and throttles because of heat", _thermal, True),
    Scenario("xid79", "GPU 3 of the first node reports XID 79 and falls off the bus", _xid79),
    Scenario("ecc-storm", "GPU 1 of the first node counts more memory errors every second", _ecc_storm),
    Scenario("pcie-x8", "GPU 6 of the first node has 8 of 16 PCIe lanes and waits for data", _pcie_x8, True),
    Scenario("memory-leak", "a process on GPU 4 of the first node grows for 30 minutes, fails, and restarts",
             _memory_leak),
    Scenario("lost-gpu", "GPU 5 of the first node is lost, without an XID", _lost_gpu),
    Scenario("burst", "GPU 0 of the first node works 3 s a minute and rests for 57 s", _burst, True),
    Scenario("slow-loader", "GPUs 0 and 1 of the first node wait for one busy thread each", _slow_loader, True),
    Scenario("slow-disk", "GPU 2 of the first node waits for file I/O", _slow_disk, True),
    Scenario("slow-network", "GPU 3 of the first node waits for data from the network", _slow_network, True),
    Scenario("slow-rank", "in the upper half of the first node ranks wait for the last one", _slow_rank, True),
    Scenario("hang", "GPUs 0 and 1 of the first node hang in a collective operation", _hang, True),
    Scenario("asked-for-all", "a job has every GPU of the first node and uses two", _asked_for_all, True),
    Scenario("unused", "nobody uses the first node", _unused, True, UNUSED_SECONDS),
    Scenario("slow-sibling", "GPU 3 of the first node is slower than the others under the same load",
             _slow_sibling, True),
    Scenario("orphan-memory", "half of the memory of GPU 6 of the first node is taken, without a process",
             _orphan_memory, True),
    Scenario("failing-gpu", "every program on GPU 1 of the first node fails with XID 31 after 25 minutes",
             _failing_gpu, True),
)  # fmt: skip

SCENARIOS: Final[dict[str, Scenario]] = {scenario.name: scenario for scenario in _TABLE}


def parse_scenario(text: str) -> ScheduledScenario:
    """`thermal`, or `thermal@+2m`."""
    name, at_sign, when = text.partition("@")
    scenario = SCENARIOS.get(name)
    if scenario is None:
        known = "\n".join(f"  {s.name:13} {s.meaning}" for s in _TABLE)
        raise UsageError(f"--scenario: {name!r} is not one of these:\n{known}")
    if not at_sign:
        return ScheduledScenario(scenario, None)
    if not when.startswith("+"):
        raise UsageError(f"--scenario: {text!r} does not say how long after the start; write {name}@+2m")
    try:
        return ScheduledScenario(scenario, parse_duration(when[1:]))
    except ValueError as error:
        raise UsageError(f"--scenario: {when[1:]!r} in {text!r} is {error}") from None


def parse_scenarios(texts: Iterable[str]) -> tuple[ScheduledScenario, ...]:
    return tuple(parse_scenario(text) for text in texts)


def apply_scenarios(scenarios: Iterable[ScheduledScenario], node: ScenarioNode, started_at: float) -> None:
    """Applies each scenario to the timelines of `node`."""
    for scheduled in scenarios:
        scheduled.scenario.apply(node, scheduled.begins(started_at))
