"""Intel's GPUs, from the files of the kernel's drivers xe and i915; no library is needed.

Output: devices and processes. Every number can be absent: each file can be missing, refuse or fail without
affecting the others. No device file is opened. Processes of other users need root.
"""

from __future__ import annotations

from gpuscope.base.settings import Settings
from gpuscope.model.source import Source, SourceSpec


def open_intel_gpu(settings: Settings) -> Source:
    from gpuscope.vendors.drm.card_source import Roots
    from gpuscope.vendors.intel.intel_gpu.intel_source import IntelGpuSource

    return IntelGpuSource(
        Roots(sysfs=settings.path_sysfs, procfs=settings.path_procfs, rootfs=settings.path_rootfs),
        reading_seconds=max(0.5, 0.8 * settings.interval),
        stale_seconds=SOURCE.deadline_seconds(settings),
        integrated=settings.integrated_gpus,
    )


SOURCE = SourceSpec(
    name="intel-gpu",
    summary="reads Intel's GPUs from the files of the kernel's drivers xe and i915",
    open=open_intel_gpu,
)
