"""The whole way with real threads: GPUs, a fake /proc and log folder, and a real gRPC server as the kubelet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.families import load_family
from gpuscope.base.clock import SystemClock
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.owners import build_owner_join
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, OwnerKey, Pid, Process, Reading, Snapshot, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests import waiting
from tests.fakes import FakeSource, spec_of
from tests.owners.fake_kubelet import container, devices, pod, running_kubelet
from tests.owners.trees import ProcTree, add_pod_log, pod_cgroup

GIB = float(1 << 30)
GPU = Uuid("GPU-5a5a7118-e550-79a1-597e-7631e126c57a")
PODS = {name: f"00000000-0000-0000-0000-00000000000{n}" for n, name in enumerate("abcd")}
SHARES = {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.0}


class Node:
    """One GPU shared by four pods, and a process that belongs to none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = ProcTree(folder / "proc")
        for number, (name, uid) in enumerate(PODS.items()):
            self.proc.add(100 + number, cgroup=pod_cgroup(uid, f"{number}" * 64))
            add_pod_log(folder / "pods", "ml", name, uid, "main")
        self.proc.add(200, comm="Xorg", cgroup="0::/system.slice/display.service\n")
        self.settings = Settings(
            interval=0.1,
            kubelet_interval=0.1,
            path_procfs=str(folder / "proc"),
            path_pod_logs=str(folder / "pods"),
            pods_socket=str(folder / "pods-api/pods-api.sock"),
            kubelet_socket=str(folder / "pod-resources/kubelet.sock"),
        )

    def reading(self) -> Reading:
        processes = [
            Process(pid=Pid(100 + n), gpu_uuid=GPU, memory_bytes=(n + 1) * GIB, sm_ratio=sm)
            for n, sm in enumerate(SHARES.values())
        ]
        processes.append(Process(pid=Pid(200), gpu_uuid=GPU, memory_bytes=GIB, sm_ratio=0.0))
        device = make_device(
            uuid=GPU, index=0, memory_used_bytes=12 * GIB, utilization_ratio=0.9, power_watts=400.0
        )
        return Reading(devices=(device,), processes=tuple(processes))

    def allocated(self, *names: str) -> bytes:
        return b"".join(
            pod("ml", name, container("main", devices("nvidia.com/gpu.shared", f"{GPU}::{number}")))
            for number, name in enumerate(names)
        )


@contextmanager
def collecting(node: Node) -> Iterator[Collector]:
    clock = SystemClock()
    gpus = SourceWorker(spec_of(FakeSource(node.reading), "gpus"), node.settings, clock)
    owners, owner_workers = build_owner_join(node.settings, clock, {})
    collector = Collector(
        [PlannedSource(gpus)],
        node="n",
        interval=node.settings.interval,
        clock=clock,
        ledger=ErrorLedger(None),
        owners=owners,
        owner_workers=owner_workers,
    )
    running = CollectorThreads(collector)
    running.start()
    try:
        yield collector
    finally:
        running.stop()


def wait_for(collector: Collector, seen: Callable[[Snapshot], bool]) -> Snapshot:
    def look() -> Snapshot | None:
        snapshot = collector.snapshot
        return snapshot if seen(snapshot) else None

    found = waiting.wait_for(look, "the snapshot", lambda: collector.snapshot)
    assert found is not None
    return found


def has_allocations(snapshot: Snapshot) -> bool:
    return snapshot.ownership.allocations is not ABSENT


def test_four_pods_share_a_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with running_kubelet(Path(node.settings.kubelet_socket)) as kubelet:
        kubelet.answer = lambda context: node.allocated("a", "b", "c", "idle")
        with collecting(node) as collector:
            snapshot = wait_for(
                collector,
                lambda s: has_allocations(s) and any(use.held_seconds > 0.5 for use in s.ownership.uses),
            )
    uses = {use.owner: use for use in snapshot.ownership.uses}
    for number, (name, sm) in enumerate(SHARES.items()):
        use = uses[OwnerKey("pod", name, "ml")]
        assert (use.memory_bytes, use.sm_ratio) == ((number + 1) * GIB, sm)
        assert use.allocated is (name != "d"), "d uses the GPU without having been given it"
        assert use.busy_seconds is not ABSENT
        assert abs(use.busy_seconds - sm * use.held_seconds) < 0.05
    idle = uses[OwnerKey("pod", "idle", "ml")]
    assert (idle.allocated, idle.processes, idle.memory_bytes) == (True, 0, 0.0)
    (left,) = [one for one in snapshot.ownership.unattributed if one.kind == "pod"]
    assert (left.memory_bytes, left.processes) == (2 * GIB, 1)
    assert left.sm_ratio is not ABSENT
    assert abs(left.sm_ratio - 0.025) < 1e-9
    text = encode_text(load_family("native").build(node.settings).to_families(snapshot)).decode()
    for line in (
        f'gpuscope_owner_sm_ratio{{kind="pod",namespace="ml",name="a",gpu="0",uuid="{GPU}"}} 0.5\n',
        f'gpuscope_owner_unattributed_memory_bytes{{kind="pod",gpu="0",uuid="{GPU}"}} {2 << 30}\n',
        f'gpuscope_allocation_used{{gpu="0",uuid="{GPU}",resource="nvidia.com/gpu.shared",replica="3",'
        'namespace="ml",pod="idle",container="main",slurm_job=""} 0\n',
        'gpuscope_owner_gpus_held{kind="pod",namespace="ml",name="idle"} 1\n',
    ):
        assert line in text
    assert 'gpuscope_process_memory_bytes{gpu="0",uuid="' in text
    assert 'namespace="ml",pod="a",container="main",slurm_job=""} 0.5' in text
    assert "state=" not in "".join(line for line in text.splitlines() if line.startswith("gpuscope_process_"))


