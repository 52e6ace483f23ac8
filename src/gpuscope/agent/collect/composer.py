"""Composes one node's snapshots: readings go in, an immutable snapshot with counters and owners comes out.

A composer remembers what one reading alone cannot tell: integrated counters, owners' accounts, counted errors,
identities of lost GPUs. `now` and `monotonic` come from the caller, so that a simulated past takes the same
path as the present. Log lines about events and the agent's own cost belong to the collector, not to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuscope.agent.collect.counters import Integrator
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.gpu_trends import GpuTrends
from gpuscope.agent.collect.host_cpu import CpuMeter
from gpuscope.agent.collect.identities import Identities
from gpuscope.agent.collect.merge import merge_readings
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.model.readings import ABSENT, ErrorEvent, Maybe, Reading, Snapshot, SourceStatus


class SnapshotComposer:
    def __init__(
        self,
        node: str,
        *,
        ledger: ErrorLedger,
        integrator: Integrator,
        owners: OwnerJoin,
        expected_gpus: Maybe[int] = ABSENT,
        trends: GpuTrends | None = None,
    ) -> None:
        self._node = node
        self._ledger = ledger
        self._integrator = integrator
        self._owners = owners
        self._expected_gpus = expected_gpus
        self._identities = Identities()
        self._cpu = CpuMeter()
        self._trends = trends or GpuTrends()

    def compose(
        self,
        readings: Sequence[Reading],
        errors: Iterable[ErrorEvent],
        *,
        now: float,
        monotonic: float,
        sources: tuple[SourceStatus, ...],
    ) -> Snapshot:
        merged = merge_readings(readings)
        devices = self._identities.complete(merged.devices)
        self._ledger.add(_with_monotonic(event, now, monotonic) for event in errors)
        counters = self._integrator.advance(devices, monotonic)
        processes, ownership = self._owners.advance(
            merged.processes,
            devices,
            counters,
            simulated=merged.simulated,
            now=now,
            monotonic=monotonic,
            slurm=merged.slurm,
        )
        trends = self._trends.advance(
            devices, counters, processes, ownership.allocations, now=now, monotonic=monotonic
        )
        return Snapshot(
            node=self._node,
            taken_at=now,
            monotonic=monotonic,
            simulated=merged.simulated,
            drivers=merged.drivers,
            devices=devices,
            processes=processes,
            ownership=ownership,
            host=merged.host,
            infiniband=merged.infiniband,
            collectives=merged.collectives,
            slurm=merged.slurm,
            cpu_ratio=self._cpu.advance(merged.host),
            counters=counters,
            trends=trends,
            errors=self._ledger.totals(devices),
            sources=sources,
            expected_gpus=self._expected_gpus,
        )

    def take_new_errors(self) -> list[ErrorEvent]:
        """The errors counted since the last call, each once."""
        return self._ledger.take_new()

    def stop_waiting(self) -> None:
        """The next snapshot is the last: no process is held back until its owner is known."""
        self._owners.stop_waiting()


def _with_monotonic(event: ErrorEvent, now: float, monotonic: float) -> ErrorEvent:
    """A simulated event brings only its time since the epoch, of the clock that `now` is from."""
    if event.monotonic is not ABSENT:
        return event
    return replace(event, monotonic=monotonic - max(0.0, now - event.at))
