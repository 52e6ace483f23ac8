"""The job schedule of one node: two days of jobs for each GPU and instance, which then repeat.

GPUs are allocated in gangs, as schedulers do; the rounds of the gangs begin at different hours, so that a node
never starts everything at once. The period is a whole number of days, so that daily patterns keep their hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, pi
from random import Random
from typing import Final

from gpuscope.demo.curve import VARIANTS, CurveCache, on_grain
from gpuscope.demo.jobs import (
    BARE,
    BATCH,
    KUBERNETES,
    NOTEBOOKS,
    PEOPLE,
    SERVICES,
    SLURM,
    Deployment,
    Job,
    Person,
    Tenant,
)
from gpuscope.demo.track import Activity, Timeline, Track
from gpuscope.demo.workload import (
    HELD,
    IDLE,
    INFERENCE,
    NOTEBOOK,
    SIMULATION,
    STARVED,
    SWEEP,
    TRAINING,
    TRANSCODE,
    Workload,
)

EPOCH: Final = 1_735_689_600.0  # 2025-01-01, the start of the first round
PERIOD: Final = 2 * 86_400.0
_DIURNAL_STEP: Final = 900.0
_CRASH_XIDS: Final = (13, 31, 43)  # XIDs caused by faults of the program itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What kind of jobs a node gets."""

    manager: str
    works: tuple[tuple[Workload, float], ...]  # for gangs of one GPU, with weights
    gang_works: tuple[tuple[Workload, float], ...]
    gangs: tuple[int, ...]  # sizes to draw from
    gap_minutes: tuple[float, float]
    shared: float = 0.0  # chance that several processes share a single GPU
    partition: str = "gpu"


ROLES: Final[dict[str, Role]] = {
    "cluster": Role(
        manager=SLURM,
        works=((TRAINING, 3), (SWEEP, 4), (STARVED, 3), (SIMULATION, 2), (NOTEBOOK, 2), (HELD, 1)),
        gang_works=((TRAINING, 8), (STARVED, 2), (SIMULATION, 1)),
        gangs=(4, 2, 2, 1, 1, 1),
        gap_minutes=(1, 35),
    ),
    "serving": Role(
        manager=KUBERNETES,
        works=((INFERENCE, 6), (NOTEBOOK, 3), (SWEEP, 2), (HELD, 1)),
        gang_works=((INFERENCE, 3), (TRAINING, 2)),
        gangs=(2, 1, 1, 1),
        gap_minutes=(2, 50),
        shared=0.4,
    ),
    "media": Role(
        manager=KUBERNETES,
        works=((INFERENCE, 4), (TRANSCODE, 3), (NOTEBOOK, 1)),
        gang_works=((INFERENCE, 1),),
        gangs=(1,),
        gap_minutes=(5, 90),
        shared=0.5,
    ),
    "workstations": Role(
        manager=BARE,
        works=((SWEEP, 4), (NOTEBOOK, 4), (STARVED, 2), (HELD, 1), (TRANSCODE, 1)),
        gang_works=((TRAINING, 2), (STARVED, 1)),
        gangs=(2, 1, 1, 1),
        gap_minutes=(10, 150),
    ),
}


@dataclass(slots=True)
class Unit:
    """A GPU or an instance to be planned, and the share of the chip that it is."""

    chip_share: float = 1.0
    is_instance: bool = False
    activities: list[Activity] = field(default_factory=list)


def plan_node(key: str, role: Role, units: list[Unit], curves: CurveCache) -> list[Timeline]:
    """A timeline for each unit, in order; the same for the same key."""
    random = Random(key)
    timelines: list[Timeline] = []
    while len(timelines) < len(units):
        gang = units[len(timelines) :][: random.choice(role.gangs)]
        if any(unit.is_instance for unit in gang):
            gang = gang[:1]
        origin = EPOCH + random.randrange(int(PERIOD))
        _GangPlan(f"{key}/{len(timelines)}", role, gang, curves, origin).fill()
        timelines += (Timeline(Track(unit.activities, origin, PERIOD)) for unit in gang)
    return timelines


