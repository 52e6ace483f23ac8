"""The owner of a process, made from what /proc, Kubernetes and the container runtimes say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.owners.node_jobs import NO_JOBS, JobStep, NodeJobs
from gpuscope.agent.owners.pods import NO_PODS, Pods
from gpuscope.agent.owners.process_lookup import KernelFacts, ProcessKey
from gpuscope.model.readings import ABSENT, JobFacts, Maybe, Owner, Process, ProcessLabels, Uuid


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container's name and image, as its runtime gives them."""

    name: Maybe[str] = ABSENT
    image: Maybe[str] = ABSENT


ContainerInfos = Mapping[str, ContainerInfo]


def owner_of(
    facts: KernelFacts,
    pods: Pods = NO_PODS,
    containers: ContainerInfos = {},  # noqa: B006 - read only
    jobs: NodeJobs = NO_JOBS,
    pid: int = 0,
) -> Owner:
    cgroup, slurm = facts.cgroup, facts.slurm
    job, job_step = _job_of(facts, jobs, pid)
    container_id = cgroup.container_id
    pod = pods.find(cgroup.pod_uid, container_id)
    named = ContainerInfo() if container_id is ABSENT else containers.get(container_id, ContainerInfo())
    container, image = named.name, named.image
    if pod is not None and container_id is not ABSENT:
        inside = pod.container(container_id)
        container = inside.name if inside is not None else container
        image = inside.image if inside is not None and inside.image is not ABSENT else image
    return Owner(
        user=facts.user,
        group=facts.group,
        container_id=container_id,
        container=container,
        image=image,
        pod=ABSENT if pod is None else pod.name,
        namespace=ABSENT if pod is None else pod.namespace,
        pod_uid=cgroup.pod_uid if pod is None else pod.uid,
        pod_labels=ABSENT if pod is None else pod.labels,
        job=job,
        job_step=job_step,
        job_array=slurm.job_array,
        job_account=slurm.job_account,
        job_partition=slurm.job_partition,
    )


def program_of(owner: Owner, launcher: Maybe[str], pid: int) -> str:
    """Which processes belong together: those of a pod's container, a job's step, or a launcher."""
    if owner.pod_uid is not ABSENT or owner.pod is not ABSENT:
        namespace = "" if owner.namespace is ABSENT else owner.namespace
        pod = f"{namespace}/{owner.pod}" if owner.pod_uid is ABSENT else owner.pod_uid
        container = owner.container_id if owner.container is ABSENT else owner.container
        if container is not ABSENT:
            return f"{pod}/{container}"
    # Other steps than srun's are scripts and shells, which start what need not belong together.
    elif owner.job is not ABSENT and owner.job_step is not ABSENT and owner.job_step.isdecimal():
        return f"{owner.job}.{owner.job_step}"
    return f"pid-{pid}" if launcher is ABSENT else launcher


def needs_job(facts: KernelFacts) -> bool:
    """Whether slurmstepd may know a job of the process that its cgroup does not name."""
    cgroup = facts.cgroup
    in_container = cgroup.container_id is not ABSENT or cgroup.pod_uid is not ABSENT
    return cgroup.job is ABSENT and (cgroup.sluid is not ABSENT or not in_container)


def _job_of(facts: KernelFacts, jobs: NodeJobs, pid: int) -> tuple[Maybe[str], Maybe[str]]:
    """Job and step: by the cgroup, by prolog or slurmstepd, or by the environment, which is the user's text."""
    cgroup, slurm = facts.cgroup, facts.slurm
    step = cgroup.job_step if cgroup.job_step is not ABSENT else slurm.job_step
    if cgroup.job is not ABSENT:
        return cgroup.job, step
    listed: Maybe[JobStep] = jobs.find(pid, cgroup) if needs_job(facts) else ABSENT
    if listed is not ABSENT:
        return listed.job, listed.step or step
    known = ABSENT if slurm.job is ABSENT else jobs.facts.get(slurm.job, JobFacts()).user
    if known is not ABSENT and known != facts.user:
        return ABSENT, ABSENT  # nobody else can put a process into this user's job
    return slurm.job, step


# The labels of each process' series: fixed when the process is first published, which waits for its owner.
#
# A process waits until every lookup that may know its owner has answered, or for `OWNER_WAIT_SECONDS`. After
# that its labels stay the same, also when it renames itself, a pod's name arrives late, or the kubelet stops
# answering: each change would cut the series in two, and make every average over it wrong.

OWNER_WAIT_SECONDS: Final = 30.0  # six times the interval of requests to the kubelet


class StableLabels:
    """Call `labels_of` once for every present process between `begin` and `end`; the others are forgotten."""

    def __init__(self, wait_seconds: float = OWNER_WAIT_SECONDS) -> None:
        self._wait = wait_seconds
        self._kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._now_kept: dict[tuple[ProcessKey, Uuid], ProcessLabels] = {}
        self._waiting: dict[ProcessKey, float] = {}
        self._now_waiting: dict[ProcessKey, float] = {}
        self._monotonic = 0.0

    def stop_waiting(self) -> None:
        """For one-shot commands: the next cycle publishes every process with what is known then."""
        self._wait, self._kept = 0.0, {}

    def begin(self, monotonic: float) -> None:
        self._monotonic, self._now_kept, self._now_waiting = monotonic, {}, {}

    def end(self) -> None:
        self._kept, self._waiting = self._now_kept, self._now_waiting

    def labels_of(
        self,
        process: Process,
        unit: Uuid,
        key: ProcessKey,
        command: Maybe[str],
        owner: Owner,
        is_pending: Callable[[float], bool],
    ) -> Maybe[ProcessLabels]:
        """ABSENT while the process waits. `is_pending` takes the time at which the process was first seen."""
        labels = self._kept.get((key, unit))
        if labels is None:
            since = self._waiting.get(key, self._monotonic)
            if self._monotonic - since < self._wait and is_pending(since):
                self._now_waiting[key] = since
                return ABSENT
            labels = ProcessLabels(process.kind, command, owner)
        self._now_kept[key, unit] = labels
        return labels
