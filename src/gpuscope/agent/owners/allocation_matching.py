"""Claims become allocations: the schedulers' device ids are matched with the GPUs that are visible now.

Pods come from the kubelet, jobs from a prolog's files or from Slurm; where both name a job, the files are used.
Kubelets before 1.34 still list pods that have ended. A claim of a pod that is known to have ended is dropped;
where two pods claim the same unshared device, the one with a process on it has it (`unallocated_use`).
ABSENT while no scheduler has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuscope.agent.owners.allocation_claims import JOB, POD, AllocationClaim
from gpuscope.agent.owners.device_ids import DeviceIndex, uuid_of
from gpuscope.agent.owners.pods import Pods
from gpuscope.model.readings import ABSENT, Allocation, Device, JobFacts, Maybe, Uuid
from gpuscope.model.readings.device import NO_VALUES

Claims = Maybe[tuple[AllocationClaim, ...]]
ReadClaims = Callable[[], Claims]


class AllocationMatcher:
    """Claims are taken every cycle, and matched again only after they, the pods, jobs or GPUs changed."""

    def __init__(
        self, claims: Sequence[ReadClaims], pods: Callable[[], Pods], job_claims: Sequence[ReadClaims] = ()
    ) -> None:
        self._claims = claims
        self._job_claims = job_claims
        self._pods = pods
        self._made_of: tuple[object, ...] = ()
        self._made: tuple[Allocation, ...] = ()
        self.known_kinds: frozenset[str] = frozenset()
        """Kinds of owners whose scheduler answered the last call: pod, job."""

    def allocations(
        self,
        devices: Sequence[Device],
        local_claims: Claims = ABSENT,
        facts: Mapping[str, JobFacts] = NO_VALUES,
    ) -> Maybe[tuple[Allocation, ...]]:
        """`local_claims` are Slurm's own for this node, `facts` those about its jobs."""
        pod_answers = [answer for read in self._claims if (answer := read()) is not ABSENT]
        job_answers = [answer for read in self._job_claims if (answer := read()) is not ABSENT]
        if local_claims is not ABSENT:
            job_answers.append(local_claims)
        self.known_kinds = frozenset(
            kind for kind, answers in ((POD, pod_answers), (JOB, job_answers)) if answers
        )
        answers = [*pod_answers, *job_answers]
        if not answers:
            return ABSENT
        pods = self._pods()
        made_of = (*answers, pods, facts, _identity(devices))
        if len(made_of) != len(self._made_of) or not _same(made_of, self._made_of):
            index = DeviceIndex(devices)
            self._made = tuple(
                _with_facts(to_allocation(claim, index, pods), facts)
                for claim in _without_repeated_jobs(answers)
                if not _has_ended(claim, pods)
            )
            self._made_of = made_of
        return self._made


def _without_repeated_jobs(answers: Sequence[tuple[AllocationClaim, ...]]) -> list[AllocationClaim]:
    """The first answer that names a job has all its GPUs."""
    kept: list[AllocationClaim] = []
    known: set[str] = set()
    for answer in answers:
        kept += (claim for claim in answer if claim.job is ABSENT or claim.job not in known)
        known |= {claim.job for claim in answer if claim.job is not ABSENT}
    return kept


def _with_facts(allocation: Allocation, facts: Mapping[str, JobFacts]) -> Allocation:
    about = None if allocation.job is ABSENT else facts.get(allocation.job)
    return allocation if about is None else replace(allocation, account=about.account, user=about.user)


def _same(some: Iterable[object], others: Iterable[object]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(one is other or (isinstance(one, list) and one == other) for one, other in pairs)


def _identity(devices: Sequence[Device]) -> list[tuple[Uuid, int, Maybe[int], tuple[Uuid, ...]]]:
    return [
        (device.uuid, device.index, device.minor_number, tuple(i.uuid for i in device.instances))
        for device in devices
    ]


def _has_ended(claim: AllocationClaim, pods: Pods) -> bool:
    if claim.pod is ABSENT or claim.namespace is ABSENT:
        return False
    pod = pods.by_name.get((claim.namespace, claim.pod))
    return pod is not None and pod.running is False


def to_allocation(claim: AllocationClaim, index: DeviceIndex, pods: Pods) -> Allocation:
    target = index.find(claim.device_id)
    gpu: Maybe[Uuid] = ABSENT
    instance: Maybe[Uuid] = ABSENT
    if target is not None:
        gpu, instance = uuid_of(target)
    pod = None
    if claim.pod is not ABSENT and claim.namespace is not ABSENT:
        pod = pods.by_name.get((claim.namespace, claim.pod))
    return Allocation(
        gpu_uuid=gpu,
        instance_uuid=instance,
        device_id=claim.device_id,
        resource=claim.resource,
        replica=ABSENT if target is None else target.replica,
        namespace=claim.namespace,
        pod=claim.pod,
        pod_uid=ABSENT if pod is None else pod.uid,
        pod_labels=ABSENT if pod is None else pod.labels,
        container=claim.container,
        job=claim.job,
    )
