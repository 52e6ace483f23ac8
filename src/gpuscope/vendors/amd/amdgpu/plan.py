"""When the driver amdgpu is read, and its settings: with `--source auto` on machines with an AMD GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.base.setting_values import one_of, setting
from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings


@dataclass(frozen=True, kw_only=True)
class AmdgpuSettings:
    integrated_gpus: str = setting(
        "auto",
        one_of("auto", "always", "never"),
        "read GPUs that are part of an AMD processor; auto: only on machines without another GPU",
        "WHEN",
    )


def _has_amd_gpu(settings: Settings) -> bool:
    # Here: commands that read no GPU load this module too.
    from gpuscope.vendors.drm.pci_gpus import AMD, gpu_addresses

    return bool(gpu_addresses(settings.path_sysfs, AMD))


PLAN = SourcePlan(trust=15, settings=AmdgpuSettings, selectable=True, in_auto=_has_amd_gpu)
