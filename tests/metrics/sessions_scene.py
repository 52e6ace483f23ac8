"""Two nodes for the session metrics: MIG with sparse ids beside whole GPUs, sharing, idle and busy ones."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.model.readings import (
    ABSENT,
    ACTIVE,
    IDLE,
    UNKNOWN,
    Device,
    Instance,
    Maybe,
    Owner,
    Pid,
    Process,
    Snapshot,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance

GIB = float(1 << 30)
MIB = float(1 << 20)
TAKEN_AT = 1_700_000_000.0


def instance(gpu: int, gi: int, used: float) -> Instance:
    return make_instance(
        uuid=Uuid(f"MIG-{gpu}-{gi}"),
        gpu_instance=gi,
        compute_instance=0,
        profile="1g.5gb",
        memory_total_bytes=5 * GIB,
        memory_used_bytes=used,
    )


def device(node: str, index: int, busy: Maybe[float], used: float, *instances: Instance) -> Device:
    return make_device(
        uuid=Uuid(f"GPU-{node}-{index}"),
        index=index,
        utilization_ratio=ABSENT if instances else busy,
        memory_total_bytes=40 * GIB,
        memory_used_bytes=used,
        mig_enabled=1.0 if instances else 0.0,
        instances=instances,
    )


def process(
    gpu: Device,
    pid: int,
    memory: float,
    sm: Maybe[float],
    owner: Owner,
    *,
    state: str = ACTIVE,
    command: str = "python3",
    on: Instance | None = None,
    age: float = 60.0,
) -> Process:
    return Process(
        pid=Pid(pid),
        gpu_uuid=gpu.uuid,
        instance_uuid=ABSENT if on is None else on.uuid,
        command=command,
        memory_bytes=memory,
        sm_ratio=sm,
        owner=owner,
        state=state,
        started_at=TAKEN_AT - age,
    )


def pod(name: str, container: str = "main", namespace: str = "ml") -> Owner:
    return Owner(user="root", pod=name, namespace=namespace, container=container)


def first_node(at: float = TAKEN_AT) -> Snapshot:
    """GPU 0 in instances 7 (busy) and 12 (free), GPU 1 shared by two pods, GPU 2 free."""
    seven, twelve = instance(0, 7, 2 * GIB), instance(0, 12, 0.0)
    split = device("a", 0, ABSENT, 2 * GIB, seven, twelve)
    shared, free = device("a", 1, 0.85, 11 * GIB), device("a", 2, 0.0, 0.0)
    return _at(
        at,
        "a",
        (split, shared, free),
        process(split, 100, 2 * GIB, ABSENT, pod("mig-0"), state=UNKNOWN, on=seven),
        process(shared, 101, 8 * GIB, 0.6, pod("train-0"), age=3 * 3600),
        process(shared, 102, 1024 * MIB, 0.25, pod("infer-1", "triton"), command="tritonserver"),
    )


def second_node(at: float = TAKEN_AT) -> Snapshot:
    """A bare process; a pod with the GPU and PID of one on the first node; an idle notebook; a free GPU."""
    first, second, third, free = (device("b", n, busy, n * GIB) for n, busy in enumerate((0.1, 0.5, 0.0, 0.0)))
    return _at(
        at,
        "b",
        (first, second, third, free),
        process(first, 555, 1 * GIB, 0.1, Owner(user="alice"), command='evil"name\\\n'),
        process(second, 102, 4 * GIB, 0.5, pod("train-1")),
        process(third, 103, 4 * GIB, 0.0, pod("notebook-x", "lab", "hub"), state=IDLE, age=9000),
    )


def _at(at: float, node: str, devices: tuple[Device, ...], *processes: Process) -> Snapshot:
    moved = tuple(
        replace(one, started_at=one.started_at + at - TAKEN_AT) if one.started_at is not ABSENT else one
        for one in processes
    )
    return Snapshot(node=node, taken_at=at, devices=devices, processes=moved)
