"""The server joins the cluster's jobs and indices with the nodes' GPUs and processes; what follows from it."""

from __future__ import annotations

import pytest

from gpuscope.agent.owners.unallocated_use import NEW_SECONDS
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.facts import FleetFacts, Sample, sort_samples
from tests.health.fleets import NOW, gpu_labels, join_slurm, node, process
from tests.health.judged import found, holds
from tests.promql.memory import MemoryStorage

MASTER = {"instance": "master:9400"}


def slurm_job(number: str, user: str = "alice", **labels: str) -> list[Sample]:
    about = {**MASTER, "slurm_job": number, "user": user, "account": "ml", "partition": "gpu", **labels}
    return [("gpuscope_slurm_job_info", about, 1.0)]


def held(number: str, on: str, index: str, gres: str = "gpu", model: str = "a100") -> list[Sample]:
    row = {**MASTER, "slurm_job": number, "node": on}
    return [
        ("gpuscope_slurm_job_node_info", row, 1.0),
        ("gpuscope_slurm_job_gres_info", {**row, "gres": gres, "model": model, "index": index}, 1.0),
    ]


def slurm_node(name: str, count: float = 2.0) -> list[Sample]:
    labels = {**MASTER, "node": name, "gres": "gpu", "model": "a100"}
    return [("gpuscope_slurm_node_gpus", {**labels, "state": "allocated"}, 1.0),
            ("gpuscope_slurm_node_gpus", {**labels, "state": "idle"}, count - 1.0),
            ("gpuscope_slurm_node_gpus", {**labels, "gres": "shard", "state": "idle"}, 8.0)]  # fmt: skip


def board(index: str, name: str = "n1", **labels: str) -> list[Sample]:
    """Device files are numbered the other way round than nvidia-smi counts."""
    about = {**gpu_labels(index, name), "node": f"{name}.example.org", "minor": str(1 - int(index)), **labels}
    own = gpu_labels(index, name)
    counted = ("gpuscope_gpu_processes", {**own, "state": "idle"}, 0.0)
    return [("gpuscope_gpu_info", about, 1.0), ("gpuscope_gpu_up", own, 1.0), counted]


def cluster(*samples: list[Sample]) -> list[Sample]:
    nodes = [*node("n1"), *board("0"), *board("1"), *slurm_node("n1")]
    return [*nodes, *(sample for some in samples for sample in some)]


def joined(*samples: list[Sample]) -> FleetFacts:
    fleet = sort_samples(cluster(*samples), NOW)
    join_slurm(fleet)
    return fleet


def strangers(*samples: list[Sample]) -> set[tuple[str, str]]:
    """UUID and user of processes without an allocation."""
    found = holds(CHECKS["used_unallocated"], cluster(*samples))
    return {(labels["uuid"], labels.get("user", "")) for labels in found}


def allocations(fleet: FleetFacts) -> dict[tuple[str, str], float]:
    """Whether it is used, by UUID and job."""
    return {
        (uuid, one.labels["slurm_job"]): one.plain["gpuscope_allocation_used"]
        for (_, uuid), gpu in fleet.gpus.items()
        for one in gpu.allocations
    }


def test_indices_are_minor_numbers_of_the_node() -> None:
    fleet = joined(
        slurm_job("17"), held("17", "n1", "0"), held("17", "n2", "1"),
        process("1", slurm_job="17", user="alice"),
        node("n2"), board("0", "n2"), board("1", "n2"), slurm_node("n2"),
    )  # fmt: skip
    assert allocations(fleet) == {("GPU-n1-1", "17"): 1, ("GPU-n2-0", "17"): 0}


@pytest.mark.parametrize("gres", ["shard", "mps"])
def test_jobs_with_shares_have_one_gpu_together(gres: str) -> None:
    fleet = joined(
        slurm_job("17"), slurm_job("18", "bob"), held("17", "n1", "0", gres), held("18", "n1", "0", gres),
        process("1", slurm_job="18", user="bob"),
    )  # fmt: skip
    assert allocations(fleet) == {("GPU-n1-1", "17"): 0, ("GPU-n1-1", "18"): 1}


def test_each_task_of_an_array_has_its_own_gpu() -> None:
    """squeue calls jobs 18 and 17 17_0 and 17_1: the last task that starts keeps the array's number."""
    fleet = joined(
        slurm_job("18", array_job="17", array_task="0"), held("18", "n1", "0"),
        slurm_job("17", array_job="17", array_task="1"), held("17", "n1", "1"),
        process("0", slurm_job="17", user="alice"),
    )  # fmt: skip
    assert allocations(fleet) == {("GPU-n1-1", "18"): 0, ("GPU-n1-0", "17"): 1}


def test_components_of_a_heterogeneous_job() -> None:
    """squeue calls jobs 17 and 18 17+0 and 17+1: each is on a node of its own. 18 has an unused GPU."""
    components = [
        *slurm_job("17", het_job="17"), *held("17", "n1", "0"),
        *slurm_job("18", het_job="17"), *held("18", "n2", "0"), *held("18", "n2", "1"),
        *node("n2"), *board("0", "n2"), *board("1", "n2"), *slurm_node("n2"),
        *process("1", slurm_job="17", user="alice"),
    ]  # fmt: skip
    unused = {("GPU-n1-1", "17"): 1, ("GPU-n2-1", "18"): 1, ("GPU-n2-0", "18"): 0}
    # By its cgroup a process belongs to component 18; the environment of each component says 17.
    for number in ("18", "17"):
        fleet = joined(components, process("1", name="n2", slurm_job=number, user="alice"))
        assert allocations(fleet) == unused, number
        assert strangers(components, process("1", "2", name="n2", slurm_job="17", user="alice")) == set()


