"""The Slurm cluster of a simulated fleet, as the one machine that reads it would see it.

Input: the fleet's Slurm nodes and a time; output: the same `SlurmState` that the source `slurm` reads: queue,
nodes, reservations, shares, licences, scheduler. Its jobs are those whose processes are on the simulated GPUs.
The cluster also has CPU nodes, and a GPU node that is down for repair, which no agent reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from gpuscope.demo import slurm_queue
from gpuscope.demo.jobs import PEOPLE
from gpuscope.demo.schedule import EPOCH, PERIOD
from gpuscope.demo.simulated_gpu import Gpu
from gpuscope.demo.simulated_host import GIB, Machine
from gpuscope.demo.slurm_queue import JobRun, SlurmGpu, find_runs
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import (
    RUNNING,
    FairShare,
    Gres,
    JobPlacement,
    License,
    Reservation,
    RpcCount,
    SchedulerStats,
    SlurmJob,
    SlurmNode,
    SlurmQuery,
    SlurmState,
)

INTERVAL_SECONDS: Final = 15.0  # how often the source `slurm` reads
VERSION: Final = "24.11.5"
BROKEN_NODE: Final = "gpu-r01"
SPARE_CPU_NODE: Final = "cpu-03"
_CPU_NODE_CPUS: Final = 64
_DAY: Final = 86_400.0
_WEEK: Final = 7 * _DAY
_FIRST_MONDAY: Final = EPOCH + 5 * _DAY  # 2025-01-06
_RUNS_SECONDS: Final = 900.0
_LICENSES: Final = 10
_FAST_QUERIES: Final = ("ping", "squeue", "sinfo", "sdiag")
_SLOW_QUERIES: Final = ("sshare", "scontrol show job", "scontrol show reservation", "scontrol show licenses")
_DURATIONS: Final = {"ping": 0.02, "squeue": 0.03, "scontrol show job": 0.05}


class SimulatedSlurm:
    """`nodes` are the machines that Slurm schedules, each with its GPUs."""

    def __init__(self, nodes: Sequence[tuple[Machine, Sequence[Gpu]]]) -> None:
        self._nodes = nodes
        self._gpus = [(machine.name, gpus) for machine, gpus in nodes]
        self._units = {machine.name: _units(machine.name, gpus) for machine, gpus in nodes}
        self._model = next((unit.model for units in self._units.values() for unit in units), "h100")
        self._shares: tuple[FairShare, ...] | None = None
        self._latest: tuple[float, SlurmState] | None = None
        self._latest_runs: tuple[tuple[float, int], list[JobRun]] | None = None
        timelines = (timeline for _, gpus in nodes for gpu in gpus for timeline in gpu.timelines)
        self._splices = sorted(at for timeline in timelines for at in timeline.splices)

    @property
    def has_nodes(self) -> bool:
        return bool(self._nodes)

    def state_at(self, at: float) -> SlurmState:
        """As last read at that time: the same object until the next read."""
        read_at = at // INTERVAL_SECONDS * INTERVAL_SECONDS
        latest = self._latest  # the past and the present are read in two threads: each may replace it
        if latest is None or latest[0] != read_at:
            latest = self._latest = read_at, self._read(read_at)
        return latest[1]

    def _read(self, at: float) -> SlurmState:
        runs = self._runs_around(at)
        on_cpus = tuple(slurm_queue.cpu_jobs(at))
        placed = {**slurm_queue.placements(runs, at), **slurm_queue.cpu_placements(on_cpus)}
        gpus = max((len(units) for units in self._units.values()), default=8)
        jobs = (
            *slurm_queue.gpu_jobs(runs, at),
            slurm_queue.blocked_job(at, BROKEN_NODE, self._model, gpus),
            *on_cpus,
        )
        return SlurmState(
            up=True,
            mode="simulated",
            read_at=at,
            version=VERSION,
            jobs=jobs,
            placements=placed,
            nodes=tuple(self._slurm_nodes(jobs, placed, at)),
            reservations=self._reservations(at),
            shares=self._fair_shares(),
            licenses=(_license(slurm_queue.licenses_used(at)),),
            scheduler=_scheduler(jobs, at),
            queries=tuple(_queries(at)),
        )

    def _runs_around(self, at: float) -> list[JobRun]:
        """The jobs that end, run or are pending then. Found once per 15 minutes: a large fleet has many."""
        begins = at // _RUNS_SECONDS * _RUNS_SECONDS
        key = begins, bisect_right(self._splices, at)
        latest = self._latest_runs
        if latest is None or latest[0] != key:
            since = begins - slurm_queue.REMEMBERED_SECONDS
            until = begins + _RUNS_SECONDS + slurm_queue.MAX_WAIT_SECONDS
            latest = self._latest_runs = key, find_runs(self._gpus, since, until, at)
        return latest[1]

    def _slurm_nodes(
        self, jobs: Iterable[SlurmJob], placed: dict[int, tuple[JobPlacement, ...]], at: float
    ) -> Iterable[SlurmNode]:
        cpus = slurm_queue.cpus_by_node(jobs, placed)
        held: dict[str, list[Gres]] = defaultdict(list)
        for placement in chain.from_iterable(placed.values()):
            held[placement.node] += placement.gres
        for machine, _ in self._nodes:
            memory = int(machine.memory_bytes)
            yield _node(
                machine.name, ("gpu", slurm_queue.INTERACTIVE), machine.cpus, cpus[machine.name], memory,
                slurm_queue.gres_of(self._units[machine.name]), _sum_gres(held[machine.name]),
            )  # fmt: skip
        for name in slurm_queue.CPU_NODES:
            yield _node(name, (slurm_queue.CPU_PARTITION,), _CPU_NODE_CPUS, cpus[name], int(256 * GIB))
        yield SlurmNode(
            name=SPARE_CPU_NODE, partitions=(slurm_queue.CPU_PARTITION,), long_state="drained",
            base_state="idle", flags=frozenset({"drain"}), cpus_allocated=0, cpus_idle=0,
            cpus_other=_CPU_NODE_CPUS, cpus=_CPU_NODE_CPUS, memory_bytes=int(256 * GIB),
            memory_allocated_bytes=0, reason="DIMM replaced, burn-in until Friday", reason_by="root",
            reason_at=_last(at, 2.4 * _DAY),
        )  # fmt: skip
        yield SlurmNode(
            name=BROKEN_NODE, partitions=("gpu", slurm_queue.INTERACTIVE), long_state="down*",
            base_state="down", flags=frozenset({"drain", "not_responding"}), cpus_allocated=0, cpus_idle=0,
            cpus_other=32, cpus=32, memory_bytes=int(2048 * GIB), memory_allocated_bytes=0,
            gres=(Gres("gpu", self._model, 8),), reason="GPU 5 does not answer after XID 79, card sent in",
            reason_by="root", reason_at=_last(at, 1.3 * _DAY),
        )  # fmt: skip

    def _reservations(self, at: float) -> tuple[Reservation, ...]:
        monday = _FIRST_MONDAY + ((at - _FIRST_MONDAY) // _WEEK + 1) * _WEEK
        lecture = _next(at, 13 * 3600.0, 2 * 3600.0)
        found = [
            Reservation(
                name="repair", state="ACTIVE", starts_at=_last(at, 1.3 * _DAY), ends_at=monday,
                node_list=BROKEN_NODE, node_count=1, cores=32, gpus=8, users="root", flags="MAINT,SPEC_NODES",
            ),
            Reservation(
                name="course", state="ACTIVE" if lecture <= at else "INACTIVE", starts_at=lecture,
                ends_at=lecture + 2 * 3600.0, node_list=slurm_queue.CPU_NODES[0], node_count=1,
                cores=_CPU_NODE_CPUS // 2, gpus=0, partition=slurm_queue.CPU_PARTITION,
                users=",".join(person.user for person in PEOPLE[:3]), flags="IGNORE_JOBS,SPEC_NODES,DAILY",
            ),
        ]  # fmt: skip
        if self._nodes:
            name = self._nodes[-1][0].name
            found.append(
                Reservation(
                    name="release-training", state="INACTIVE", starts_at=monday + 8 * 3600.0,
                    ends_at=monday + 20 * 3600.0, node_list=name, node_count=1, cores=self._nodes[-1][0].cpus,
                    gpus=len(self._units[name]), partition="gpu", accounts="nlp", flags="SPEC_NODES",
                )
            )  # fmt: skip
        return tuple(found)

    def _fair_shares(self) -> tuple[FairShare, ...]:
        """By the GPU time of one period, after which every job returns: it never changes."""
        if self._shares is None:
            runs = find_runs(self._gpus, EPOCH + PERIOD, EPOCH + 2 * PERIOD, EPOCH)
            self._shares = tuple(_to_shares(runs))
        return self._shares


def _units(node: str, gpus: Iterable[Gpu]) -> tuple[SlurmGpu, ...]:
    models = [
        f"{gpu.model.key}_{instance.profile.name}" if instance is not None else gpu.model.key
        for gpu in gpus
        for instance in gpu.instances or (None,)
    ]
    return tuple(SlurmGpu(node, index, model) for index, model in enumerate(models))


def _sum_gres(held: Iterable[Gres]) -> tuple[Gres, ...]:
    models: dict[str, list[int]] = {}
    for gres in held:
        models.setdefault(gres.model, []).extend(() if gres.indices is ABSENT else gres.indices)
    return tuple(Gres("gpu", model, len(indices), tuple(sorted(indices))) for model, indices in models.items())


def _node(
    name: str,
    partitions: tuple[str, ...],
    cpus: int,
    used: int,
    memory_bytes: int,
    gres: tuple[Gres, ...] = (),
    gres_used: tuple[Gres, ...] = (),
) -> SlurmNode:
    used = min(used, cpus)
    state = "idle" if not used else "allocated" if used == cpus else "mixed"
    return SlurmNode(
        name=name,
        partitions=partitions,
        long_state=state,
        base_state=state,
        cpus_allocated=used,
        cpus_idle=cpus - used,
        cpus_other=0,
        cpus=cpus,
        memory_bytes=memory_bytes,
        memory_allocated_bytes=memory_bytes * used // cpus,
        cpu_load=round(0.8 * used, 2),
        gres=gres,
        gres_used=gres_used,
    )


def _last(at: float, every: float) -> float:
    """The latest of moments that are `every` seconds apart, at least an hour ago."""
    return EPOCH + (at - 3600.0 - EPOCH) // every * every


def _next(at: float, second_of_day: float, lasts: float) -> float:
    """When the event of today begins; that of tomorrow once today's is over."""
    today = at // _DAY * _DAY + second_of_day
    return today if at < today + lasts else today + _DAY


