"""Which instances are the nodes that Slurm has given to a job."""

from __future__ import annotations

import pytest

from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey, IdleHolder, IdleReading
from gpuscope.judge.notify.idle_policy.job_nodes import JobNodes, host_of, is_same_node, read_nodes_of_jobs
from gpuscope.judge.notify.idle_policy.policy_file import IdlePolicy
from gpuscope.judge.notify.idle_policy.policy_steps import PolicySteps


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("n1", "n1"),
        ("n1:9400", "n1"),
        ("n1.example.org:9400", "n1.example.org"),
        ("10.0.0.7:9400", ""),
        ("[fe80::7]:9400", ""),
        ("fe80::7", ""),
        ("10.0.0.7", ""),
    ],
)
def test_the_host_of_an_instance(instance: str, host: str) -> None:
    assert host_of(instance) == host


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("n1", "n1", True),
        ("n1", "n1.example.org", True),
        ("n1.a.org", "n1.b.org", False),
        ("n1", "n10", False),
        ("", "", False),
        ("", "n1", False),
    ],
)
def test_names_of_one_node(first: str, second: str, is_same: bool) -> None:
    assert is_same_node(first, second) is is_same


def named(reader: str, *nodes: str) -> list[dict[str, str]]:
    return [{"slurm_job": "17", "instance": reader, "node": node} for node in nodes]


def test_two_agents_that_read_the_same_cluster_agree() -> None:
    readers = [{"instance": "c1"}, {"instance": "c2"}]
    placed = read_nodes_of_jobs(readers, [*named("c1", "n1", "n2"), *named("c2", "n2", "n1")], []).of("", "17")
    assert placed == JobNodes(frozenset({"n1", "n2"}))


def test_an_agent_that_does_not_have_the_job_contradicts() -> None:
    readers = [{"instance": "c1"}, {"instance": "c2"}]
    placed = read_nodes_of_jobs(readers, named("c2", "n1"), []).of("", "17")
    assert placed.contradiction == "c2 and c1 read Slurm, and only c2 has the job"


def reason(nodes: JobNodes, *gpus: str, allocated: float = 2.0) -> str:
    """Why a job that is idle on these GPUs is not ended; `run` if it is."""
    steps, found = PolicySteps(IdlePolicy(command=("scancel", "{job}"), is_dry_run=False)), ""
    for minute in range(130, 160):
        holder = IdleHolder(HolderKey("job", "17"), dict.fromkeys(gpus, 60.0 * minute), set(gpus), allocated)
        holder.place(nodes, {})
        for key, _, _ in steps.undelivered():
            steps.delivered(key, 0.0)
        for action in steps.step(IdleReading([holder]), 60.0 * minute, 60.0).actions:
            found = action.reason or action.kind
    return found


TWO = frozenset({"n1", "n2"})


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        (JobNodes(TWO), ("n1/0", "n2:9400/0"), "run"),
        (JobNodes(), ("n1/0", "n2/0"), "on which nodes it runs is not known"),
        (JobNodes(TWO), ("n1/0", "n1/1"), "its node n2 does not report it"),
        (JobNodes(TWO), ("n1/0", "n2/0", "n3/0"), "n3 reports it and is none of the nodes"),
        (JobNodes(TWO, {"n1": 2}), ("n1/0", "n1/1"), "run"),
        (JobNodes(TWO, {"n1": 1, "n2": 1}), ("n1/0", "n1:9400/0"), "its node n2 does not report it"),
        (
            JobNodes(frozenset({"n1"}), {"n1": 2}),
            ("n1/0", "n1:9400/0"),
            "Slurm has given it 2 GPUs of n1, and 1",
        ),
        (
            JobNodes(TWO, contradiction="c1 and c2 differ"),
            ("n1/0", "n2/0"),
            "c1 and c2 differ; give the targets",
        ),
    ],
    ids=[
        "both",
        "unknown",
        "silent",
        "stranger",
        "a node without GPUs",
        "twice",
        "two agents",
        "contradiction",
    ],
)
def test_a_job_is_ended_only_if_it_is_idle_where_slurm_has_placed_it(
    nodes: JobNodes, gpus: tuple[str, ...], expected: str
) -> None:
    assert reason(nodes, *gpus).startswith(expected)
