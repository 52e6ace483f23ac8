"""What an owner's account says about work, pauses and energy, on whole GPUs and under MIG."""

from __future__ import annotations

import pytest

from gpuscope.agent.families.native.owner_metrics import OwnerMetrics
from gpuscope.agent.owners.gpu_time import KEPT_SECONDS
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Counters,
    Device,
    Instance,
    Maybe,
    Owner,
    Ownership,
    OwnerUse,
    Pid,
    Process,
    Snapshot,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance

GPU = Uuid("GPU-0")
FIRST, SECOND = Uuid("MIG-1"), Uuid("MIG-2")


def process(pid: int, user: str, sm: Maybe[float] = ABSENT, on: Maybe[Uuid] = ABSENT) -> Process:
    return Process(pid=Pid(pid), gpu_uuid=GPU, instance_uuid=on, sm_ratio=sm, owner=Owner(user=user))


def instance(uuid: Uuid, profile: Maybe[str], activity: Maybe[float] = ABSENT) -> Instance:
    return make_instance(
        uuid=uuid,
        gpu_instance=int(uuid[-1]),
        compute_instance=0,
        profile=profile,
        engine_active_ratio={} if activity is ABSENT else {"graphics": activity},
    )


def split_gpu(*instances: Instance) -> Device:
    return make_device(uuid=GPU, index=0, model="NVIDIA H100", instances=instances)


class Cycles:
    """Accounts that are advanced second by second; the board draws `watts`."""

    def __init__(self) -> None:
        self._accounts = OwnerAccounts()
        self._at, self._joules = 0.0, 0.0
        self._accounts.advance((), (), ABSENT, {}, self._at)

    def run(
        self,
        seconds: int,
        *processes: Process,
        device: Device | None = None,
        watts: float = 100.0,
        allocations: Maybe[tuple[Allocation, ...]] = ABSENT,
        gone: bool = False,
    ) -> Ownership:
        for _ in range(seconds):
            self._at, self._joules = self._at + 1, self._joules + watts
            uses, left = self._accounts.advance(
                processes,
                () if gone else (device or make_device(uuid=GPU, index=0),),
                allocations,
                {GPU: Counters(energy_joules=self._joules)},
                self._at,
            )
        return Ownership(uses=uses, unattributed=left, times=self._accounts.times)


def of(ownership: Ownership, user: str) -> OwnerUse:
    (use,) = [one for one in ownership.uses if one.owner.name == user]
    return use


def test_an_idle_stretch_counts_from_its_beginning_and_a_short_pause_does_not() -> None:
    cycles = Cycles()
    cycles.run(1)  # the first reading of the energy counter
    cycles.run(800, process(1, "ann", 0.0))
    paused = cycles.run(10, process(1, "ann", 0.5))
    assert (of(paused, "ann").idle_gpu_seconds, of(paused, "ann").idle_seconds) == (0, 0)
    assert of(cycles.run(899, process(1, "ann", 0.009)), "ann").idle_gpu_seconds == 0
    idle = of(cycles.run(1, process(1, "ann", 0.0)), "ann")
    assert (idle.idle_gpu_seconds, idle.idle_seconds) == (900, 900)
    assert of(cycles.run(60, process(1, "ann", 0.0)), "ann").idle_gpu_seconds == 960
    assert of(cycles.run(1, process(1, "ann", 1.0)), "ann").idle_gpu_seconds == 960


def test_unknown_work_is_counted_apart_and_is_not_idle() -> None:
    found = of(Cycles().run(1000, process(1, "ann")), "ann")
    assert (found.gpu_seconds, found.unknown_seconds) == (1000, 1000)
    assert (found.busy_seconds, found.idle_seconds, found.idle_gpu_seconds) == (ABSENT, ABSENT, 0)