def _to_shares(runs: Iterable[JobRun]) -> Iterable[FairShare]:
    """Slurm's classic factor: 2 to the power of minus usage over share."""
    seconds = dict.fromkeys(PEOPLE, 0.0)
    for run in runs:
        if run.job.person in seconds and run.ends_at < EPOCH + 2 * PERIOD:
            seconds[run.job.person] += len(run.units) * (run.ends_at - run.starts_at)
    total = sum(seconds.values()) or 1.0
    accounts = dict.fromkeys(person.group for person in PEOPLE)
    yield FairShare(account="root", raw_usage=total, effective_usage=1.0, norm_shares=1.0)
    for account in accounts:
        members = [person for person in PEOPLE if person.group == account]
        used = sum(seconds[person] for person in members)
        share = 1 / len(accounts)
        yield _share(account, "", used, used / total, share, "root")
        for person in members:
            yield _share(account, person.user, seconds[person], seconds[person] / total, share / len(members))


def _share(account: str, user: str, used: float, ratio: float, share: float, parent: str = "") -> FairShare:
    return FairShare(
        account=account,
        parent=parent,
        user=user,
        raw_shares=1.0,
        norm_shares=round(share, 6),
        raw_usage=round(used),
        effective_usage=round(ratio, 6),
        fair_share=round(2 ** -(ratio / share), 6),
    )


