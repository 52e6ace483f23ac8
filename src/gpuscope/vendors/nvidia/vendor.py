"""NVIDIA, as the rest of the program sees it."""

from __future__ import annotations

import re
from typing import Final

from gpuscope.model.vendor import DeviceIdForm, Vendor
from gpuscope.vendors.nvidia.kernel_lines import parse_kernel_line
from gpuscope.vendors.nvidia.native_metrics import LINK_METRICS, METRICS, MIG_INFO, P2P_STATUS
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.throttles import THROTTLES
from gpuscope.vendors.nvidia.xids import CATALOGUE

DRIVER_LIBRARY: Final = "libnvidia-ml.so.1"
DEFAULT_COMPUTE_SLICES: Final = 7
COMPUTE_SLICES: Final = (
    (re.compile(r"A30\b|RTX PRO 6000"), 4),
    (re.compile(r"RTX PRO (5000|4500)"), 2),
)
"""Compute slices of a whole GPU, for the models that do not have seven."""
_PROFILE: Final = re.compile(r"(?:(\d+)c\.)?(\d+)g\.")


def slice_share(profile: str, model: str) -> float:
    """A MIG instance's part of the compute slices of its GPU."""
    match = _PROFILE.match(profile)
    if match is None:
        return 0.0
    slices = next((count for pattern, count in COMPUTE_SLICES if pattern.search(model)), DEFAULT_COMPUTE_SLICES)
    return int(match[1] or match[2]) / slices


_N: Final = r"\d{1,4}"
_REPLICA: Final = rf"(?P<replica>{_N})"
_ID_FORMS: Final = (
    DeviceIdForm("MIG before driver 470", rf"MIG-(?P<uuid>GPU-[^/:]+)/(?P<ids>{_N}/{_N})(?:::{_REPLICA})?"),
    DeviceIdForm("time-slicing and MPS", rf"(?P<uuid>(?:GPU|MIG)-.+)::{_REPLICA}"),
    DeviceIdForm("HAMi", rf"(?P<uuid>GPU-\w+-\w+-\w+-\w+-\w+)-{_REPLICA}"),
    DeviceIdForm("GKE", rf"nvidia(?P<number>{_N})(?:/gi(?P<ids>{_N}))?(?:/vgpu{_REPLICA})?"),
    DeviceIdForm(
        "dynamic resource allocation, MIG",
        rf"gpu-(?P<number>{_N})-mig-(?P<profile>[a-z0-9]+)-{_N}-{_N}",
    ),
)

VENDOR: Final = Vendor(
    name=NVIDIA,
    title="NVIDIA",
    pci_id="0x10de",
    resources=("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/pgpu"),
    claim_driver="gpu.nvidia.com",
    id_starts=("GPU-", "MIG-"),
    id_forms=_ID_FORMS,
    services=("dcgm", "dcgm-exporter", "nv-fabricmanager", "nv-hostengine", "nvidia-persistenced"),
    work_servers=("nvidia-cuda-mps-server", "nvidia-cuda-mps-control"),
    kernel_prefix=b"NVRM",
    parse_kernel_line=parse_kernel_line,
    errors=CATALOGUE,
    throttles=THROTTLES,
    instance_share=slice_share,
    profile_pattern=r"\d+g\.\d+gb",
    instance_info=MIG_INFO,
    link_metrics=LINK_METRICS,
    metrics=METRICS,
    driver_library=DRIVER_LIBRARY,
    peer_link_metric=P2P_STATUS.name,
)
