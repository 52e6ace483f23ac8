"""Whether the labels of a process wait for Kubernetes: its pod, and the container in it."""

from __future__ import annotations

from typing import Any, cast

from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.agent.owners.pods import Pod, PodContainer, Pods, index_pods
from gpuscope.agent.owners.workload_names import WorkloadNames
from gpuscope.model.readings import ABSENT

CONTAINER = "a" * 64


class Listed:
    """The worker that lists pods: one answer, begun before the process was seen."""

    def __init__(self, *pods: Pod) -> None:
        self._pods = index_pods(pods)

    def fresh(self) -> Pods:
        return self._pods

    def has_answered_since(self, since: float) -> bool:
        return since < 0


def is_pending(*containers: PodContainer, since: float = 0.0) -> bool:
    pods = Listed(Pod(uid="u", namespace="ml", name="p", containers=containers))
    names = WorkloadNames(cast(Any, pods), (), None, None)
    return names.is_pending(CgroupFacts(pod_uid="u", container_id=CONTAINER), since)


def test_a_pod_that_was_listed_before_its_container_started_is_waited_for() -> None:
    assert is_pending()
    assert is_pending(PodContainer("other", "b" * 64), PodContainer("trainer", ABSENT))
    assert not is_pending(PodContainer("trainer", CONTAINER))


def test_an_answer_after_the_process_was_seen_is_final() -> None:
    assert not is_pending(since=-1.0)
