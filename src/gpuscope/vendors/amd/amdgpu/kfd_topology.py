"""What KFD, the compute part of the driver, says about the GPUs: a node for each card, or for each partition.

Read from `/sys/class/kfd/kfd/topology`; `/dev/kfd` is never opened, because that makes the reader itself a
process of the GPU, and blocks changes of the partition mode. Nodes of GPUs that this container may not use are
refused by the kernel (EPERM) and left out. Kernels without KFD have no nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles

TOPOLOGY: Final = "class/kfd/kfd/topology"
MAX_NODES: Final = 1024
XGMI_LINK: Final = 11

_FRAME_BUFFER_HEAPS: Final = (1, 2)
"""Memory on the card that the CPU can reach, or cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    number: int
    """Of its folder: the order in which ROCm counts GPUs."""
    gpu_id: int
    """In the names of the files of processes."""
    address: str
    """On the PCI bus: `0000:c1:00.0`."""
    partition: int = 0
    compute_units: int = 0
    dies: int = 1
    """Compute dies (XCC)."""
    render_minor: Maybe[int] = ABSENT
    """N of /dev/dri/renderDN."""
    architecture: Maybe[str] = ABSENT
    unique_id: Maybe[int] = ABSENT
    memory_bytes: Maybe[float] = ABSENT
    hive: int = 0
    """Equal for cards that XGMI connects; 0 without."""


class KfdTopology:
    """Reads the nodes again when the kernel says that they have changed."""

    def __init__(self, sysfs: str) -> None:
        self._files = CardFiles(f"{sysfs}/{TOPOLOGY}", "amdgpu: KFD")
        self._generation: Maybe[str] = ABSENT
        self._nodes: tuple[KfdNode, ...] = ()

    def read(self) -> tuple[KfdNode, ...]:
        self._files.begin()
        self._files.retry_refused()
        generation = self._files.text("generation_id")
        if generation is ABSENT or generation != self._generation:
            self._generation = generation
            self._nodes = tuple(self._read_nodes())
        return self._nodes

    def failures(self) -> dict[str, str]:
        return {name: why for name, why in self._files.failures.items() if why != "EPERM"}

    def used_memory(self, node: KfdNode) -> Maybe[float]:
        """Of one partition; only some drivers say it."""
        return self._files.scaled(f"nodes/{node.number}/mem_banks/0/used_memory", 1.0)

    def _read_nodes(self) -> Iterable[KfdNode]:
        numbers = sorted(int(name) for name in self._files.names("nodes") if name.isascii() and name.isdigit())
        for number in numbers[:MAX_NODES]:
            gpu_id = self._files.number(f"nodes/{number}/gpu_id")
            if gpu_id is not ABSENT and gpu_id:  # a CPU has 0
                properties = self._files.properties(f"nodes/{number}/properties")
                node = to_node(number, gpu_id, properties, self._memory(number))
                if node is not None:
                    yield node

    def _memory(self, number: int) -> Maybe[float]:
        banks = self._files.names(f"nodes/{number}/mem_banks")
        found = [self._files.properties(f"nodes/{number}/mem_banks/{bank}/properties") for bank in banks]
        sizes = [bank.get("size_in_bytes", 0) for bank in found if bank.get("heap_type") in _FRAME_BUFFER_HEAPS]
        return float(sum(sizes)) if sizes else ABSENT


def to_node(
    number: int, gpu_id: int, properties: Mapping[str, int], memory_bytes: Maybe[float] = ABSENT
) -> KfdNode | None:
    """None if the node does not say where it is on the PCI bus."""
    location = properties.get("location_id")
    if location is None:
        return None
    domain, bus_device_function = properties.get("domain", 0), location & 0xFFFF
    bus, device, function = bus_device_function >> 8, bus_device_function >> 3 & 31, bus_device_function & 7
    simds = properties.get("simd_per_cu", 0)
    return KfdNode(
        number=number,
        gpu_id=gpu_id,
        address=f"{domain:04x}:{bus:02x}:{device:02x}.{function}",
        partition=location >> 28 & 0xF,
        compute_units=properties.get("simd_count", 0) // simds if simds else 0,
        dies=max(1, properties.get("num_xcc", 1)),
        render_minor=properties.get("drm_render_minor") or ABSENT,
        architecture=_architecture(properties.get("gfx_target_version", 0)),
        unique_id=properties.get("unique_id") or ABSENT,
        memory_bytes=memory_bytes,
        hive=properties.get("hive_id", 0),
    )


def _architecture(version: int) -> Maybe[str]:
    """90402 is gfx942, 110000 is gfx1100: two decimal digits each, the last two parts in hexadecimal."""
    if not version:
        return ABSENT
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def nodes_by_card(nodes: Iterable[KfdNode], addresses: Iterable[str]) -> dict[str, tuple[KfdNode, ...]]:
    """The nodes of each card, by its PCI address, in the order of its partitions.

    Drivers of 2023 put the number of the partition into the function of the address, later ones into the
    highest bits. An address that is no card is looked up without its function.
    """
    cards = set(addresses)
    found: dict[str, list[KfdNode]] = {}
    for node in nodes:
        whole = f"{node.address[:-1]}0"
        address = node.address if node.address in cards else whole
        if address in cards:
            found.setdefault(address, []).append(node)
    return {address: tuple(sorted(nodes, key=_order)) for address, nodes in found.items()}


def _order(node: KfdNode) -> tuple[int, str, int]:
    return node.partition, node.address, node.number
