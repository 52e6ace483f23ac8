"""A process has one set of labels in its life, and waits a bounded time for it."""

from __future__ import annotations

from pathlib import Path

from gpuscope.agent.families.native.process_metrics import ProcessMetrics
from gpuscope.agent.owners.attribution import OWNER_WAIT_SECONDS
from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.agent.owners.pods import NO_PODS, Pod, PodContainer, Pods, index_pods
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import NoNames, ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessLookup
from gpuscope.agent.owners.users import UserNames
from gpuscope.model.readings import ABSENT, Pid, Process, Snapshot, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.trees import CONTAINER, POD_UID, ProcTree, pod_cgroup

GPU = Uuid("GPU-0")
TRAIN = index_pods(
    [Pod(uid=POD_UID, namespace="ml", name="train-0", containers=(PodContainer("main", CONTAINER),))]
)


class LateNames(NoNames):
    """Pods that nobody knows until `pods_now` says so."""

    def __init__(self) -> None:
        self.pods_now: Pods = NO_PODS

    def pods(self) -> Pods:
        return self.pods_now

    def is_pending(self, cgroup: CgroupFacts, since: float) -> bool:
        return cgroup.pod_uid is not ABSENT and self.pods_now is NO_PODS


class Published:
    """Every series that was ever published, with a time that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.tree = ProcTree(folder / "proc")
        self.names = LateNames()
        proc = Proc(str(self.tree.root))
        lookup = ProcessLookup(proc, UserNames(str(folder)))
        self.enricher = ProcessEnricher(60.0, proc, ImmediateLookup(lookup), self.names)
        self.metrics = ProcessMetrics()
        self.at = 1000.0
        self.series: dict[str, set[tuple[tuple[str, str], ...]]] = {}

    def see(self, sm: float, after: float = 1.0, **more: object) -> dict[str, float]:
        """Values by metric of the one process."""
        self.at += after
        given = Process(pid=Pid(7), gpu_uuid=GPU, sm_ratio=sm, memory_bytes=1.0, **more)  # type: ignore[arg-type]
        processes = self.enricher.advance([given], simulated=False, now=self.at, monotonic=self.at)
        snapshot = Snapshot(
            node="n", taken_at=self.at, devices=(make_device(uuid=GPU, index=0),), processes=processes
        )
        values = {}
        for family in self.metrics.to_families(snapshot):
            if family.name == "gpuscope_gpu_processes":
                continue
            for labels, value in family.samples:
                self.series.setdefault(family.name, set()).add(tuple(labels.pairs))
                values[family.name] = value
        return values

    def labels(self) -> list[dict[str, str]]:
        return [dict(pairs) for pairs in self.series["gpuscope_process_sm_ratio"]]


def test_a_change_of_state_is_a_value_and_cuts_nothing(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7)
    told = [published.see(0.0).get("gpuscope_process_active")]  # too early to say
    told.append(published.see(0.5).get("gpuscope_process_active"))
    told.append(published.see(0.0, after=61).get("gpuscope_process_active"))
    told.append(published.see(0.2).get("gpuscope_process_active"))
    assert told == [None, 1, 0, 1]
    assert all(len(series) == 1 for series in published.series.values()), "one series each"
    assert "state" not in published.labels()[0]


def test_a_process_is_published_when_its_pod_is_known(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7, cgroup=pod_cgroup())
    for _ in range(5):
        assert published.see(0.5) == {}
    published.names.pods_now = TRAIN
    assert published.see(0.5)["gpuscope_process_sm_ratio"] == 0.5
    published.names.pods_now = NO_PODS  # the kubelet is gone
    published.see(0.5)
    (labels,) = published.labels()
    assert (labels["pod"], labels["container"]) == ("train-0", "main")


def test_the_wait_is_bounded_and_a_name_that_comes_after_it_cuts_nothing(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7, cgroup=pod_cgroup())
    assert published.see(0.5) == {}
    assert published.see(0.5, after=OWNER_WAIT_SECONDS - 1) == {}
    assert published.see(0.5, after=1.0) != {}
    published.names.pods_now = TRAIN
    published.see(0.5)
    (labels,) = published.labels()
    assert labels["pod"] == ""


def test_a_program_that_renames_itself_keeps_its_series(tmp_path: Path) -> None:
    """Ray's workers and whoever else uses setproctitle."""
    published = Published(tmp_path)
    published.tree.add(7)
    published.see(0.5, command="ray::IDLE")
    published.see(0.5, command="ray::train()")
    (labels,) = published.labels()
    assert labels["command"] == "ray::IDLE"


def test_one_that_is_ending_keeps_its_series(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7)
    published.see(0.5)
    published.tree.remove(7)
    published.see(0.5)
    (labels,) = published.labels()
    assert labels["user"] != ""


def test_a_reused_pid_has_labels_of_its_own(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7, start_ticks=1000, comm="first")
    published.see(0.5)
    published.tree.add(7, start_ticks=9000, comm="second")
    published.see(0.5)
    assert {labels["command"] for labels in published.labels()} == {"first", "second"}


def test_who_looks_once_does_not_wait(tmp_path: Path) -> None:
    published = Published(tmp_path)
    published.tree.add(7, cgroup=pod_cgroup())
    assert published.see(0.5) == {}
    published.enricher.stop_waiting()
    assert published.see(0.5) != {}
