"""Claims become allocations: the schedulers' device ids are matched with the GPUs that are visible now.

Pods come from the kubelet, jobs from a prolog's files or from Slurm; where both name a job, the files are used.
Kubelets before 1.34 still list pods that have ended. A claim of a pod that is known to have ended is dropped;
where two pods claim the same unshared device, the one with a process on it has it (`unallocated_use`).
ABSENT while no scheduler has answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from gpuscope.agent.owners.pods import Pods
from gpuscope.model.readings import ABSENT, Allocation, Device, Instance, JobFacts, Maybe, Uuid
from gpuscope.model.readings.device import NO_VALUES
from gpuscope.model.vendor import DeviceIdForm, vendor_of, vendors

# What a scheduler says it allocated, before the device id is matched with a GPU.


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationClaim:
    """One device of one container, or one GPU of one job."""

    device_id: str
    resource: str = ""
    namespace: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    container: Maybe[str] = ABSENT
    job: Maybe[str] = ABSENT


POD: Final = "pod"
JOB: Final = "job"


# From the device ids that schedulers use to the visible GPUs, by the forms of ids that are known.
#
# Forms of every vendor are here, those of one vendor in its folder. An id that has no known form, or that of
# a GPU that is not visible here, is no error: the allocation is shown without a GPU.

NUMBER = r"\d{1,4}"
COMMON_FORMS = (
    DeviceIdForm("dynamic resource allocation", rf"gpu-(?P<number>{NUMBER})"),
    DeviceIdForm("PCI address", r"(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"),
    DeviceIdForm("a number: Slurm's, or an index", rf"(?P<number>{NUMBER})"),
    DeviceIdForm("Slurm's prolog, an instance", rf"(?P<number>{NUMBER})\.(?P<ids>{NUMBER})"),
)


@dataclass(frozen=True, slots=True)
class MatchedDevice:
    """A GPU or instance, and the number of the share if it is shared."""

    gpu: Device
    instance: Instance | None = None
    replica: Maybe[str] = ABSENT


class DeviceIndex:
    """The visible GPUs by UUID, minor number, index and PCI address."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self.by_uuid: dict[str, MatchedDevice] = {}
        self._by_minor: dict[int, Device] = {}
        self._by_index: dict[int, Device] = {}
        self._by_address: dict[str, Device] = {}
        for device in devices:
            self.by_uuid[device.uuid] = MatchedDevice(device)
            self.by_uuid.update(
                (instance.uuid, MatchedDevice(device, instance)) for instance in device.instances
            )
            self._by_index[device.index] = device
            if device.minor_number is not ABSENT:
                self._by_minor[device.minor_number] = device
            if device.pci_bus_id is not ABSENT:
                self._by_address[_address(device.pci_bus_id)] = device
            vendor = vendor_of(device.vendor)
            for device_id, uuid in ({} if vendor is None else vendor.device_ids(device)).items():
                if uuid in self.by_uuid:
                    self.by_uuid[device_id] = self.by_uuid[uuid]

    def find(self, device_id: str) -> MatchedDevice | None:
        known = self.by_uuid.get(device_id)
        if known is not None:
            return known
        for _, pattern in id_forms():
            match = pattern.fullmatch(device_id)
            if match:
                return self._resolve(match.groupdict())
        return None

    def _resolve(self, parts: dict[str, str | None]) -> MatchedDevice | None:
        unit = self._unit(parts)
        if unit is None:
            return None
        if ids := parts.get("ids"):
            unit = _with_ids(unit.gpu, tuple(map(int, re.split(r"\D", ids))))
        elif profile := parts.get("profile"):
            unit = _with_profile(unit.gpu, profile)
        replica = parts.get("replica")
        return unit if unit is None or replica is None else MatchedDevice(unit.gpu, unit.instance, replica)

    def _unit(self, parts: dict[str, str | None]) -> MatchedDevice | None:
        if uuid := parts.get("uuid"):
            return self.by_uuid.get(uuid)
        if address := parts.get("address"):
            device = self._by_address.get(_address(address))
        else:
            device = self._by_number(int(parts["number"] or 0))
        return None if device is None else MatchedDevice(device)

    def _by_number(self, number: int) -> Device | None:
        """That of the device file, which need not be the index."""
        return self._by_minor.get(number) if self._by_minor else self._by_index.get(number)


@cache
def id_forms() -> tuple[tuple[DeviceIdForm, re.Pattern[str]], ...]:
    forms = (*(form for vendor in vendors().values() for form in vendor.id_forms), *COMMON_FORMS)
    return tuple((form, re.compile(form.pattern, re.ASCII)) for form in forms)


def _address(text: str) -> str:
    """Without leading zeros of the domain: sysfs writes four digits, the driver eight."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


def _with_ids(device: Device, ids: tuple[int, ...]) -> MatchedDevice | None:
    """The first instance whose ids begin with these."""
    fitting = (instance for instance in device.instances if instance.ids[: len(ids)] == ids)
    instance = next(fitting, None)
    return None if instance is None else MatchedDevice(device, instance)


def _with_profile(device: Device, profile: str) -> MatchedDevice:
    """The name has a profile and no id: the instance is known only if no other has its profile."""
    same = [
        instance
        for instance in device.instances
        if instance.profile is not ABSENT and re.sub(r"[^a-z0-9]", "", instance.profile.lower()) == profile
    ]
    return MatchedDevice(device, same[0] if len(same) == 1 else None)


def uuid_of(target: MatchedDevice) -> tuple[Uuid, Maybe[Uuid]]:
    return target.gpu.uuid, ABSENT if target.instance is None else target.instance.uuid


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
