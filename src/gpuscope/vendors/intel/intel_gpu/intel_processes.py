"""The processes on Intel's GPUs, and how much each engine works: from DRM's clients.

A process on two GPUs is two. The kernel counts the time of each client on each kind of engine; what a card does
is the sum over its clients. Rendering and compute run beside each other: the busier of them is the share of a
process and of the card. Video engines decode and encode; the kernel does not tell which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Pid, Process, Uuid
from gpuscope.vendors.drm.client_walk import ClientUse, sum_ratio
from gpuscope.vendors.intel.intel_gpu.graphics_parts import GRAPHICS

MIN_MEMORY_BYTES: Final = 16 << 20
COMPUTE_KIND: Final = "C"
GRAPHICS_KIND: Final = "G"

ENGINES: Final = {
    "render": ("rcs", "render"),
    "compute": ("ccs", "compute"),
    "copy": ("bcs", "copy"),
    "video": ("vcs", "video"),
    "video_enhance": ("vecs", "video-enhance"),
}
"""Our name -> those of xe and i915."""
_OF_CARDS: Final = ("vram", "local")
_OF_MACHINES: Final = ("system", "gtt")
"""Beginnings of the names of memory regions: xe `vram0`, `system`, `gtt`; i915 `local0`, `system0`."""


def engine_ratio(uses: Sequence[ClientUse]) -> Maybe[Mapping[str, float]]:
    """Of a card, from all its clients; `graphics` is the busier of render and compute. ABSENT while a client
    was read only once. A card without clients does nothing."""
    if any(use.engine_ratio is ABSENT for use in uses):
        return ABSENT
    known = {engine for use in uses for engine in _engine_names(use)}
    ratios = {
        name: share
        for name, engines in ENGINES.items()
        if not known.isdisjoint(engines) and (share := sum_ratio(uses, engines)) is not ABSENT
    }
    return {GRAPHICS: max(ratios.get("render", 0.0), ratios.get("compute", 0.0)), **ratios}


def to_intel_processes(
    uses: Iterable[ClientUse], uuids: Mapping[str, Uuid], integrated: Iterable[str]
) -> list[Process]:
    """`uuids` are by PCI address; `integrated` are the addresses of processors' GPUs."""
    by_process: dict[tuple[Pid, str], list[ClientUse]] = {}
    for use in uses:
        if use.client.pdev in uuids:
            by_process.setdefault((use.pid, use.client.pdev), []).append(use)
    machines = set(integrated)
    return [
        _to_process(pid, uuids[address], clients, _OF_MACHINES if address in machines else _OF_CARDS)
        for (pid, address), clients in by_process.items()
        if any(_is_user(use) for use in clients)
    ]


def _to_process(pid: Pid, uuid: Uuid, uses: Sequence[ClientUse], regions: tuple[str, ...]) -> Process:
    render, compute = (sum_ratio(uses, ENGINES[name]) for name in ("render", "compute"))
    share = ABSENT if render is ABSENT or compute is ABSENT else max(render, compute)
    draws = any(_has_used(use, ENGINES["render"]) for use in uses)
    computes = any(_has_used(use, ENGINES["compute"]) for use in uses)
    return Process(
        pid=pid,
        gpu_uuid=uuid,
        kind=GRAPHICS_KIND if draws and not computes else COMPUTE_KIND,
        memory_bytes=_memory(uses, regions),
        sm_ratio=share,
    )


def _engine_names(use: ClientUse) -> set[str]:
    return {*use.client.engine_ns, *use.client.engine_cycles}


def _has_used(use: ClientUse, engines: Iterable[str]) -> bool:
    client = use.client
    return any(client.engine_ns.get(name) or client.engine_cycles.get(name, (0, 0))[0] for name in engines)


def _is_user(use: ClientUse) -> bool:
    """Monitors and compositors keep every card open: a client that has used no engine and holds almost nothing
    is no user."""
    return _has_used(use, _engine_names(use)) or sum(use.client.memory_bytes.values()) >= MIN_MEMORY_BYTES


def _memory(uses: Iterable[ClientUse], regions: tuple[str, ...]) -> Maybe[float]:
    """ABSENT on kernels that count engine time only."""
    sizes = [
        size for use in uses for region, size in use.client.memory_bytes.items() if region.startswith(regions)
    ]
    return float(sum(sizes)) if sizes else ABSENT
