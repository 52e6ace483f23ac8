"""Memory that no process of the driver's list has: known only if the memory of each of them is known."""

from __future__ import annotations

import pytest

from gpuscope.agent.owners.gpu_units import unlisted_memory
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.model.readings import ABSENT, Device, Instance, Maybe, Pid, Process, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_instance
from tests.fakes import gpu

GIB = float(1 << 30)


def process(memory: Maybe[float], on: Maybe[Uuid] = ABSENT, pid: int = 4_000_001) -> Process:
    return Process(pid=Pid(pid), gpu_uuid=Uuid("GPU-0"), instance_uuid=on, memory_bytes=memory)


def instance(uuid: str, gpu_instance: int, **more: object) -> Instance:
    values = {"memory_used_bytes": 3 * GIB, **more}
    return make_instance(uuid=Uuid(uuid), gpu_instance=gpu_instance, compute_instance=0, **values)


USED = gpu(memory_used_bytes=3 * GIB)


@pytest.mark.parametrize(
    ("device", "processes", "unlisted"),
    [
        (USED, [], {"GPU-0": 3 * GIB}),
        (USED, [process(GIB)], {"GPU-0": 2 * GIB}),
        (USED, [process(GIB), process(2 * GIB)], {"GPU-0": 0.0}),
        (USED, [process(4 * GIB)], {"GPU-0": 0.0}),
        (USED, [process(GIB), process(ABSENT)], {}),
        (gpu(memory_used_bytes=3 * GIB, processes_known=False), [], {}),
        (gpu(memory_used_bytes=3 * GIB, lost=True), [], {}),
        (gpu(), [], {}),
    ],
)
def test_a_gpu(device: Device, processes: list[Process], unlisted: dict[str, float]) -> None:
    assert unlisted_memory([device], processes) == unlisted


def test_compute_instances_share_the_memory_of_their_gpu_instance() -> None:
    device = gpu(
        memory_used_bytes=9 * GIB,
        instances=(
            instance("MIG-1", 1),
            instance("MIG-2", 1),
            instance("MIG-3", 2),
            instance("MIG-4", 3, processes_known=False),
        ),
    )
    processes = [process(GIB, Uuid("MIG-1")), process(2 * GIB, Uuid("MIG-2")), process(GIB, Uuid("MIG-3"))]
    assert unlisted_memory([device], processes) == {"MIG-1": 0.0, "MIG-3": 2 * GIB}


def test_a_process_that_proc_does_not_show_is_listed() -> None:
    """Its owner is not known, as in a container without the machine's PIDs; its memory is."""
    _, ownership = OwnerJoin().advance((process(3 * GIB),), [USED], {}, simulated=False, now=0.0, monotonic=0.0)
    assert ownership.unlisted_memory == {"GPU-0": 0.0}
    _, unknown = OwnerJoin().advance(ABSENT, [USED], {}, simulated=False, now=0.0, monotonic=0.0)
    assert unknown.unlisted_memory == {}
