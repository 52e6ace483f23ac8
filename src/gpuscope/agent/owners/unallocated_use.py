"""Compares what is allocated with what is used: allocations that nobody uses, processes without an allocation.

A process belongs to an allocation if it is of the same pod or job. Where the agent cannot see a process' job
(no cgroups, not root), a process of the job's user on the job's GPU counts as the job's: a permission that the
agent lacks must not cause a finding. Processes that have just started are left out, because Slurm is read once
a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuscope.agent.owners.gpu_units import allocation_holders, process_owners, unit_of
from gpuscope.agent.owners.gpu_work import is_service
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Device,
    JobFacts,
    Maybe,
    OwnerKey,
    Process,
    Uuid,
    unit_uuid,
)

NEW_SECONDS: Final = 120.0  # twice the interval at which the placement of jobs is read


def used_allocations(
    allocations: Sequence[Allocation],
    processes: Maybe[tuple[Process, ...]],
    facts: Mapping[str, JobFacts],
) -> list[Allocation]:
    """Sets `used` where a process of that pod or job is on that very GPU or instance.

    Two pods cannot both have an unshared device: if one of them has a process on it, the other has ended and an
    old kubelet still lists it. If neither has, both are kept.
    """
    present: set[tuple[OwnerKey, Uuid]] = set()
    of_users: set[tuple[str, Uuid]] = set()
    for process in () if processes is ABSENT else processes:
        unit = unit_of(process)
        present |= {(owner, unit) for owner in process_owners(process)}
        if _has_unknown_job(process) and process.owner.user is not ABSENT:
            of_users.add((process.owner.user, unit))
    marked, taken = [], set()
    for allocation in allocations:
        uuid = unit_uuid(allocation)
        used = uuid is not ABSENT and (
            any((owner, uuid) in present for owner in _pod_or_job(allocation))
            or (_user_of(allocation, facts), uuid) in of_users
        )
        if used and _is_whole(allocation):
            taken.add(allocation.device_id)
        marked.append(replace(allocation, used=True) if used else allocation)
    return [use for use in marked if use.used or not (_is_whole(use) and use.device_id in taken)]


def count_unallocated(
    devices: Sequence[Device],
    processes: Iterable[Process],
    allocations: Iterable[Allocation],
    facts: Mapping[str, JobFacts],
    now: float,
) -> dict[Uuid, int]:
    """For each GPU or instance, how many processes on it belong to nobody that it is allocated to."""
    counts: dict[Uuid, int] = {}
    for device in devices:
        if not device.lost and device.processes_known:
            counts.update({part.uuid: 0 for part in device.instances or (device,)})
    holders: set[tuple[OwnerKey, Uuid]] = set()
    users: set[tuple[str, Uuid]] = set()
    unplaced: set[OwnerKey] = set()  # their GPU is not known: they may be anywhere on the node
    for allocation in allocations:
        uuid = unit_uuid(allocation)
        owners = set(_pod_or_job(allocation))
        if uuid is ABSENT:
            unplaced |= owners
            continue
        holders |= {(owner, uuid) for owner in owners}
        users.add((_user_of(allocation, facts), uuid))
    for process in processes:
        unit = unit_of(process)
        owners = set(process_owners(process))
        if unit not in counts or _is_exempt(process, now) or owners & unplaced:
            continue
        allowed = any((owner, unit) in holders for owner in owners)
        if not allowed and _has_unknown_job(process) and process.owner.user is not ABSENT:
            allowed = (process.owner.user, unit) in users
        counts[unit] += not allowed
    return counts


def _pod_or_job(allocation: Allocation) -> Iterable[OwnerKey]:
    """Neither account nor user: another job of theirs has no right to the GPU."""
    return (owner for owner in allocation_holders(allocation) if owner.kind in ("pod", "job"))


def _user_of(allocation: Allocation, facts: Mapping[str, JobFacts]) -> str:
    about = None if allocation.job is ABSENT else facts.get(allocation.job)
    return "" if about is None or about.user is ABSENT else about.user


def _has_unknown_job(process: Process) -> bool:
    return process.owner.job is ABSENT and process.owner.pod is ABSENT


def _is_exempt(process: Process, now: float) -> bool:
    if is_service(process) or not process.looked_up or process.started_at is ABSENT:
        return True
    return now - process.started_at < NEW_SECONDS


def _is_whole(allocation: Allocation) -> bool:
    return allocation.pod is not ABSENT and allocation.replica is ABSENT
