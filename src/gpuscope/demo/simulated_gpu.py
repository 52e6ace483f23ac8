"""One simulated GPU at any time: its device, MIG instances, processes and XIDs.

All counters start at `boot`, together with the driver. The values of a MIG GPU are the sums over its instances.
What the driver does not report with MIG is absent here too: the GPU's utilisation and the processes' SM shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import sub

from gpuscope.demo.constant_fields import (
    NOT_SUPPORTED,
    OPEN,
    constant_fields,
    has_nvlink_between,
    identity_fields,
)
from gpuscope.demo.curve import BUSY, POWER, ZERO, Rates, added
from gpuscope.demo.jobs import BARE, FirstProcess, Tenant, run_of
from gpuscope.demo.models import MIB, Identity, MigProfile, Model
from gpuscope.demo.track import Faults, Moment, Timeline
from gpuscope.demo.varying_fields import SimulatedGpuState, instance_fields, varying_fields
from gpuscope.demo.workload import Workload
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
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, make_device, make_instance

MEMORY_GRAIN = 2 * MIB  # the driver allocates memory in pages of 2 MiB
_START_READS = 3e9  # bytes: libraries, and a model
_START_SHARE = 0.06  # of its memory, which a process has from the start


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """A MIG instance: its ids, and its work over time."""

    uuid: Uuid
    gpu_instance: int
    profile: MigProfile
    timeline: Timeline

    @property
    def chip_share(self) -> float:
        return self.profile.compute_slices / 7


class Gpu:
    def __init__(
        self,
        index: int,
        model: Model,
        identity: Identity,
        boot: float,
        work: Timeline | Sequence[SimulatedInstance],
    ) -> None:
        self.index = index
        self.model = model
        self.identity = identity
        self.faults = Faults()
        self.instances: tuple[SimulatedInstance, ...] = () if isinstance(work, Timeline) else tuple(work)
        self.timelines = [work] if isinstance(work, Timeline) else [instance.timeline for instance in work]
        self.peers: tuple[Gpu, ...] = ()  # the node's other GPUs, if it has NVLink
        self.chip_shares = tuple(instance.chip_share for instance in self.instances) or (1.0,)
        self._boot = boot
        self._unsplit = 1.0 - sum(self.chip_shares)
        self._usable = (model.memory_mib - model.reserved_mib) * MIB
        self._constant_fields = constant_fields(index, model, identity, bool(self.instances))
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
            who = identity_fields(self.index, self.model, self.identity)
            return make_device(uuid=self.identity.uuid, index=self.index, lost=True, **who), []
        moments = [timeline.moment(at) for timeline in self.timelines]
        processes: list[Process] = []
        instances: list[Instance] = []
        if self.instances:
            for instance, moment in zip(self.instances, moments, strict=True):
                mine = list(self._processes(moment, at, instance))
                processes += mine
                instances.append(_instance(self.model, instance, moment, _used(mine)))
        else:
            processes += self._processes(moments[0], at, None)
        used = _used(processes)
        orphaned = self.faults.orphaned_share(at) * self._usable // MEMORY_GRAIN * MEMORY_GRAIN
        state = self._state(moments, at, since, min(used + orphaned, max(used, self._usable)))
        device = make_device(
            uuid=self.identity.uuid,
            index=self.index,
            instances=tuple(instances),
            p2p_nvlink_status=self._peer_statuses(at),
            **self._constant_fields,
            **varying_fields(state, self.faults),
        )
        return device, processes

    def _peer_statuses(self, at: float) -> dict[str, float]:
        return {
            str(peer.index): OPEN if has_nvlink_between(self.model, self.index, peer.index) else NOT_SUPPORTED
            for peer in self.peers
            if at < peer.faults.lost_at
        }

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

    def errors(self, since: float, until: float) -> Iterator[ErrorEvent]:
        """The XIDs of [since, until). A lost GPU reports none."""
        found = [*self.faults.xids, *(x for t in self.timelines for x in t.xids(since, until))]
        for at, xid in found:
            if since <= at < min(until, self.faults.lost_at):
                yield ErrorEvent(
                    vendor=NVIDIA,
                    code=str(xid),
                    at=at,
                    reporter="nvml",
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


def _instance(model: Model, instance: SimulatedInstance, moment: Moment, used: float) -> Instance:
    return make_instance(
        uuid=instance.uuid,
        gpu_instance=instance.gpu_instance,
        compute_instance=0,
        profile=instance.profile.name,
        **instance_fields(model, instance.profile, moment, used),
    )
