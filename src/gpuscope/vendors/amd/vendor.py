"""AMD, as the rest of the program sees it."""

from __future__ import annotations

import re
from typing import Final

from gpuscope.model.vendor import Vendor
from gpuscope.vendors.amd.amd_metrics import AMD_METRICS, PARTITION_INFO, XGMI_METRICS
from gpuscope.vendors.amd.amd_throttles import AMD_THROTTLES
from gpuscope.vendors.amd.amd_values import device_ids

NAME: Final = "amd"
_PROFILE: Final = re.compile(r"(?:\w+ )?1/(\d{1,3})(?: \w+)?", re.ASCII)


def partition_share(profile: str, model: str) -> float:
    """The partitions of a card are equal: `CPX 1/8 NPS1` is an eighth."""
    match = _PROFILE.fullmatch(profile)
    return 1 / int(match[1]) if match is not None and int(match[1]) else 0.0


VENDOR: Final = Vendor(
    name=NAME,
    title="AMD",
    pci_id="0x1002",
    # Accelerators only: a display controller may be a processor's GPU, which is not read beside another GPU and
    # would seem to be missing.
    pci_classes=("0x1200",),
    visible_variable="AMD_VISIBLE_DEVICES",
    resources=("amd.com/gpu", "amd.com/spx", "amd.com/dpx", "amd.com/tpx", "amd.com/qpx", "amd.com/cpx"),
    claim_driver="gpu.amd.com",
    device_ids=device_ids,
    throttles=AMD_THROTTLES,
    instance_share=partition_share,
    instance_info=PARTITION_INFO,
    link_metrics=XGMI_METRICS,
    metrics=AMD_METRICS,
)