def test_a_hanging_kubelet_takes_nothing_else_away(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with running_kubelet(Path(node.settings.kubelet_socket)) as kubelet:
        kubelet.answer = kubelet.hang
        with collecting(node) as collector:
            wait_for(
                collector, lambda s: s.agent is not ABSENT and s.agent.snapshots > 5 and bool(kubelet.asked)
            )
            snapshot = collector.snapshot
            assert len(kubelet.asked) == 1, "at most one question is open"
            kubelet.release.set()
    assert snapshot.processes is not ABSENT
    assert {p.owner.user for p in snapshot.processes} == {"root"}
    assert snapshot.ownership.allocations is ABSENT
    assert snapshot.processes[0].owner.pod == "a", "names come another way"


def test_the_kubelet_is_asked_once_an_interval_and_never_by_a_scrape(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.settings = replace(node.settings, kubelet_interval=3600.0)
    with running_kubelet(Path(node.settings.kubelet_socket)) as kubelet:
        kubelet.answer = lambda context: node.allocated("a")
        with collecting(node) as collector:
            first = wait_for(collector, has_allocations)
            builder = load_family("native").build(node.settings)
            for _ in range(50):
                encode_text(builder.to_families(first))
            wait_for(collector, lambda snapshot: taken(snapshot) > taken(first) + 2)
            assert len(kubelet.asked) == 1


def taken(snapshot: Snapshot) -> int:
    return snapshot.agent.snapshots if snapshot.agent is not ABSENT else 0


def are_allocated_to(pods: Sequence[str], snapshot: Snapshot) -> bool:
    allocations = snapshot.ownership.allocations
    return allocations is not ABSENT and {allocation.pod for allocation in allocations} == set(pods)


def test_the_kubelet_comes_later_goes_and_comes_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    socket = Path(node.settings.kubelet_socket)
    socket.parent.mkdir(parents=True)
    with collecting(node) as collector:
        wait_for(collector, lambda s: s.processes is not ABSENT and s.processes[0].owner.pod == "a")
        assert collector.snapshot.ownership.allocations is ABSENT
        for names in (("a",), ("a", "b")):
            socket.unlink(missing_ok=True)
            with running_kubelet(socket) as kubelet:
                kubelet.answer = lambda context: node.allocated(*names)  # noqa: B023
                wait_for(collector, partial(are_allocated_to, names))
        snapshot = wait_for(
            collector, lambda s: any(one.name == "kubelet" and one.failures > 2 for one in s.sources)
        )
        assert has_allocations(snapshot), "the last good answer stands for a while"


def test_a_pod_deleted_in_between_and_a_process_that_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with running_kubelet(Path(node.settings.kubelet_socket)) as kubelet:
        kubelet.answer = lambda context: node.allocated("a")
        with collecting(node) as collector:
            wait_for(
                collector,
                lambda s: (
                    has_allocations(s)
                    and s.processes is not ABSENT
                    and {str(p.owner.pod) for p in s.processes} >= PODS.keys()
                ),
            )
            log = tmp_path / "pods" / f"ml_a_{PODS['a']}"
            (log / "main/0.log").unlink()
            (log / "main").rmdir()
            log.rmdir()
            node.proc.remove(101)
            kubelet.answer = lambda context: b""
            snapshot = wait_for(
                collector,
                lambda s: s.ownership.allocations == () and s.ownership.failures.get("process", 0) > 3,
            )
    assert snapshot.processes is not ABSENT
    by_pid = {int(process.pid): process for process in snapshot.processes}
    assert by_pid[100].owner.pod == "a", "a process stays in its pod: losing the name would cut its series"
    assert by_pid[101].owner.pod == "b", "one that is ending keeps what was known of it"
    assert by_pid[102].owner.pod == "c"
    assert snapshot.ownership.failures["process"] >= 1


def test_a_pods_name_that_comes_late_does_not_cut_a_series(tmp_path: Path) -> None:
    """It was published at once without a pod, and again under other labels five seconds later."""
    node = Node(tmp_path)
    socket = Path(node.settings.kubelet_socket)
    socket.parent.mkdir(parents=True)
    logs = tmp_path / "pods"
    logs.rename(tmp_path / "hidden")  # nobody can say which pods there are
    builder = load_family("native").build(node.settings)
    seen: set[str] = set()

    def watch(snapshot: Snapshot) -> None:
        lines = encode_text(builder.to_families(snapshot)).decode().splitlines()
        seen.update(line.rpartition(" ")[0] for line in lines if line.startswith("gpuscope_process_sm_ratio{"))

    with collecting(node) as collector:
        collector.subscribe(watch)
        snapshot = wait_for(collector, lambda s: s.processes is not ABSENT and not s.processes[0].looked_up)
        lines = encode_text(builder.to_families(snapshot)).decode().splitlines()
        counts = [float(one.rpartition(" ")[2]) for one in lines if one.startswith("gpuscope_gpu_processes{")]
        assert sum(counts) == 5, "whose they are is not known yet; how many they are is"
        (tmp_path / "hidden").rename(logs)
        wait_for(collector, lambda s: s.processes is not ABSENT and all(p.looked_up for p in s.processes))
        taken = collector.ticks
        wait_for(collector, lambda s: collector.ticks > taken + 3)
    of_pods = [labels for labels in seen if 'pid="200"' not in labels]
    assert len(of_pods) == len(PODS), "one series for each process"
    assert all('namespace="ml"' in labels for labels in of_pods)
