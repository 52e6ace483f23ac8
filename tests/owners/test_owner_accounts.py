"""Owners' accounts: exact on a shared GPU, the rest left over and never shared out, bounded under churn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.gpu_time import KEPT_SECONDS
from gpuscope.agent.owners.owner_accounts import MAX_ACCOUNTS, MAX_GONE, OwnerAccounts
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Counters,
    Maybe,
    Owner,
    OwnerKey,
    OwnerUse,
    Pid,
    Process,
    Unattributed,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_instance
from tests.fakes import gpu

GIB = float(1 << 30)
GPU = Uuid("GPU-0")


def process(
    pid: int, owner: Owner, memory: Maybe[float] = GIB, sm: Maybe[float] = 0.0, instance: Maybe[Uuid] = ABSENT
) -> Process:
    return Process(
        pid=Pid(pid), gpu_uuid=GPU, instance_uuid=instance, owner=owner, memory_bytes=memory, sm_ratio=sm
    )


def pod(name: str) -> Owner:
    return Owner(pod=name, namespace="ml")


def by_owner(uses: tuple[OwnerUse, ...]) -> dict[OwnerKey, OwnerUse]:
    assert len({use.owner for use in uses}) == len(uses)
    return {use.owner: use for use in uses}


def left_of(left: tuple[Unattributed, ...], kind: str) -> Unattributed:
    (one,) = [one for one in left if one.kind == kind and one.instance_uuid is ABSENT]
    return one


def test_four_pods_on_one_gpu() -> None:
    """Time-slicing: each pod by its own samples; a device at 90 % leaves what the pods do not explain."""
    shares = {"a": 0.4, "b": 0.2, "c": 0.1, "d": 0.0}
    processes = [process(n, pod(name), (n + 1) * GIB, sm) for n, (name, sm) in enumerate(shares.items())]
    device = gpu(0, memory_used_bytes=12 * GIB, utilization_ratio=0.9)
    counters = OwnerAccounts()
    for second in range(11):
        of_gpu = {GPU: Counters(busy_seconds=0.9 * second, energy_joules=300.0 * second)}
        uses, left = counters.advance(processes, [device], ABSENT, of_gpu, 100.0 + second)
    for number, (name, sm) in enumerate(shares.items()):
        use = by_owner(uses)[OwnerKey("pod", name, "ml")]
        assert use.memory_bytes == (number + 1) * GIB
        assert use.sm_ratio == sm
        assert use.held_seconds == pytest.approx(10)
        assert use.busy_seconds == pytest.approx(10 * sm)
        # By SM time; the pauses, a tenth of the time, are divided among the holders as the GPU's time is.
        assert use.energy_joules == pytest.approx(3000 * (sm + 0.1 * sm / 0.7))
    rest = left_of(left, "pod")
    assert rest.memory_bytes == 2 * GIB
    assert rest.sm_ratio == pytest.approx(0.2)
    assert rest.busy_seconds == pytest.approx(2.0)
    assert rest.energy_joules == pytest.approx(600.0)
    assert left_of(left, "user").processes == 4, "none of them has a user: that is to be seen"


def test_several_processes_of_one_owner_add_up_and_a_process_has_all_its_owners() -> None:
    owner = Owner(user="alice", job="17")
    counters = OwnerAccounts()
    uses, left = counters.advance(
        [process(1, owner, GIB, 0.1), process(2, owner, ABSENT, 0.2)],
        [gpu(0, memory_used_bytes=3 * GIB)],
        ABSENT,
        {},
        0.0,
    )
    for key in (OwnerKey("user", "alice"), OwnerKey("job", "17")):
        use = by_owner(uses)[key]
        assert (use.processes, use.memory_bytes, use.sm_ratio) == (2, GIB, pytest.approx(0.3))
        assert use.busy_seconds == 0.0
    assert left_of(left, "job").memory_bytes == 2 * GIB


def test_under_mig_memory_is_told_by_instance_and_work_is_absent_not_zero() -> None:
    first, second = Uuid("MIG-7"), Uuid("MIG-7b")
    instances = (
        make_instance(uuid=first, gpu_instance=7, compute_instance=0, memory_used_bytes=8 * GIB),
        make_instance(uuid=second, gpu_instance=7, compute_instance=1, memory_used_bytes=8 * GIB),
    )
    device = gpu(0, memory_used_bytes=20 * GIB, instances=instances)
    counters = OwnerAccounts()
    running = [process(1, pod("a"), 3 * GIB, ABSENT, first), process(2, pod("b"), 4 * GIB, ABSENT, second)]
    for at in range(3):
        of_gpu = {GPU: Counters(energy_joules=100.0 * at)}
        uses, left = counters.advance(running, [device], ABSENT, of_gpu, float(at))
    use = by_owner(uses)[OwnerKey("pod", "a", "ml")]
    assert (use.instance_uuid, use.memory_bytes, use.held_seconds) == (first, 3 * GIB, 2.0)
    assert (use.sm_ratio, use.busy_seconds, use.energy_joules) == (ABSENT, ABSENT, ABSENT)
    assert left_of(left, "pod").energy_joules == 200.0
    assert left_of(left, "pod").memory_bytes is ABSENT
    of_instances = {one.instance_uuid: one.memory_bytes for one in left if one.kind == "pod"}
    assert of_instances[first] == GIB, "shared memory counts once, for both instances together"
    assert of_instances[second] is ABSENT


def test_an_allocation_holds_a_gpu_without_a_process_and_a_stranger_is_seen() -> None:
    counters = OwnerAccounts()
    allocations = [Allocation(gpu_uuid=GPU, namespace="ml", pod="given")]
    for second in range(6):
        uses, _ = counters.advance(
            [process(1, pod("stranger"), GIB, 0.5)], [gpu(0)], allocations, {}, float(second)
        )
    unused, stranger = (by_owner(uses)[OwnerKey("pod", name, "ml")] for name in ("given", "stranger"))
    assert (unused.allocated, unused.processes, unused.held_seconds) == (True, 0, 5.0)
    assert (unused.memory_bytes, unused.busy_seconds) == (0.0, 0.0), "without a process it is known not to work"
    assert (stranger.allocated, stranger.held_seconds) == (False, 5.0)


@pytest.mark.parametrize("scope", ["all processes", "those of this GPU"])
def test_the_memory_of_an_allocation_is_not_known_without_its_processes(scope: str) -> None:
    device = gpu(0) if scope == "all processes" else replace(gpu(0), processes_known=False)
    (use,), _ = OwnerAccounts().advance(
        [], [device], [Allocation(gpu_uuid=GPU, namespace="ml", pod="given")], {}, 0.0,
        processes_known=scope != "all processes",
    )  # fmt: skip
    assert (use.allocated, use.memory_bytes) == (True, ABSENT)


def test_a_pause_is_not_filled_with_guesses() -> None:
    counters = OwnerAccounts(max_gap_seconds=30.0)
    running = [process(1, pod("a"), GIB, 1.0)]
    for at, energy in ((0.0, 0.0), (1.0, 100.0), (1000.0, 90_000.0), (1001.0, 90_100.0)):
        uses, left = counters.advance(running, [gpu(0)], ABSENT, {GPU: Counters(energy_joules=energy)}, at)
    use = by_owner(uses)[OwnerKey("pod", "a", "ml")]
    assert (use.held_seconds, use.busy_seconds, use.energy_joules) == (2.0, 2.0, 200.0)
    assert left_of(left, "pod").energy_joules == 0.0


def test_a_drivers_counter_that_starts_over_charges_nothing_backwards() -> None:
    counters = OwnerAccounts()
    for at, energy in ((0.0, 500.0), (1.0, 600.0), (2.0, 10.0), (3.0, 20.0)):
        uses, _ = counters.advance(
            [process(1, pod("a"), GIB, 1.0)], [gpu(0)], ABSENT, {GPU: Counters(energy_joules=energy)}, at
        )
    assert by_owner(uses)[OwnerKey("pod", "a", "ml")].energy_joules == 110.0


def test_who_left_is_shown_for_a_while_and_then_forgotten() -> None:
    counters = OwnerAccounts()
    counters.advance([process(1, pod("a"))], [gpu(0)], ABSENT, {}, 0.0)
    uses, _ = counters.advance([], [gpu(0)], ABSENT, {}, 1.0)
    assert [use.here for use in uses] == [False]
    uses, _ = counters.advance([], [gpu(0)], ABSENT, {}, KEPT_SECONDS + 1)
    assert uses == ()


def test_a_churn_of_short_owners_leaves_a_bounded_number_of_accounts() -> None:
    counters = OwnerAccounts()
    most = 0
    for second in range(10):
        running = [process(n, pod(f"job-{second}-{n}"), GIB, 0.0) for n in range(1000)]
        uses, _ = counters.advance(running, [gpu(0)], ABSENT, {}, float(second))
        most = max(most, len(uses))
        here = {use.owner.name for use in uses if use.here}
        assert len(here) == 1000, "those that run now always have theirs"
    assert most <= 1000 + MAX_GONE


def test_more_owners_than_there_are_accounts_are_unattributed_not_lost() -> None:
    running = [process(n, pod(f"p{n}"), 1.0, 0.0) for n in range(MAX_ACCOUNTS + 10)]
    uses, left = OwnerAccounts().advance(
        running, [gpu(0, memory_used_bytes=float(len(running)))], ABSENT, {}, 0.0
    )
    assert len(uses) == MAX_ACCOUNTS
    assert (left_of(left, "pod").processes, left_of(left, "pod").memory_bytes) == (10, 10.0)


ratios = st.one_of(st.just(ABSENT), st.floats(0, 1))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.just(ABSENT), st.floats(0, 1e11)), ratios), max_size=8
    ),
    st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1), st.floats(0, 700)), min_size=2, max_size=6),
)
def test_what_is_charged_and_what_is_left_is_never_more_than_there_was(
    running: list[tuple[str, Maybe[float], Maybe[float]]], steps: list[tuple[float, float, float]]
) -> None:
    counters = OwnerAccounts()
    at = energy = busy = 0.0
    processes = [process(n, pod(name), memory, sm) for n, (name, memory, sm) in enumerate(running)]
    for seconds, ratio, watts in steps:
        at, energy, busy = at + seconds, energy + watts * seconds, busy + ratio * seconds
        uses, left = counters.advance(
            processes, [gpu(0)], ABSENT, {GPU: Counters(busy_seconds=busy, energy_joules=energy)}, at
        )
    charged = sum(use.energy_joules for use in uses if use.energy_joules is not ABSENT)
    rest = [one for one in left if one.kind == "pod"]
    if rest:
        assert rest[0].energy_joules is not ABSENT
        assert charged + rest[0].energy_joules <= energy * (1 + 1e-9) + 1e-6
    for use in uses:
        assert 0 <= use.held_seconds <= at
        assert use.busy_seconds is ABSENT or use.busy_seconds <= use.held_seconds + 1e-6
