"""When the driver amdgpu is read: with `--source auto` on machines with an AMD GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings


def _has_amd_gpu(settings: Settings) -> bool:
    # Here: commands that read no GPU load this module too.
    from gpuscope.vendors.drm.pci_gpus import AMD, gpu_addresses

    return bool(gpu_addresses(settings.path_sysfs, AMD))


PLAN = SourcePlan(trust=15, selectable=True, in_auto=_has_amd_gpu)
