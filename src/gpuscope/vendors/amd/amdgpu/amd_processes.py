"""The processes on AMD's GPUs: those of ROCm from KFD, those of graphics and video from DRM's clients.

A process on two GPUs is two. For ROCm the share of compute time does not exist and is ABSENT, whatever DRM says
about its other engines. A client that has used no engine and holds almost nothing is no user: monitors and
compositors keep every card open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Pid, Process, Uuid
from gpuscope.vendors.amd.amdgpu.kfd_processes import KfdUse
from gpuscope.vendors.drm.client_walk import ClientUse, sum_ratio

MIN_MEMORY_BYTES: Final = 16 << 20
COMPUTE: Final = "C"
GRAPHICS: Final = "G"

_COMPUTE_ENGINES: Final = ("gfx", "compute")
_ENCODERS: Final = ("enc", "enc_1")
_DECODERS: Final = ("dec",)
_JPEG: Final = ("jpeg",)


@dataclass(frozen=True, slots=True)
class GpuPart:
    """A GPU or one of its partitions, as processes are found on it."""

    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid] = ABSENT
    shares_machine_memory: bool = False


@dataclass(frozen=True, slots=True)
class PartIndex:
    """How KFD and DRM name the parts."""

    by_gpu_id: Mapping[int, GpuPart]
    by_device: Mapping[str, GpuPart]
    """By the file of the card or partition: `renderD128`."""
    by_address: Mapping[str, GpuPart]


def to_processes(uses: Sequence[KfdUse], clients: Sequence[ClientUse], parts: PartIndex) -> list[Process]:
    by_process: dict[tuple[Pid, GpuPart], list[ClientUse]] = {}
    for client in clients:
        part = parts.by_device.get(client.device) or parts.by_address.get(client.client.pdev)
        if part is not None:
            by_process.setdefault((client.pid, part), []).append(client)
    processes = []
    for use in uses:
        part = parts.by_gpu_id.get(use.gpu_id)
        if part is not None:
            drawn = by_process.pop((use.pid, part), [])
            memory = _drm_memory(drawn, part) if part.shares_machine_memory else ABSENT
            memory = use.vram_bytes if memory is ABSENT else memory
            processes.append(_process(use.pid, part, COMPUTE, memory, drawn, ABSENT))
    for (pid, part), drawn in by_process.items():
        if any(_is_user(client) for client in drawn):
            share = sum_ratio(drawn, _COMPUTE_ENGINES)
            processes.append(_process(pid, part, GRAPHICS, _drm_memory(drawn, part), drawn, share))
    return processes


def _process(
    pid: Pid, part: GpuPart, kind: str, memory: Maybe[float], clients: Sequence[ClientUse], share: Maybe[float]
) -> Process:
    return Process(
        pid=pid,
        gpu_uuid=part.gpu_uuid,
        instance_uuid=part.instance_uuid,
        kind=kind,
        memory_bytes=memory,
        sm_ratio=share,
        encoder_ratio=sum_ratio(clients, _ENCODERS),
        decoder_ratio=sum_ratio(clients, _DECODERS),
        jpeg_ratio=sum_ratio(clients, _JPEG),
    )


def _is_user(use: ClientUse) -> bool:
    if any(use.client.engine_ns.values()):
        return True
    memory = use.client.memory_bytes
    return memory.get("vram", 0) + memory.get("gtt", 0) >= MIN_MEMORY_BYTES


def _drm_memory(clients: Iterable[ClientUse], part: GpuPart) -> Maybe[float]:
    """On the card; on a processor also in the machine's memory, where its models are."""
    regions = ("vram", "gtt") if part.shares_machine_memory else ("vram",)
    sizes = [
        client.client.memory_bytes[region]
        for client in clients
        for region in regions
        if region in client.client.memory_bytes
    ]
    return float(sum(sizes)) if sizes else ABSENT
