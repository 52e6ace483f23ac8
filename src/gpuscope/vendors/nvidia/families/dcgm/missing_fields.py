"""Warns about rows of a counters file that need DCGM while DCGM is not the source.

Fields that the GPU does not have cause no warning, as in dcgm-exporter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuscope.model.readings import Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import ENTITY_NUMBER_ID
from gpuscope.vendors.nvidia.families.dcgm.field_values import is_computed
from gpuscope.vendors.nvidia.families.dcgm.table import Counter
from gpuscope.vendors.nvidia.nvidia_values import own

log = logging.getLogger("gpuscope.dcgm")

VGPU_LICENCE_ID = 526  # in every counters file of NVIDIA, but only a virtual machine with a vGPU has it


class MissingFields:
    def __init__(self) -> None:
        self._reported: tuple[str, ...] = ()

    def warn(self, counters: Sequence[Counter], snapshot: Snapshot) -> None:
        """Warns once for each set of rows. Without GPUs it is not known whether DCGM is the source."""
        if not snapshot.devices or any(
            ENTITY_NUMBER_ID in own(device).dcgm_fields for device in snapshot.devices
        ):
            return
        missing = tuple(counter.name for counter in counters if not _has_a_value(counter))
        if missing and missing != self._reported:
            log.warning(
                "only DCGM has %s; these rows of the counters file have no samples without --source dcgm",
                ", ".join(missing),
            )
        self._reported = missing


def _has_a_value(counter: Counter) -> bool:
    return counter.is_exporters_own or counter.id == VGPU_LICENCE_ID or is_computed(counter.id)
