"""What only AMD's GPUs have: memory of the machine (GTT), bad pages, partition modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Device, Maybe, Uuid, VendorValues
from gpuscope.model.readings.device import IDENTITY, NO_VALUES, ByLabel, ByLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdValues(VendorValues):
    gtt_total_bytes: Maybe[float] = ABSENT
    """Memory of the machine that the GPU can use."""
    gtt_used_bytes: Maybe[float] = ABSENT
    bad_pages: ByLabel = NO_VALUES
    """Pages of its memory, by state: retired, pending, failed."""
    compute_units: Maybe[float] = field(default=ABSENT, metadata=IDENTITY)
    device_ids: Mapping[str, Uuid] = NO_VALUES
    """Names by which schedulers know the GPU or its partitions: to their UUIDs."""
    partition_modes: ByLabels = NO_VALUES
    """1, by the names of the compute and memory modes: (SPX, NPS1)."""


NO_AMD_VALUES: Final = AmdValues()
"""Of a lost GPU, and of a partition."""


def device_ids(device: Device) -> Mapping[str, Uuid]:
    """Empty for another vendor's device."""
    values = device.vendor_values
    return values.device_ids if isinstance(values, AmdValues) else {}
