"""What only Intel's GPUs have: the ids that its plugins for Kubernetes give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import Device, Uuid, VendorValues
from gpuscope.model.readings.device import NO_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelValues(VendorValues):
    device_ids: Mapping[str, Uuid] = NO_VALUES
    """Names by which schedulers know the GPU: `card0`, `0000-03-00-0-0x56a0`."""


NO_INTEL_VALUES: Final = IntelValues()
"""Of a lost GPU."""


def device_ids(device: Device) -> Mapping[str, Uuid]:
    """Empty for another vendor's device."""
    values = device.vendor_values
    return values.device_ids if isinstance(values, IntelValues) else {}
