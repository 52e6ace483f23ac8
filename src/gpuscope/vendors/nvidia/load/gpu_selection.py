"""Which GPUs are loaded: by index, UUID or MIG position, and only those that no other process uses.

A GPU split into MIG instances cannot be loaded as a whole; its instances can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.base.errors import UsageError
from gpuscope.model.readings import ABSENT, Device, Instance, Process, Snapshot, instance_name
from gpuscope.vendors.nvidia.load.comparison import LoadedGpu


def select_gpus(snapshot: Snapshot, wanted: Sequence[str]) -> list[LoadedGpu]:
    """Those named, or all."""
    there = {gpu.gpu: gpu for gpu in _loadable(snapshot)}
    by_name = there | {gpu.uuid: gpu for gpu in there.values()}
    if not wanted:
        return list(there.values())
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise UsageError(f"--gpus: no GPU {missing[0]!r}; there are {', '.join(there) or 'none'}")
    return list({by_name[name].uuid: by_name[name] for name in wanted}.values())


def _loadable(snapshot: Snapshot) -> Iterator[LoadedGpu]:
    for device in snapshot.devices:
        if device.lost:
            continue
        if not device.instances:
            yield LoadedGpu(str(device.index), device.uuid, device.model)
        for instance in device.instances:
            yield LoadedGpu(instance_name(device, instance), instance.uuid, device.model)


def find_reading(snapshot: Snapshot, uuid: str) -> Device | Instance | None:
    """What the snapshot has of this GPU or instance; None if it is gone."""
    for device in snapshot.devices:
        if device.uuid == uuid:
            return None if device.lost else device
        for instance in device.instances:
            if instance.uuid == uuid:
                return instance
    return None


def refuse_used(snapshot: Snapshot, gpus: Sequence[LoadedGpu], own_pids: frozenset[int]) -> None:
    """An error that names the first process of somebody else on one of the GPUs."""
    wanted = {gpu.uuid: gpu.gpu for gpu in gpus}
    for process in snapshot.processes if snapshot.processes is not ABSENT else ():
        place = process.gpu_uuid if process.instance_uuid is ABSENT else process.instance_uuid
        if place in wanted and process.pid not in own_pids and process.kind != "G":
            raise UsageError(
                f"GPU {wanted[place]} is in use: {describe(process)}; "
                "choose another with --gpus, or load it anyway with --force"
            )


def describe(process: Process) -> str:
    owner = process.owner
    parts = [f"process {process.pid}"]
    if process.command is not ABSENT:
        parts.append(f"({process.command})")
    if owner.pod is not ABSENT:
        namespace = "" if owner.namespace is ABSENT else f"{owner.namespace}/"
        parts.append(f"of pod {namespace}{owner.pod}")
    elif owner.user is not ABSENT:
        parts.append(f"of {owner.user}")
    if owner.job is not ABSENT:
        parts.append(f"in job {owner.job}")
    return " ".join(parts)
