"""A snapshot has what the readings have, and what is counted and joined over the cycles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.model.readings import ABSENT, ErrorEvent, HostReading, Reading, SlurmState, Snapshot, Uuid
from tests.fakes import gpu, xid_event

NOW = 1_700_000_000.0
XID = xid_event(79, at=NOW - 40, reporter="nvml", gpu_uuid=Uuid("GPU-0"))


def composer() -> SnapshotComposer:
    ledger, integrator = ErrorLedger(None), Integrator(max_gap_seconds=30.0)
    return SnapshotComposer(
        "n1", ledger=ledger, integrator=integrator, owners=OwnerJoin(node="n1"), expected_gpus=2
    )


def compose(
    composing: SnapshotComposer, *readings: Reading, at: float = 0.0, errors: Iterable[ErrorEvent] = ()
) -> Snapshot:
    return composing.compose(readings, errors, now=NOW + at, monotonic=100.0 + at, sources=())


def test_a_snapshot_has_what_its_readings_have() -> None:
    slurm, busy = SlurmState(up=True, read_at=NOW), gpu(utilization_ratio=1.0)
    composing = composer()
    for at, idle in ((0.0, 0.0), (10.0, 5.0)):
        host = HostReading(cpu_seconds={("0", "user"): at, ("0", "idle"): idle})
        snapshot = compose(composing, Reading(devices=(busy,), processes=(), host=host, slurm=slurm), at=at)
    assert (snapshot.node, snapshot.taken_at, snapshot.monotonic) == ("n1", NOW + 10, 110.0)
    assert (snapshot.devices, snapshot.processes, snapshot.expected_gpus) == ((busy,), (), 2)
    assert (snapshot.host, snapshot.slurm) == (host, slurm)
    assert snapshot.cpu_ratio == pytest.approx(2 / 3)
    assert snapshot.counters[busy.uuid].busy_seconds == 10.0
    assert snapshot.trends[busy.uuid].free_seconds == 10.0
    assert compose(composing, Reading(simulated=True), at=20.0).simulated


def test_an_event_without_a_monotonic_time_gets_that_of_its_age() -> None:
    composing, reading = composer(), Reading(devices=(gpu(),))
    snapshot = compose(composing, reading, errors=[XID])
    assert [(total.code, total.count, total.last_monotonic) for total in snapshot.errors] == [("79", 1, 60.0)]
    assert composing.take_new_errors() == [replace(XID, monotonic=60.0)]
    assert composing.take_new_errors() == []


@pytest.mark.parametrize(
    ("event", "monotonic"), [(replace(XID, monotonic=7.0), 7.0), (replace(XID, at=NOW + 5), 100.0)]
)
def test_a_known_monotonic_time_stays_and_none_is_in_the_future(event: ErrorEvent, monotonic: float) -> None:
    snapshot = compose(composer(), Reading(devices=(gpu(),)), errors=[event])
    assert [total.last_monotonic for total in snapshot.errors] == [monotonic]


def test_without_a_reading_nothing_is_known() -> None:
    snapshot = compose(composer())
    assert (snapshot.devices, snapshot.processes, snapshot.host) == ((), ABSENT, ABSENT)
    assert (snapshot.slurm, snapshot.cpu_ratio, snapshot.simulated) == (ABSENT, ABSENT, False)
