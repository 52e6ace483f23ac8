"""What Slurm itself says about the GPUs of this node, on a machine that reads Slurm and is one of its nodes.

Input: the `SlurmState` of the cycle; output: claims by UUID and facts about the jobs here. Absent where Slurm
is not read, does not know where its jobs are, or does not have this node. Other nodes have a prolog's files, or
are joined by the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.agent.owners.allocation_claims import AllocationClaim
from gpuscope.model.readings import ABSENT, Device, JobFacts, Maybe, SlurmState
from gpuscope.model.readings.slurm import Gres, SlurmJob, SlurmNode
from gpuscope.model.slurm_gpu_index import NumberedGpu, gpus_by_slurm_index, is_of_model, short_node_name


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """Compared by identity: the same object while neither Slurm's state nor the GPUs changed."""

    claims: tuple[AllocationClaim, ...]
    facts: Mapping[str, JobFacts]


class SlurmClaims:
    def __init__(self, node: str) -> None:
        self._node = short_node_name(node)
        self._made_from: tuple[object, object] = (None, None)
        self._made: Maybe[LocalJobs] = ABSENT

    def read(self, state: Maybe[SlurmState], devices: Sequence[Device]) -> Maybe[LocalJobs]:
        if state is ABSENT:
            return ABSENT
        gpus = tuple(_numbered(devices))
        if self._made_from[0] is not state or self._made_from[1] != gpus:
            self._made_from = state, gpus
            self._made = self._make(state, gpus)
        return self._made

    def _make(self, state: SlurmState, gpus: Sequence[NumberedGpu]) -> Maybe[LocalJobs]:
        nodes = () if state.nodes is ABSENT else state.nodes
        node = next((node for node in nodes if short_node_name(node.name) == self._node), None)
        if node is None or state.placements is ABSENT or state.jobs is ABSENT:
            return ABSENT
        by_index = gpus_by_slurm_index(gpus, _count_gpus(node))
        jobs = {job.job_id: job for job in state.jobs}
        claims: list[AllocationClaim] = []
        facts: dict[str, JobFacts] = {}
        for job_id, placements in state.placements.items():
            held = [gres for placement in placements if placement.node == node.name for gres in placement.gres]
            if held and job_id in jobs:
                facts[str(job_id)] = job_facts(jobs[job_id])
                claims += _claims(str(job_id), node.name, held, by_index)
        return LocalJobs(tuple(claims), facts)


def job_facts(job: SlurmJob) -> JobFacts:
    array: Maybe[str] = ABSENT
    if job.array_job_id is not ABSENT and job.array_task.isdecimal():
        array = f"{job.array_job_id}_{job.array_task}"
    return JobFacts(
        user=job.user or ABSENT,
        account=job.account or ABSENT,
        partition=",".join(job.partitions) or ABSENT,
        array=array,
        ends_at=job.ends_at,
    )


def _claims(
    job: str, node: str, held: Iterable[Gres], by_index: Mapping[int, NumberedGpu]
) -> Iterator[AllocationClaim]:
    """A job with shards or MPS shares has the GPU that they are of, like the jobs it shares it with."""
    indices = dict.fromkeys(
        (index, gres.model) for gres in held if gres.indices is not ABSENT for index in gres.indices
    )
    for index, model in indices:
        gpu = by_index.get(index)
        known = gpu is not None and is_of_model(gpu, model)
        device_id = gpu.uuid if gpu is not None and known else f"{node}:{model or 'gpu'}:{index}"
        yield AllocationClaim(device_id=device_id, resource="slurm", job=job)


def _numbered(devices: Iterable[Device]) -> Iterator[NumberedGpu]:
    for device in devices:
        number = device.index if device.minor_number is ABSENT else device.minor_number
        if not device.instances:
            yield NumberedGpu(device.uuid, number)
        for instance in device.instances:
            profile = "" if instance.profile is ABSENT else instance.profile
            yield NumberedGpu(instance.uuid, number, profile or "?", instance.ids)


def _count_gpus(node: SlurmNode) -> int:
    return sum(gres.count for gres in node.gres if gres.kind == "gpu")
