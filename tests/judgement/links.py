"""The adapters next to the GPUs of a situation, and its NCCL jobs, as the agent of a node reads them."""

from __future__ import annotations

from gpuscope.model.readings import ABSENT, Maybe, Uuid
from gpuscope.model.readings.host import (
    ACTIVE_STATE,
    InfinibandDevice,
    InfinibandPort,
    InfinibandReading,
    PciFunction,
)
from gpuscope.model.readings.snapshot import CollectiveJob, CollectiveReading, LocalRank, StalledRank
from tests.judgement.schedules import Schedule
from tests.judgement.situation import NcclJob, Place, Program, Rail, Situation

GIGABIT = 125e6
LANES = 16
DOWN_STATE = 1
SHOWN_AFTER_SECONDS = 60.0
UID = 1000


def slot_address(place: Place) -> str:
    return f"0000:{0x10 + place.gpu:02x}:00.0"


def rails_reading(situation: Situation, node: str, at: float) -> Maybe[InfinibandReading]:
    rails = [rail for rail in situation.rails if rail.place.node == node]
    if not rails:
        return ABSENT
    return InfinibandReading(
        devices=tuple(_adapter(rail, at) for rail in rails),
        gpu_slots=tuple(
            PciFunction(address=slot_address(rail.place), bridges=_bridges(rail)) for rail in rails
        ),
    )


def _bridges(rail: Rail) -> tuple[str, ...]:
    return (f"0000:0{rail.place.gpu}:00.0",)


def _adapter(rail: Rail, at: float) -> InfinibandDevice:
    def value(name: str, usual: float) -> float:
        schedule: Schedule | None = rail.facts.get(name)
        return usual if schedule is None else schedule.mean(at, at)

    port = InfinibandPort(
        port="1",
        link_layer="InfiniBand",
        state=ACTIVE_STATE if value("up", 1) else DOWN_STATE,
        rate_bytes_per_second=value("rate", 400) * GIGABIT,
        counters={"symbol_error": int(value("errors", 0))},
        link_downs=int(value("downs", 0)),
    )
    pci = PciFunction(
        address=f"0000:{0x80 + rail.place.gpu:02x}:00.0",
        bridges=_bridges(rail),
        link_width=int(value("lanes", LANES)),
        link_width_max=LANES,
    )
    return InfinibandDevice(name=f"mlx5_{rail.place.gpu}", board_id="MT_0000000838", pci=pci, ports=(port,))


def nccl_reading(situation: Situation, node: str, at: float) -> Maybe[CollectiveReading]:
    """Each rank is known on its node; who waits for whom, on that of rank 0."""
    if not situation.nccl_jobs:
        return ABSENT
    jobs = [_job(situation, job, node, at) for job in situation.nccl_jobs]
    return CollectiveReading(jobs=tuple(job for job in jobs if job is not None))


def _job(situation: Situation, job: NcclJob, node: str, at: float) -> CollectiveJob | None:
    programs = {place: _program_at(situation, place, at) for place in job.places}
    local = tuple(
        LocalRank(
            rank=rank,
            host=place.node,
            host_pid=program.pid,
            pid=program.pid,
            gpu_uuid=Uuid(f"GPU-{place.node}-{place.gpu}"),
        )
        for rank, (place, program) in enumerate(programs.items())
        if place.node == node and program is not None
    )
    if not local:
        return None
    followed = job.places[0].node == node
    place = job.places[job.rank]
    seconds = at - job.span.begin if job.span.has(at) else 0.0
    stalled = StalledRank(
        communicator="a",
        rank=job.rank,
        host=place.node,
        host_pid=_pid_of(situation, place),
        reason=job.reason,
        seconds=seconds,
    )
    return CollectiveJob(
        name=f"{job.places[0].node}:1",
        uid=UID,
        pids=tuple(rank.pid for rank in local),
        followed=followed,
        ranks=len(job.places) if followed else ABSENT,
        stalled_seconds=seconds if followed else ABSENT,
        local=local,
        stalled=(stalled,) if followed and seconds >= SHOWN_AFTER_SECONDS else (),
    )


def _program_at(situation: Situation, place: Place, at: float) -> Program | None:
    here = (program for program in situation.programs if place in program.places and program.span.has(at))
    return next(here, None)


def _pid_of(situation: Situation, place: Place) -> int:
    return next(program.pid for program in situation.programs if place in program.places)
