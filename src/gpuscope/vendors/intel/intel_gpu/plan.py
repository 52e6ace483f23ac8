"""When Intel's drivers are read: with `--source auto` on machines with an Intel GPU that counts.

A processor's GPU counts where the machine has no other GPU. Most workstations with cards of another vendor have
one: their agents must not open this source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings


def _has_intel_gpu(settings: Settings) -> bool:
    # Here: commands that read no GPU load this module too.
    from gpuscope.vendors.drm.pci_gpus import INTEL, gpu_addresses, other_gpus
    from gpuscope.vendors.intel.intel_gpu.intel_cards import INTEGRATED

    addresses = gpu_addresses(settings.path_sysfs, INTEL)
    if settings.integrated_gpus == "always":
        return bool(addresses)
    if any(address != INTEGRATED for address in addresses):
        return True
    alone = bool(addresses) and not other_gpus(settings.path_sysfs, addresses)
    return alone and settings.integrated_gpus == "auto"


PLAN = SourcePlan(trust=16, selectable=True, in_auto=_has_intel_gpu)