class _GangPlan:
    def __init__(self, key: str, role: Role, gang: list[Unit], curves: CurveCache, origin: float) -> None:
        self._random = Random(key)
        self._key = key
        self._role = role
        self._gang = gang
        self._curves = curves
        self._origin = origin

    def fill(self) -> None:
        clock, number, crashed = 0.0, 0, 0
        while clock < PERIOD:
            self._idle(clock, crashed)
            clock += self._gap()
            work = self._pick_work()
            end = min(PERIOD, clock + on_grain(3600 * self._random.uniform(*work.hours)))
            if clock < PERIOD:
                self._run(work, f"{self._key}/{number}", clock, end)
            crashes = work in (TRAINING, SWEEP, STARVED) and self._random.random() < 0.08
            crashed = self._random.choice(_CRASH_XIDS) if crashes else 0
            clock, number = end, number + 1

    def _gap(self) -> float:
        """The idle time between two jobs: usually short, sometimes hours."""
        minutes = self._random.uniform(*self._role.gap_minutes)
        return on_grain(60 * minutes * (6 if self._random.random() < 0.25 else 1))

    def _pick_work(self) -> Workload:
        works = self._role.works if len(self._gang) == 1 else self._role.gang_works
        if self._gang[0].is_instance:
            works = ((NOTEBOOK, 3), (INFERENCE, 3), (SWEEP, 1))
        return self._random.choices([work for work, _ in works], [weight for _, weight in works])[0]

    def _idle(self, clock: float, xid: int) -> None:
        for place, unit in enumerate(self._gang):
            curve = self._curves.curve(IDLE, chip_share=unit.chip_share)
            unit.activities.append(Activity(clock, curve, IDLE, xid=xid if place == 0 else 0))

    def _run(self, work: Workload, key: str, start: float, end: float) -> None:
        variant = self._random.randrange(VARIANTS)
        shares = self._sharing(work)
        jobs = [self._job(work, f"{key}/{place}", start) for place in range(len(shares))]
        memory = self._random.uniform(*work.memory)
        kind = "M" if len(shares) > 1 and self._random.random() < 0.5 else "C"
        steps = list(self._steps(work, start, end))
        for rank, unit in enumerate(self._gang):
            tenants = tuple(
                Tenant(job=job, rank=rank, memory_share=memory * (share if len(shares) > 1 else 1.0),
                       sm_share=share, kind=kind)
                for job, share in zip(jobs, shares, strict=True)
            )  # fmt: skip
            for begins, scale in steps:
                curve = self._curves.curve(work, variant, scale, unit.chip_share)
                unit.activities.append(Activity(begins, curve, work, tenants))

    def _sharing(self, work: Workload) -> tuple[float, ...]:
        """How the processes on one GPU share its utilisation; a small part belongs to no process."""
        alone = len(self._gang) > 1 or self._gang[0].is_instance or work not in (INFERENCE, NOTEBOOK)
        if alone or self._random.random() >= self._role.shared:
            return (1.0,)
        weights = [self._random.uniform(0.3, 1.0) for _ in range(self._random.randint(2, 4))]
        return tuple(round(0.96 * weight / sum(weights), 3) for weight in weights)

    def _steps(self, work: Workload, start: float, end: float) -> list[tuple[float, float]]:
        """When the level changes, and to what: inference follows the hour, other work does not."""
        if work is not INFERENCE:
            return [(start, 1.0)]
        steps = []
        while start < end:
            hour = (self._origin + start) % 86_400 / 3600
            crowd = 0.3 + 0.6 * (0.5 - 0.5 * cos(2 * pi * (hour - 3) / 24))
            # Few different levels, so that few different curves are kept.
            steps.append((start, min(1.0, round(crowd * self._random.uniform(0.85, 1.15) * 10) / 10)))
            start += _DIURNAL_STEP
        return steps

    def _job(self, work: Workload, key: str, start: float) -> Job:
        return Job(
            key=key,
            start=start,
            workload=work,
            person=self._person(),
            command=self._random.choice(work.commands),
            manager=self._role.manager,
            deployment=self._deployment(work) if self._role.manager == KUBERNETES else None,
            partition="interactive" if work in (NOTEBOOK, HELD) else self._role.partition,
        )

    def _person(self) -> Person:
        return self._random.choice(PEOPLE)

    def _deployment(self, work: Workload) -> Deployment:
        if work in (NOTEBOOK, HELD):
            return NOTEBOOKS
        if work is INFERENCE:
            return self._random.choice(SERVICES)
        return BATCH[2] if work is TRANSCODE else BATCH[1] if work is SWEEP else BATCH[0]