def _license(used: int) -> License:
    return License(name="matlab", count=_LICENSES, used=used, free=_LICENSES - used, reserved=0)


def _scheduler(jobs: Iterable[SlurmJob], at: float) -> SchedulerStats:
    """sdiag's counts, which Slurm resets at midnight."""
    today = at % _DAY
    queued = sum(job.state != RUNNING for job in jobs)
    cycles, backfills = today // 6, today // 30
    asked = {"REQUEST_JOB_INFO": 3.0, "REQUEST_NODE_INFO": 2.5, "REQUEST_PING": 4.0}
    return SchedulerStats(
        server={
            "Server thread count": 3.0, "Agent queue size": 0.0, "DBD Agent queue size": 0.0,
            "Jobs submitted": today // 300 + 4, "Jobs started": today // 300 + 2,
            "Jobs completed": today // 330, "Jobs canceled": today // 9_000, "Jobs failed": today // 14_000,
        },
        main={
            "Last cycle": 90.0 + 6 * queued, "Mean cycle": 110.0 + 5 * queued, "Max cycle": 4_200.0,
            "Total cycles": cycles, "Cycles per minute": 10.0, "Last queue length": float(queued),
            "Mean depth cycle": float(queued),
        },
        backfill={
            "Last cycle": 400.0 + 40 * queued, "Mean cycle": 520.0 + 40 * queued, "Max cycle": 21_000.0,
            "Total cycles": backfills, "Depth Mean": float(queued), "Last queue length": float(queued),
            "Total backfilled jobs (since last slurm start)": (at - EPOCH) // 1_800,
            "Total backfilled jobs (since last stats cycle start)": today // 1_800,
            "Total backfilled heterogeneous job components": 0.0,
        },
        rpcs_by_type=tuple(
            RpcCount(name, int(today / 60 * each), today / 60 * each * 4e-4) for name, each in asked.items()
        ),
        rpcs_by_user=(RpcCount("root", int(today / 20), today / 20 * 3e-4),),
    )  # fmt: skip


def _queries(at: float) -> Iterable[SlurmQuery]:
    for names, every in ((_FAST_QUERIES, INTERVAL_SECONDS), (_SLOW_QUERIES, 4 * INTERVAL_SECONDS)):
        for name in names:
            yield SlurmQuery(
                name=name,
                success=True,
                runs=int((at - EPOCH) // every),
                duration_seconds=_DURATIONS.get(name, 0.02),
                last_success_at=at // every * every,
            )
