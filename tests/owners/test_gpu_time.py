"""Where a GPU's time goes: the sum always equals the observed time, whoever shares what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Device,
    Instance,
    Maybe,
    Owner,
    OwnerKey,
    Ownership,
    OwnerUse,
    Pid,
    Process,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance

GPU = Uuid("GPU-0")


def instance(number: int, profile: Maybe[str] = "1g.10gb") -> Instance:
    return make_instance(uuid=Uuid(f"MIG-{number}"), gpu_instance=number, compute_instance=0, profile=profile)


def process(
    pid: int,
    user: str | None = "ann",
    *,
    sm: Maybe[float] = ABSENT,
    memory: Maybe[float] = ABSENT,
    pod: str | None = None,
    on: Maybe[Uuid] = ABSENT,
) -> Process:
    owner = Owner(user=user or ABSENT, pod=pod or ABSENT, namespace="ml" if pod else ABSENT)
    return Process(pid=Pid(pid), gpu_uuid=GPU, instance_uuid=on, sm_ratio=sm, memory_bytes=memory, owner=owner)


class Cycles:
    """Accounts that are advanced second by second."""

    def __init__(self) -> None:
        self._accounts = OwnerAccounts()
        self._at = 0.0
        self._accounts.advance((), (), ABSENT, {}, self._at)

    def second(
        self,
        *processes: Process,
        device: Device | None = None,
        allocations: Maybe[tuple[Allocation, ...]] = ABSENT,
        known: bool = True,
    ) -> Ownership:
        self._at += 1
        devices = (device or make_device(uuid=GPU, index=0),)
        uses, left = self._accounts.advance(
            processes, devices, allocations, {}, self._at, processes_known=known
        )
        return Ownership(uses=uses, unattributed=left, times=self._accounts.times)


def shares(ownership: Ownership, kind: str = "user") -> dict[str, float]:
    return {one.owner.name: one.gpu_seconds for one in ownership.uses if one.owner.kind == kind}


def parts(ownership: Ownership, kind: str) -> tuple[float, float]:
    """(observed, everything that it consists of) for one kind of owner."""
    (time,) = ownership.times
    owners = sum(one.gpu_seconds for one in ownership.uses if one.owner.kind == kind)
    left = [one.gpu_seconds for one in ownership.unattributed if one.kind == kind]
    unattributed = sum(one for one in left if one is not ABSENT)
    return time.observed_seconds, owners + unattributed + sum(
        u.free_seconds for u in time.units
    ) + time.stranded_seconds


def test_a_gpu_that_nobody_holds_is_free() -> None:
    found = Cycles().second()
    assert found.times[0].units[0].free_seconds == 1
    assert parts(found, "user") == (1, 1)


def test_one_owner_has_all_of_it() -> None:
    assert shares(Cycles().second(process(1), process(2))) == {"ann": 1}


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ((process(1, sm=0.6, memory=1), process(2, "bob", sm=0.2, memory=9)), {"ann": 0.75, "bob": 0.25}),
        ((process(1, sm=0.0, memory=1), process(2, "bob", sm=0.0, memory=3)), {"ann": 0.25, "bob": 0.75}),
        ((process(1), process(2, "bob")), {"ann": 0.5, "bob": 0.5}),
        ((process(1, sm=0.5), process(2, "bob", sm=0.0)), {"ann": 1.0, "bob": 0.0}),
    ],
    ids=["by SM time", "by memory", "equally", "one works"],
)
def test_a_shared_gpu_is_split(processes: tuple[Process, ...], expected: dict[str, float]) -> None:
    assert shares(Cycles().second(*processes)) == pytest.approx(expected)


def test_processes_without_an_owner_are_unattributed() -> None:
    found = Cycles().second(process(1, sm=0.25), process(2, None, sm=0.75))
    assert shares(found) == pytest.approx({"ann": 0.25})
    assert [one.gpu_seconds for one in found.unattributed] == pytest.approx([0.75])


def test_an_allocation_without_a_process_holds_the_gpu() -> None:
    allocations = (Allocation(gpu_uuid=GPU, pod="train", namespace="ml"),)
    found = Cycles().second(allocations=allocations)
    assert shares(found, "pod") == {"train": 1}
    assert found.times[0].units[0].free_seconds == 0
    assert parts(found, "user") == (1, 1), "no user is known: the time is unattributed, not free"


def test_a_kind_that_appears_late_has_its_sum_right() -> None:
    cycles = Cycles()
    cycles.second(process(1))
    found = cycles.second(process(2, pod="train"))
    assert shares(found, "pod") == {"train": 1}
    assert parts(found, "pod") == (2, 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_time_with_an_unknown_process_list_is_not_observed(is_known: bool) -> None:
    cycles = Cycles()
    cycles.second()
    found = cycles.second(device=make_device(uuid=GPU, index=0, processes_known=not is_known), known=is_known)
    assert parts(found, "user")[0] == 1
    assert found.times[0].units[0].free_seconds == 1


def test_mig_counts_by_compute_slices() -> None:
    board = make_device(uuid=GPU, index=0, model="NVIDIA H100", instances=(instance(7, "3g.40gb"), instance(9)))
    found = Cycles().second(process(1, on=Uuid("MIG-7")), device=board)
    assert shares(found) == pytest.approx({"ann": 3 / 7})
    assert found.times[0].stranded_seconds == pytest.approx(3 / 7)
    assert [unit.free_seconds for unit in found.times[0].units] == pytest.approx([0, 1 / 7])


@pytest.mark.parametrize(
    ("model", "profile", "weight"),
    [
        ("NVIDIA A30", "1g.6gb", 1 / 4),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2g.48gb", 2 / 4),
        ("NVIDIA A100-SXM4-80GB", "1c.3g.40gb", 1 / 7),
        ("NVIDIA H100", "7g.80gb", 1.0),
        ("NVIDIA H100", ABSENT, 0.0),
    ],
)
def test_the_weight_of_a_profile(model: str, profile: Maybe[str], weight: float) -> None:
    board = make_device(uuid=GPU, index=0, model=model, instances=(instance(1, profile),))
    found = Cycles().second(device=board)
    assert found.times[0].units[0].free_seconds == pytest.approx(weight)
    assert found.times[0].stranded_seconds == pytest.approx(1 - weight)


def test_a_lost_gpu_is_not_observed() -> None:
    cycles = Cycles()
    cycles.second()
    found = cycles.second(device=make_device(uuid=GPU, index=0, lost=True))
    assert found.times[0].observed_seconds == 1


numbers = st.one_of(st.just(ABSENT), st.floats(0, 1), st.just(0.0))
units = st.sampled_from([ABSENT, Uuid("MIG-1"), Uuid("MIG-2")])
processes = st.builds(
    process,
    st.integers(1, 5),
    st.sampled_from([None, "ann", "bob", "eve"]),
    sm=numbers,
    memory=numbers,
    pod=st.sampled_from([None, "train", "serve"]),
    on=units,
)
boards = st.one_of(
    st.just(make_device(uuid=GPU, index=0)),
    st.just(make_device(uuid=GPU, index=0, lost=True)),
    st.just(make_device(uuid=GPU, index=0, processes_known=False)),
    st.builds(
        lambda profiles: make_device(
            uuid=GPU, index=0, instances=tuple(instance(i + 1, one) for i, one in enumerate(profiles))
        ),
        st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", ABSENT]), min_size=1, max_size=2),
    ),
)
allocations = st.one_of(
    st.just(ABSENT),
    st.lists(
        st.builds(
            lambda pod, on: Allocation(gpu_uuid=GPU, instance_uuid=on, pod=pod, namespace="ml"),
            st.sampled_from(["train", "idle"]),
            units,
        ),
        max_size=3,
    ).map(tuple),
)


@given(st.lists(st.tuples(boards, st.lists(processes, max_size=5), allocations, st.booleans()), max_size=12))
def test_the_parts_always_add_up(
    seconds: list[tuple[Device, list[Process], Maybe[tuple[Allocation, ...]], bool]],
) -> None:
    """Owners come and go, MIG layouts change, a GPU is lost: over all units ever seen the sum holds."""
    cycles = Cycles()
    ever: dict[tuple[OwnerKey, Uuid], float] = {}
    free: dict[Uuid, float] = {}
    left: dict[tuple[str, Uuid], float] = {}
    for board, running, given_to, known in seconds:
        found = cycles.second(*running, device=board, allocations=given_to, known=known)
        for use in found.uses:
            ever[use.owner, unit(use)] = use.gpu_seconds
        for time in found.times:
            free |= {one.uuid: one.free_seconds for one in time.units}
        for one in found.unattributed:
            if one.gpu_seconds is not ABSENT:
                left[one.kind, one.gpu_uuid if one.instance_uuid is ABSENT else one.instance_uuid] = (
                    one.gpu_seconds
                )
        if not found.times or board.lost or not board.processes_known or not known:
            continue
        for kind in {use.owner.kind for use in found.uses} | {"user"}:
            if {uuid for name, uuid in left if name == kind} >= set(free):
                total = sum(value for (owner, _), value in ever.items() if owner.kind == kind)
                total += sum(value for (name, _), value in left.items() if name == kind)
                total += sum(free.values()) + found.times[0].stranded_seconds
                assert total == pytest.approx(found.times[0].observed_seconds)


def unit(use: OwnerUse) -> Uuid:
    return use.gpu_uuid if use.instance_uuid is ABSENT else use.instance_uuid
