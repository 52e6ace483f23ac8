"""Intel, as the rest of the program sees it."""

from __future__ import annotations

from typing import Final

from gpuscope.model.native_metric import gpu_gauge
from gpuscope.model.vendor import DeviceIdForm, Vendor
from gpuscope.vendors.intel.intel_throttles import INTEL_THROTTLES
from gpuscope.vendors.intel.intel_values import device_ids

NAME: Final = "intel"
_METRICS: Final = (
    gpu_gauge(
        "engine_busy_ratio",
        "engine_active_ratio",
        "Share of time that the engines of a kind worked: render, compute, copy, video, video_enhance; "
        "graphics is the busier of render and compute.",
        "engine",
    ),
)

VENDOR: Final = Vendor(
    name=NAME,
    title="Intel",
    pci_id="0x8086",
    # Cards without a display (Max, Flex) only: a VGA controller may be a processor's GPU, which is not read
    # beside another GPU and would seem to be missing.
    pci_classes=("0x0380",),
    resources=("gpu.intel.com/i915", "gpu.intel.com/xe"),
    claim_driver="gpu.intel.com",
    id_forms=(DeviceIdForm("Intel's device plugin", r"(?P<uuid>card\d{1,4})-(?P<replica>\d{1,4})"),),
    device_ids=device_ids,
    throttles=INTEL_THROTTLES,
    metrics=_METRICS,
)
