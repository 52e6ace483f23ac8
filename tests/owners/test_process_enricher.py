"""Processes as sessions: since when, whose, active or idle; and what happens when /proc does not play along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.pods import Pod, PodContainer, Pods, index_pods
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import NoNames, ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessLookup
from gpuscope.agent.owners.unallocated_use import used_allocations
from gpuscope.agent.owners.users import UserNames
from gpuscope.model.readings import (
    ABSENT,
    ACTIVE,
    IDLE,
    NO_OWNER,
    UNKNOWN,
    Allocation,
    Device,
    Maybe,
    Owner,
    Pid,
    Process,
    ProcessWork,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.trees import BOOTED_AT, CONTAINER, POD_UID, ProcTree, pod_cgroup


def process(pid: int = 7, sm: Maybe[float] = 0.0, **more: object) -> Process:
    return Process(pid=Pid(pid), gpu_uuid=Uuid("GPU-0"), sm_ratio=sm, **more)  # type: ignore[arg-type]


class Watch:
    """An enricher and a time that is moved by hand."""

    def __init__(self, enricher: ProcessEnricher, simulated: bool = False) -> None:
        self.enricher = enricher
        self.simulated = simulated
        self.at = 1000.0

    def see(self, *processes: Process, after: float = 1.0) -> tuple[Process, ...]:
        self.at += after
        return self.enricher.advance(
            processes, simulated=self.simulated, now=5000.0 + self.at, monotonic=self.at
        )


class FixedNames(NoNames):
    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    def pods(self) -> Pods:
        return self._pods


def enricher_of(
    tree: ProcTree, rootfs: Path, pods: Pods | None = None, since_boot: Callable[[], float] = lambda: 0.0
) -> ProcessEnricher:
    proc = Proc(str(tree.root), since_boot)
    lookup = ProcessLookup(proc, UserNames(str(rootfs)))
    names = FixedNames(pods) if pods is not None else None
    return ProcessEnricher(60.0, proc, ImmediateLookup(lookup), names)


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/h:/bin/sh\n")
    return ProcTree(tmp_path / "proc")


def test_idle_after_a_minute_without_sm_activity_and_active_at_once() -> None:
    watch = Watch(ProcessEnricher(60.0))
    assert watch.see(process(sm=0.5))[0].state == ACTIVE
    assert watch.see(process(sm=0.0), after=59)[0].state == ACTIVE
    (idle,) = watch.see(process(sm=0.0), after=1)
    assert (idle.state, idle.idle_seconds, idle.idle_since) == (IDLE, 60.0, 5000.0 + watch.at - 60)
    (busy,) = watch.see(process(sm=0.01))
    assert (busy.state, busy.idle_seconds, busy.idle_since) == (ACTIVE, 0.0, ABSENT)


def test_idle_and_age_do_not_change_when_the_clock_is_set(tree: ProcTree, tmp_path: Path) -> None:
    """An hour forward while the process is idle, then two back."""
    tree.add(7, uid=1001, start_ticks=1000)
    since_boot = [1010.0]
    enricher = enricher_of(tree, tmp_path, since_boot=lambda: since_boot[0])
    for monotonic, now, sm in ((0.0, 5000.0, 0.5), (70.0, 8670.0, 0.0), (75.0, 1475.0, 0.0)):
        since_boot[0] = 1010.0 + monotonic
        (seen,) = enricher.advance([process(sm=sm)], simulated=False, now=now, monotonic=monotonic)
    assert (seen.state, seen.idle_seconds, seen.age_seconds) == (IDLE, 75.0, 1075.0)


def test_what_a_process_did_while_nothing_was_read_is_not_known() -> None:
    watch = Watch(ProcessEnricher(60.0))
    assert watch.see(process(sm=0.5))[0].state == ACTIVE
    (seen,) = watch.see(process(sm=0.0), after=600)
    assert (seen.state, seen.idle_seconds) == (UNKNOWN, ABSENT)


def test_who_was_never_seen_at_work_is_unknown_until_watched_long_enough() -> None:
    watch = Watch(ProcessEnricher(60.0))
    assert watch.see(process())[0].state == UNKNOWN
    assert watch.see(process(), after=59)[0].state == UNKNOWN
    assert watch.see(process(), after=1)[0].state == IDLE


def test_where_the_driver_cannot_say_the_state_is_unknown_never_idle() -> None:
    watch = Watch(ProcessEnricher(60.0))
    for _ in range(5):
        assert watch.see(process(sm=ABSENT), after=100)[0].state == UNKNOWN


def test_a_reused_pid_is_another_session(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, uid=1001, start_ticks=1000)
    watch = Watch(enricher_of(tree, tmp_path))
    (first,) = watch.see(process(sm=0.5))
    assert (first.owner.user, first.started_at, first.state) == ("alice", BOOTED_AT + 10, ACTIVE)
    tree.add(7, uid=0, start_ticks=9000)
    (second,) = watch.see(process(sm=0.0))
    assert (second.owner.user, second.started_at, second.state) == ("root", BOOTED_AT + 90, UNKNOWN)


def test_a_process_that_ended_before_proc_was_asked_stays_without_owner(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7)
    watch = Watch(enricher_of(tree, tmp_path))
    here, gone = watch.see(process(7, command="python3"), process(8, command="gone"))
    assert here.owner.user == "root"
    assert (gone.owner, gone.started_at, gone.command) == (NO_OWNER, ABSENT, "gone")
    assert watch.enricher.failures() == {"process": 1}


def test_the_name_in_proc_fills_in_for_the_drivers(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, comm="train) (x")
    assert Watch(enricher_of(tree, tmp_path)).see(process())[0].command == "train) (x"


def test_pods_by_uid_and_the_agents_own_by_container(tree: ProcTree, tmp_path: Path) -> None:
    pod = Pod(
        uid=POD_UID,
        namespace="ml",
        name="train-0",
        labels=(("app", "train"),),
        containers=(PodContainer("main", CONTAINER, "img:1"), PodContainer("side", "f" * 64)),
    )
    tree.add(7, cgroup=pod_cgroup())
    tree.add(8, cgroup=f"0::/../cri-containerd-{'f' * 64}.scope\n")
    tree.add(9, cgroup=pod_cgroup("0" * 8 + POD_UID[8:], "e" * 64))
    seen = Watch(enricher_of(tree, tmp_path, index_pods([pod]))).see(process(7), process(8), process(9))
    first, second, stranger = (one.owner for one in seen)
    assert (first.namespace, first.pod, first.container, first.image) == ("ml", "train-0", "main", "img:1")
    assert first.pod_labels == (("app", "train"),)
    assert (second.pod, second.container, second.pod_uid) == ("train-0", "side", POD_UID)
    assert stranger.pod is ABSENT
    assert stranger.pod_uid is not ABSENT, "a pod whose name is unknown is still told apart by its UID"


def test_simulated_processes_keep_the_owners_they_bring(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, uid=1001)
    watch = Watch(enricher_of(tree, tmp_path), simulated=True)
    (simulated,) = watch.see(process(7, sm=0.3, owner=Owner(user="demo"), started_at=5.0))
    assert (simulated.owner.user, simulated.started_at, simulated.state) == ("demo", 5.0, ACTIVE)


def test_in_a_pid_namespace_of_our_own_another_program_is_not_taken_for_it(
    tree: ProcTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "sees_the_machine", lambda self: False)
    tree.add(7, comm="sh")
    tree.add(8, comm="python3")
    watch = Watch(enricher_of(tree, tmp_path))
    wrong, right, nameless = watch.see(
        process(7, command="python3"), process(8, command="python3"), process(8, command=ABSENT)
    )
    assert (wrong.owner, right.owner.user, nameless.owner) == (NO_OWNER, "root", NO_OWNER)
    assert watch.enricher.failures() == {"pid_mismatch": 2}


def test_churn_leaves_nothing_behind(tree: ProcTree, tmp_path: Path) -> None:
    enricher = enricher_of(tree, tmp_path)
    watch = Watch(enricher)
    for number in range(300):
        tree.add(7, start_ticks=1000 + number)
        watch.see(process(7, sm=0.5))
    assert enricher.kept() == 3, "what it was, whose it is, and what it does, of one process"


class Broken(ProcessEnricher):
    def advance(self, *_: object, **__: object) -> tuple[Process, ...]:
        raise RuntimeError("boom")


def test_a_failing_part_costs_its_own_facts_only(caplog: pytest.LogCaptureFixture) -> None:
    join = OwnerJoin(Broken())
    for _ in range(3):
        processes, ownership = join.advance((process(),), (), {}, simulated=False, now=0.0, monotonic=0.0)
    assert processes == (process(),)
    assert ownership.failures == {"sessions": 3}
    assert len(caplog.records) == 1, "said once, counted always"


def test_without_a_process_list_nothing_is_unattributed() -> None:
    processes, ownership = OwnerJoin().advance(ABSENT, (), {}, simulated=False, now=0.0, monotonic=0.0)
    assert processes is ABSENT
    assert ownership.unattributed == ()


def test_allocated_and_used_are_two_facts() -> None:
    given = [
        Allocation(gpu_uuid=Uuid("GPU-0"), device_id="GPU-0::0", replica="0", namespace="ml", pod="a"),
        Allocation(gpu_uuid=Uuid("GPU-0"), device_id="GPU-0::1", replica="1", namespace="ml", pod="b"),
        Allocation(gpu_uuid=Uuid("GPU-1"), device_id="GPU-1", namespace="ml", pod="a"),
        Allocation(device_id="GPU-unknown", namespace="ml", pod="a"),
    ]
    used = used_allocations(given, (process(owner=Owner(pod="a", namespace="ml")),), {})
    assert [one.used for one in used] == [True, False, False, False]


def test_of_two_pods_with_one_unshared_gpu_the_one_with_a_process_has_it() -> None:
    """Kubelets before 1.34 list pods that have ended."""
    both = [
        Allocation(gpu_uuid=Uuid("GPU-0"), device_id="GPU-0", namespace="ml", pod=name)
        for name in ("old", "new")
    ]
    running = process(owner=Owner(pod="new", namespace="ml"))
    assert [one.pod for one in used_allocations(both, (running,), {})] == ["new"]
    assert [one.pod for one in used_allocations(both, (), {})] == ["old", "new"], "who cannot tell shows both"


def test_nothing_of_a_process_is_lost_on_the_way() -> None:
    """Every field is copied by name: a new one must not be forgotten."""
    whole = Process(
        pid=Pid(1),
        gpu_uuid=Uuid("GPU-0"),
        instance_uuid=Uuid("MIG-1"),
        kind="M+C",
        command="c",
        driver_name="/bin/c",
        started_at=1.0,
        memory_bytes=2.0,
        sm_ratio=0.3,
        memory_ratio=0.4,
        encoder_ratio=0.5,
        decoder_ratio=0.6,
        jpeg_ratio=0.7,
        ofa_ratio=0.8,
        work=ProcessWork(cpu_ratio=0.7),
        owner=Owner(user="u"),
        program="pid-6",
    )
    untold = {f.name for f in fields(Process) if getattr(whole, f.name) == f.default}
    found_out = {"state", "age_seconds", "idle_seconds", "idle_since", "labels", "looked_up"}
    assert untold == found_out, "this test tells every field but those that are found out"
    assert Watch(ProcessEnricher()).see(whole) == (replace(whole, state=ACTIVE, idle_seconds=0.0),)


def test_before_a_gpu_was_read_nothing_is_said_of_allocations() -> None:
    class Given:
        known_kinds = frozenset({"job"})

        def allocations(self, devices: Sequence[Device], *_: object) -> tuple[Allocation, ...]:
            return (Allocation(device_id="1", resource="slurm", job="4711"),)

    join = OwnerJoin(scheduler=Given())

    def allocations(*devices: Device) -> object:
        return join.advance(ABSENT, devices, {}, simulated=False, now=1.0, monotonic=1.0)[1].allocations

    assert allocations() is ABSENT
    assert allocations(make_device(uuid=Uuid("GPU-0"), index=0)) == Given().allocations(())
