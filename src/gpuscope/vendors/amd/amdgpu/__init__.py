"""AMD's GPUs, from the files of the kernel's driver amdgpu; no library and no root is needed.

Output: devices, partitions, processes. Every number can be absent: each file can be missing, refuse or fail
without affecting the others. `/dev/kfd` is never opened, `pcie_bw` never read.
"""

from __future__ import annotations

from gpuscope.base.settings import Settings
from gpuscope.model.source import Source, SourceSpec


def open_amdgpu(settings: Settings) -> Source:
    from gpuscope.vendors.amd.amdgpu.amdgpu_source import AmdgpuSource
    from gpuscope.vendors.drm.card_source import Roots

    return AmdgpuSource(
        Roots(sysfs=settings.path_sysfs, procfs=settings.path_procfs, rootfs=settings.path_rootfs),
        reading_seconds=max(0.5, 0.8 * settings.interval),
        stale_seconds=SOURCE.deadline_seconds(settings),
        integrated=settings.integrated_gpus,
    )


SOURCE = SourceSpec(
    name="amdgpu", summary="reads AMD's GPUs from the files of the kernel's driver", open=open_amdgpu
)