def test_an_instances_activity_goes_to_its_only_owner() -> None:
    device = split_gpu(instance(FIRST, "3g.40gb", 0.5), instance(SECOND, "1g.10gb", 0.8))
    running = (process(1, "ann", on=FIRST), process(2, "bob", on=SECOND), process(3, "eve", on=SECOND))
    found = Cycles().run(70, *running, device=device)
    assert of(found, "ann").busy_seconds == pytest.approx(70 * 3 / 7 * 0.5)
    assert of(found, "ann").unknown_seconds == 0
    for shared in ("bob", "eve"):
        assert of(found, shared).busy_seconds is ABSENT, "two owners: not known, never 0"
        assert of(found, shared).unknown_seconds == pytest.approx(5)
    (time,) = found.times
    together = {unit.uuid: (unit.busy_seconds, unit.unknown_seconds) for unit in time.units}
    assert together == {FIRST: (pytest.approx(15), 0), SECOND: (pytest.approx(8), 0)}, (
        "all holders together work"
    )


def test_energy_of_instances_is_by_slices_at_idle_and_by_activity_above() -> None:
    def device(activity: float) -> Device:
        return split_gpu(instance(FIRST, "3g.40gb", activity), instance(SECOND, "4g.40gb", 0.0))

    running = (process(1, "ann", on=FIRST), process(2, "bob", on=SECOND))
    cycles = Cycles()
    cycles.run(1, *running, device=device(0.0))  # the first reading of the energy counter
    idle = cycles.run(10, *running, device=device(0.0), watts=70.0)
    assert of(idle, "ann").energy_joules == pytest.approx(300)
    assert of(idle, "bob").energy_joules == pytest.approx(400)
    busy = cycles.run(10, *running, device=device(1.0), watts=270.0)
    assert of(busy, "ann").energy_joules == pytest.approx(300 + 300 + 2000)
    assert of(busy, "bob").energy_joules == pytest.approx(400 + 400)


def test_energy_of_an_unknown_profile_is_not_known() -> None:
    device = split_gpu(instance(FIRST, ABSENT, 0.5))
    assert of(Cycles().run(5, process(1, "ann", on=FIRST), device=device), "ann").energy_joules is ABSENT


def test_a_single_holder_pays_for_its_pauses() -> None:
    cycles = Cycles()
    cycles.run(1, process(1, "ann", 0.3))
    assert of(cycles.run(10, process(1, "ann", 0.3)), "ann").energy_joules == pytest.approx(1000)
    assert of(cycles.run(10, process(1, "ann", 0.0)), "ann").energy_joules == pytest.approx(2000)


def test_an_allocation_without_a_process_is_idle() -> None:
    allocation = Allocation(gpu_uuid=GPU, pod="train", namespace="ml")
    found = Cycles().run(1000, allocations=(allocation,))
    assert of(found, "train").busy_seconds == 0
    assert of(found, "train").idle_seconds == 1000


def series_of(ownership: Ownership, devices: tuple[Device, ...], metrics: OwnerMetrics) -> dict[str, float]:
    snapshot = Snapshot(node="n1", taken_at=0.0, devices=devices, ownership=ownership)
    return {
        family.name + str(labels.pairs): float(value)
        for family in metrics.to_families(snapshot)
        for labels, value in family.samples
    }


def test_counters_of_a_removed_instance_stay_under_their_labels_for_the_last_scrape() -> None:
    """With another `gpu` label they would be another series, and a report would count everything twice."""
    cycles, metrics, device = Cycles(), OwnerMetrics(), split_gpu(instance(FIRST, "3g.40gb"))
    before = series_of(cycles.run(70, process(1, "ann", on=FIRST), device=device), (device,), metrics)
    whole = make_device(uuid=GPU, index=0, model="NVIDIA H100")
    after = series_of(cycles.run(1, device=whole), (whole,), metrics)
    assert {name: value for name, value in before.items() if "gpu_seconds_total" in name and "ann" in name}
    for name, value in before.items():
        if ("gpu_seconds_total" in name and "ann" in name) or "held_seconds_total" in name:
            assert after[name] == value
    assert not [name for name in after if "('gpu', '')" in name]
    later = series_of(cycles.run(int(KEPT_SECONDS) + 1, device=whole), (whole,), metrics)
    assert not [name for name in later if FIRST in name]


def test_counters_of_a_board_that_left_stay_for_the_last_scrape() -> None:
    cycles = Cycles()
    cycles.run(70, process(1, "ann", 1.0))
    assert [time.observed_seconds for time in cycles.run(5, gone=True).times] == [70]
    assert cycles.run(int(KEPT_SECONDS), gone=True).times == ()
