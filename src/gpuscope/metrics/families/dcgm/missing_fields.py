"""One warning that names the rows of a counters file which only DCGM can fill, where DCGM is not asked.

What a card does not have is not named: dcgm-exporter leaves it out without a word as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuscope.metrics.families.dcgm.field_values import is_worked_out
from gpuscope.metrics.families.dcgm.table import Counter
from gpuscope.readings import Snapshot
from gpuscope.readings.dcgm_fields import ENTITY_NUMBER_ID

log = logging.getLogger("gpuscope.dcgm")

VGPU_LICENCE_ID = 526  # in every counters file of NVIDIA's, and only a virtual machine with a vGPU has it


class MissingFields:
    def __init__(self) -> None:
        self._said: tuple[str, ...] = ()

    def say(self, counters: Sequence[Counter], snapshot: Snapshot) -> None:
        """Warns once for each set of rows; GPUs must be there to know whether DCGM is asked."""
        if not snapshot.devices or any(ENTITY_NUMBER_ID in device.dcgm_fields for device in snapshot.devices):
            return
        missing = tuple(counter.name for counter in counters if not _has_a_value(counter))
        if missing and missing != self._said:
            log.warning(
                "only DCGM has %s, so these rows of the counters file give nothing; use --source dcgm for them",
                ", ".join(missing),
            )
        self._said = missing


def _has_a_value(counter: Counter) -> bool:
    return counter.is_exporters_own or counter.id == VGPU_LICENCE_ID or is_worked_out(counter.id)
