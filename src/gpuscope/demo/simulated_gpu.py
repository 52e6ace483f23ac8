"""One simulated GPU at any time: its device, instances, processes and errors.

All counters start at `boot`, together with the driver. The values of a split GPU are the sums over its
instances. What drivers do not report of it is absent here too: its utilisation and the processes' SM shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import sub

from gpuscope.demo.curve import BUSY, POWER, ZERO, Rates, added
from gpuscope.demo.jobs import BARE, FirstProcess, Tenant, run_of
from gpuscope.demo.track import Faults, Moment, Timeline
from gpuscope.demo.varying_readings import SimulatedGpuState, instance_readings, varying_readings
from gpuscope.demo.workload import Workload
from gpuscope.model.demo_model import MIB, DemoIdentity, DemoModel, InstanceProfile, demo_gpus_of
from gpuscope.model.readings import (
    ABSENT,
    NO_WORK,
    Device,
    ErrorEvent,
    Instance,
    Maybe,
    Pid,
    Process,
    ProcessWork,
    Uuid,
)

MEMORY_GRAIN = 2 * MIB  # the driver allocates memory in pages of 2 MiB
_START_READS = 3e9  # bytes: libraries, and a model
_START_SHARE = 0.06  # of its memory, which a process has from the start


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """An instance: its ids, and its work over time."""

    uuid: Uuid
    number: int
    profile: InstanceProfile
    timeline: Timeline

    @property
    def chip_share(self) -> float:
        return self.profile.chip_share


class Gpu:
    def __init__(
        self,
        index: int,
        model: DemoModel,
        identity: DemoIdentity,
        boot: float,
        work: Timeline | Sequence[SimulatedInstance],
    ) -> None:
        self.index = index
        self.model = model
        self._vendor = demo_gpus_of(model)
        self.identity = identity
        self.faults = Faults()
        self.instances: tuple[SimulatedInstance, ...] = () if isinstance(work, Timeline) else tuple(work)
        self.timelines = [work] if isinstance(work, Timeline) else [instance.timeline for instance in work]
        self.peers: tuple[Gpu, ...] = ()  # the node's other GPUs, if links join them
        self.chip_shares = tuple(instance.chip_share for instance in self.instances) or (1.0,)
        self._boot = boot
        self._unsplit = 1.0 - sum(self.chip_shares)
        self._usable = (model.memory_mib - model.reserved_mib) * MIB
        self._constant_readings = self._vendor.constant_readings(index, model, identity, bool(self.instances))
        self._at_boot = ZERO
        self._runs: dict[tuple[str, float, int], FirstProcess] = {}

    def start(self) -> None:
        """Sets all counters to 0 at boot. Call it once, after all scenarios are applied."""
        self._at_boot = tuple(self.total(rate, self._boot) for rate in range(len(ZERO)))

    def total(self, rate: int, at: float) -> float:
        """The value of one counter at `at`; 0 at boot."""
        at = max(at, self._boot)
        total = self._unsplit * self.model.power_idle * at if rate == POWER else 0.0
        for timeline in self.timelines:
            total += timeline.total(rate, at)
        return total - self._at_boot[rate]

    def busy_seconds(self, at: float) -> float:
        """Busy seconds of the whole chip: an instance counts by its share of the chip."""
        at = min(at, self.faults.lost_at)
        return sum(
            share * timeline.total(BUSY, at)
            for share, timeline in zip(self.chip_shares, self.timelines, strict=True)
        )

    def read(self, at: float, since: float | None) -> tuple[Device, list[Process]]:
        if at >= self.faults.lost_at:
            who = self._vendor.identity_readings(self.index, self.model, self.identity)
            lost = self._vendor.make_device(uuid=self.identity.uuid, index=self.index, lost=True, **who)
            return lost, []
        moments = [timeline.moment(at) for timeline in self.timelines]
        processes: list[Process] = []
        instances: list[Instance] = []
        if self.instances:
            for instance, moment in zip(self.instances, moments, strict=True):
                mine = list(self._processes(moment, at, instance))
                processes += mine
                instances.append(self._instance(instance, moment, _used(mine)))
        else:
            processes += self._processes(moments[0], at, None)
        used = _used(processes)
        orphaned = self.faults.orphaned_share(at) * self._usable // MEMORY_GRAIN * MEMORY_GRAIN
        state = self._state(moments, at, since, min(used + orphaned, max(used, self._usable)))
        peers = [peer.index for peer in self.peers if at < peer.faults.lost_at]
        device = self._vendor.make_device(
            uuid=self.identity.uuid,
            index=self.index,
            instances=tuple(instances),
            **self._vendor.peer_readings(self.model, self.index, peers),
            **self._constant_readings,
            **self._vendor.varying_readings(self.model, varying_readings(state, self.faults)),
        )
        return device, processes

    def _state(self, moments: list[Moment], at: float, since: float | None, used: float) -> SimulatedGpuState:
        totals = self._gained(moments, at)
        mean: Maybe[float] = ABSENT
        if since is not None and since < at and not self.instances:
            gained = totals[BUSY] - self.total(BUSY, since)
            mean = min(1.0, max(0.0, gained / (at - since)))
        return SimulatedGpuState(
            model=self.model,
            identity=self.identity,
            at=at,
            moments=tuple(moments),
            chip_shares=self.chip_shares,
            split=bool(self.instances),
            unsplit=self._unsplit,
            totals=totals,
            last_second_joules=totals[POWER] - self.total(POWER, at - 1.0),
            mean_utilization=mean,
            memory_used=used,
        )

    def _gained(self, moments: list[Moment], at: float) -> Rates:
        """All counters at `at`, computed from `moments`."""
        if at < self._boot:
            return ZERO
        total: Rates = (0.0, self._unsplit * self.model.power_idle * at, 0.0, 0.0, 0.0, 0.0)
        for moment in moments:
            total = added(total, moment.totals)
        return tuple(map(sub, total, self._at_boot))

    def _processes(self, moment: Moment, at: float, instance: SimulatedInstance | None) -> Iterator[Process]:
        usable = self._usable if instance is None else instance.profile.memory_mib * MIB
        busy = moment.phase.rates[BUSY]
        work = moment.activity.workload
        for tenant in moment.activity.tenants:
            if not tenant.has_process:
                continue
            first_process = self.run_of(tenant, moment.round_start, moment.round_number, at)
            share = busy * tenant.sm_share
            yield Process(
                pid=Pid(first_process.pid + tenant.rank),
                gpu_uuid=self.identity.uuid,
                instance_uuid=ABSENT if instance is None else instance.uuid,
                kind=tenant.kind,
                command=tenant.job.command,
                driver_name=tenant.job.command,
                started_at=first_process.started_at,
                memory_bytes=_memory(tenant, at - first_process.started_at, usable),
                sm_ratio=ABSENT if instance else round(share, 2),
                memory_ratio=ABSENT if instance else round(share * work.dram, 2),
                encoder_ratio=ABSENT if instance else round(share * work.encoder, 2),
                decoder_ratio=ABSENT if instance else round(share * work.decoder, 2),
                work=_on_cpu(work, at - first_process.started_at),
                owner=first_process.owner,
                # Of a pod or job the owner tells; else its first rank is the launcher.
                program=ABSENT if tenant.job.manager != BARE else f"pid-{first_process.pid}",
            )

    def run_of(self, tenant: Tenant, start: float, number: int, at: float) -> FirstProcess:
        """The ids of a tenant's job in round `number` of its track, which began at `start`."""
        first_process = self._kept_run(tenant, start, number)
        if not tenant.leak_seconds:
            return first_process
        # It runs out of memory and its launcher starts it again: a new process of the same job.
        restarts = int((at - first_process.started_at) // tenant.leak_seconds)
        again = self._kept_run(tenant, start + restarts * tenant.leak_seconds, restarts)
        return FirstProcess(again.started_at, again.pid, first_process.owner)

    def _kept_run(self, tenant: Tenant, start: float, number: int) -> FirstProcess:
        key = (tenant.job.key, start, number)
        first_process = self._runs.get(key)
        if first_process is None:
            if len(self._runs) > 64:
                self._runs.clear()
            first_process = self._runs[key] = run_of(tenant.job, start, number)
        return first_process

    def _instance(self, instance: SimulatedInstance, moment: Moment, used: float) -> Instance:
        return self._vendor.make_instance(
            uuid=instance.uuid,
            gpu_instance=instance.number,
            compute_instance=0,
            profile=instance.profile.name,
            **instance_readings(self.model, instance.profile, moment, used),
        )

    def errors(self, since: float, until: float) -> Iterator[ErrorEvent]:
        """The XIDs of [since, until). A lost GPU reports none."""
        found = [*self.faults.xids, *(x for t in self.timelines for x in t.xids(since, until))]
        for at, xid in found:
            if since <= at < min(until, self.faults.lost_at):
                yield ErrorEvent(
                    vendor=self._vendor.vendor,
                    code=str(xid),
                    at=at,
                    reporter=self._vendor.error_reporter,
                    gpu_uuid=self.identity.uuid,
                    pci_bus_id=self.identity.pci_bus_id,
                    message=f"simulated Xid {xid}",
                )


def _on_cpu(work: Workload, age: float) -> ProcessWork:
    if work.on_cpu is NO_WORK:
        return NO_WORK
    return replace(work.on_cpu, read_bytes=float(int(_START_READS + work.reads * max(0.0, age))))


def _memory(tenant: Tenant, age: float, usable: float) -> float:
    share = tenant.memory_share
    if tenant.leak_seconds:
        share += (0.98 - share) * min(1.0, max(0.0, age) / tenant.leak_seconds)
    grown = min(1.0, max(_START_SHARE, age / tenant.job.workload.ramp_seconds))
    return max(MEMORY_GRAIN, share * grown * usable // MEMORY_GRAIN * MEMORY_GRAIN)


def _used(processes: Sequence[Process]) -> float:
    return sum(process.memory_bytes for process in processes if process.memory_bytes is not ABSENT)