def test_mig_instances_count_as_gpus() -> None:
    def instance(gi: str, profile: str) -> list[Sample]:
        labels = {"instance": "n1:9400", "gpu": f"1_{gi}_0", "uuid": f"MIG-{gi}", "parent_uuid": "GPU-n1-1",
                  "profile": profile, "gpu_instance": gi, "compute_instance": "0"}  # fmt: skip
        return [("gpuscope_mig_info", labels, 1.0)]

    instances = [*instance("9", "1g.10gb"), *instance("2", "3g.40gb")]
    rows = [slurm_job("17"), held("17", "n1", "0", model="h100_3g.40gb"), instances]
    fleet = joined(*rows, slurm_node("n1", 1.0))
    assert allocations(fleet) == {("MIG-2", "17"): 0}, "GPU 1 is /dev/nvidia0: its instances come first"
    fleet = joined(*rows, slurm_node("n1", 4.0))
    assert allocations(fleet) == {}, "Slurm has more GPUs than the node: nothing is guessed"


def strangers_beside_17(*samples: list[Sample]) -> set[tuple[str, str]]:
    return strangers(slurm_job("17"), held("17", "n1", "0"), *samples)


def test_who_uses_what_is_not_theirs() -> None:
    own = process("1", "1", slurm_job="17", user="alice")
    assert strangers_beside_17(own, process("1", "2", user="eve")) == {("GPU-n1-1", "eve")}
    assert strangers_beside_17(own, process("0", "2", user="eve")) == {("GPU-n1-0", "eve")}
    # Her own job, on the GPU that it does not have.
    assert strangers_beside_17(process("0", "1", slurm_job="17", user="alice")) == {("GPU-n1-0", "alice")}


@pytest.mark.parametrize(
    "samples",
    [
        process("1", user="alice"),  # an agent that sees users only
        process("1", user="eve"),  # and may be blind: no process of this node has a job
        process("0", slurm_job="99", user="bob"),  # has just started: Slurm's list is older
        process("0", user="eve", started=NOW - NEW_SECONDS + 1),
        process("0", user="root", type="G"),
        process("0", user="root", command="nvidia-cuda-mps-server"),
        process("0", user="jovyan", pod="p", namespace="ml"),
        [*process("0", user="eve"), *slurm_job("18")],  # a job whose nodes are not known yet
        [*process("0", user="eve"), *slurm_job("18"), *held("18", "n1", "7")],  # its GPU is not known
    ],
)
def test_nobody_is_accused_by_guesswork(samples: list[Sample]) -> None:
    assert strangers_beside_17(samples) == set()


def test_a_node_that_knows_by_itself_and_one_that_is_not_slurms() -> None:
    own: Sample = ("gpuscope_gpu_unallocated_processes", gpu_labels("0"), 1.0)
    known = [[own], slurm_job("17"), held("17", "n1", "0"), process("0", user="eve")]
    assert allocations(joined(*known)) == {}
    assert strangers(*known) == {("GPU-n1-0", "eve")}
    two = ("gpuscope_gpu_unallocated_processes", gpu_labels("0"), 2.0)
    assert strangers([two], *known[1:]) == set(), "the agent counts another process: whose is not said"
    assert strangers(node("login"), board("0", "login"), process("0", name="login", user="eve")) == set()


def test_findings_name_the_owner() -> None:
    samples = cluster(
        slurm_job("17"), held("17", "n1", "0"), held("17", "n1", "1"),
        process("1", "1", slurm_job="17", user="alice"),
    )  # fmt: skip
    (unused,) = found(samples)
    assert unused.why == "GPU 0 allocated to job 17 (alice), which has no process on it"
    assert unused.next == "ask job 17 (alice) to request fewer GPUs"
    samples += process("1", "2", user="eve")
    (stranger,) = [one for one in found(samples) if one.kind == "used_unallocated"]
    assert stranger.next.startswith("ask eve to submit a job")
    assert stranger.why == "eve uses GPU 1 without an allocation by Slurm"
    assert stranger.uuids == ("GPU-n1-1",)


def test_a_process_list_that_was_not_read_accuses_nobody() -> None:
    samples = cluster(slurm_job("17"), held("17", "n1", "0"))
    assert [one.kind for one in found(samples)] == ["allocated_unused"]
    assert found([one for one in samples if one[0] != "gpuscope_gpu_processes"]) == []


def test_the_join_of_the_docs_in_promql() -> None:
    expression = (
        'label_replace(gpuscope_slurm_job_gres_info{gres="gpu"}, "minor", "$1", "index", "(.*)") '
        "* on (node, minor) group_left (gpu, uuid) gpuscope_gpu_info"
    )
    samples = [*held("17", "n1", "0"), *board("0", node="n1"), *board("1", node="n1")]
    storage = MemoryStorage()
    for metric, labels, value in samples:
        storage.add({"__name__": metric, **labels}, [(int(NOW * 1000), value)])
    answer = Engine(storage).instant(expression, int(NOW * 1000))
    assert isinstance(answer, Vector)
    (found,) = (dict(labels) for labels in answer.labels)
    assert (found["slurm_job"], found["uuid"], found["gpu"]) == ("17", "GPU-n1-1", "1")
