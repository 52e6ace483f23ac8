"""The source amdgpu: every AMD GPU of this machine with its partitions and processes.

How cards are listed and read in tiers is in `vendors/drm/card_source.py`. Here: AMD's cards with the nodes of
KFD, and the processes of ROCm beside the clients of `/dev/dri`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Maybe, Process
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.amd_gpu import VENDOR, AmdGpu
from gpuscope.vendors.amd.amdgpu.amd_processes import GpuPart, PartIndex, to_processes
from gpuscope.vendors.amd.amdgpu.card_list import DRIVER, ListedCard, PartitionDevice, list_cards
from gpuscope.vendors.amd.amdgpu.kfd_processes import KfdProcesses, KfdUse
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdTopology
from gpuscope.vendors.drm.card_files import CallGuard, read_whole
from gpuscope.vendors.drm.card_source import DRM_CLIENTS, DrmSource, Roots

ROCM_PROCESSES: Final = "the processes of ROCm"


class AmdgpuSource(DrmSource[ListedCard, AmdGpu]):
    name = "amdgpu"
    vendor = VENDOR
    drivers = (DRIVER,)

    def __init__(self, roots: Roots, **options: Any) -> None:
        """`options` are those of every source of cards."""
        self._topology = KfdTopology(roots.sysfs)
        self._kfd = KfdProcesses(roots.sysfs)
        self._partition_devices: Mapping[int, PartitionDevice] = {}
        self._uses: Maybe[tuple[KfdUse, ...]] = ABSENT
        self._has_read_rocm = False
        super().__init__(roots, **options)

    def _list_cards(self) -> Sequence[ListedCard]:
        listed = list_cards(self._roots.sysfs, self._topology.read())
        self._partition_devices = listed.partition_devices
        return listed.cards

    def _keep_list(self) -> None:
        super()._keep_list()
        for file, why in self._topology.failures().items():
            self._failures[f"KFD: {file} ({why})"] += 1

    def _is_integrated(self, card: ListedCard) -> bool:
        """Processors have revisions 2 and 3 of `gpu_metrics`."""
        try:
            header = read_whole(f"{card.folder}/gpu_metrics", 4)
        except OSError:
            return False
        return len(header) == 4 and header[2] in (2, 3)

    def _open_gpu(self, card: ListedCard, guard: CallGuard) -> AmdGpu:
        return AmdGpu(card, self._roots.rootfs, self._clock.monotonic, guard, self._partition_devices)

    # Processes

    def _forget_users(self) -> None:
        super()._forget_users()
        self._uses = ABSENT
        self._has_read_rocm = False

    def _read_users(self, due: frozenset[Tier]) -> None:
        self._forget_users()
        self._guarded(ROCM_PROCESSES, partial(self._read_rocm, due))
        self._guarded(DRM_CLIENTS, partial(self._read_clients, due))

    def _read_rocm(self, due: frozenset[Tier]) -> None:
        self._uses = self._kfd.read(due)
        self._has_read_rocm = True

    def _processes_are_known(self) -> bool:
        """KFD lists every process of ROCm. On a kernel without it, all processes must have been looked at."""
        if not self._has_read_rocm or self._uses is not ABSENT:
            return self._has_read_rocm
        return self._client_uses is not ABSENT and self._clients.unreadable == 0

    def _make_processes(self) -> Sequence[Process]:
        uses = () if self._uses is ABSENT else self._uses
        clients = () if self._client_uses is ABSENT else self._client_uses
        return to_processes(uses, clients, self._parts())

    def _parts(self) -> PartIndex:
        by_gpu_id: dict[int, GpuPart] = {}
        by_device: dict[str, GpuPart] = {}
        by_address: dict[str, GpuPart] = {}
        for address, each in self._gpus.items():
            gpu = each.gpu
            whole = GpuPart(gpu.uuid, ABSENT, gpu.is_processor)
            by_address[address] = whole
            if gpu.card.render_minor is not ABSENT:
                by_device[f"renderD{gpu.card.render_minor}"] = whole
            for node in gpu.card.nodes:
                part = GpuPart(gpu.uuid, gpu.instance_uuid(node), gpu.is_processor)
                by_gpu_id[node.gpu_id] = part
                if node.render_minor is not ABSENT:
                    by_device[f"renderD{node.render_minor}"] = part
        return PartIndex(by_gpu_id, by_device, by_address)
