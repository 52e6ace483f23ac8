"""NVIDIA, as the rest of the program sees it: ids, services, kernel log, throttle reasons, MIG."""

from __future__ import annotations

import re
from typing import Final

from gpuscope.model.readings import Uuid
from gpuscope.model.vendor import DeviceIdForm, KernelLogLine, ThrottleReason, Vendor
from gpuscope.vendors.nvidia.native_metrics import LINK_METRICS, METRICS, MIG_INFO, P2P_STATUS
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.xids import CATALOGUE

# Parses a line of NVIDIA's driver in the kernel log: XID code and GPU, or the UUID of a GPU.
#
# The start of an XID line is the same from driver 470 to 610: `NVRM: Xid (PCI:0000:8d:00): 79, …`, with the
# ids of the MIG instance after the address if one is affected. The text after the code varies (`pid=1234`,
# `pid='<unknown>'`, `name=…` or nothing) and is not parsed, because a process chooses its own name. `SXid`
# lines are about an NVSwitch, not a GPU.

MAX_MESSAGE_CHARACTERS: Final = 1000

_ADDRESS = r"(?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?"
_XID = re.compile(
    rf"\s*NVRM: (Xid \({_ADDRESS}(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (\d{{1,5}})(?![\w.]).*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_GPU = re.compile(
    rf"\s*NVRM: GPU at {_ADDRESS}: (GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})\s*\Z",
    re.ASCII | re.IGNORECASE,
)


def parse_kernel_line(text: str) -> KernelLogLine | None:
    """The driver logs a GPU's UUID before its first XID; this identifies GPUs that are lost now."""
    xid = _XID.match(text)
    if xid is not None:
        message, domain, bus, device, code = xid.groups()
        address = _pci_bus_id(domain, bus, device)
        return KernelLogLine(address, str(int(code)), message.rstrip()[:MAX_MESSAGE_CHARACTERS])
    gpu = _GPU.match(text)
    if gpu is None:
        return None
    domain, bus, device, uuid = gpu.groups()
    return KernelLogLine(_pci_bus_id(domain, bus, device), uuid=Uuid("GPU-" + uuid[4:].lower()))


def _pci_bus_id(domain: str, bus: str, device: str) -> str:
    return f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.0"


# Why a GPU's clocks are held back, by nvidia-smi's own names: which reasons hinder work, and what to do.
#
# Absent from a card that does not report it. The one thing a newcomer would get wrong: `gpu_idle` and a power
# cap under load are normal; heat and the power brake are not.

THROTTLES: Final = (
    ThrottleReason(
        "hw_thermal_slowdown",
        True,
        "The GPU is so hot that its hardware halves the clocks.",
        "check fans, airflow and dust; compare with the other GPUs of the node",
    ),
    ThrottleReason(
        "hw_power_brake_slowdown",
        True,
        "The machine's power supply told the GPU to slow down.",
        "check power supplies, cables and the rack's feed",
    ),
    ThrottleReason(
        "hw_slowdown",
        True,
        "The hardware slows the GPU down because of heat or power.",
        "look at the temperature and at the power brake to see which",
    ),
    ThrottleReason(
        "sw_thermal_slowdown",
        True,
        "The driver lowers the clocks to keep the temperature.",
        "improve the cooling; normal for desktop cards under full load",
    ),
    ThrottleReason(
        "sync_boost",
        True,
        "The clocks follow the slowest GPU of a group.",
        "find the slow GPU of the group, or end the group (nvidia-smi boost-slider)",
    ),
    ThrottleReason(
        "sw_power_cap",
        False,
        "The GPU draws as much power as it is allowed to: normal under load.",
        "raise the limit with nvidia-smi -pl if power and cooling allow",
    ),
    ThrottleReason(
        "applications_clocks_setting",
        False,
        "Somebody set application clocks.",
        "nvidia-smi -rac removes them",
    ),
    ThrottleReason(
        "display_clock_setting",
        False,
        "A display needs these clocks.",
        "nothing",
    ),
    ThrottleReason(
        "gpu_idle",
        False,
        "Nothing runs, so the clocks are low.",
        "nothing",
        is_idle=True,
    ),
)
"""Worst first."""


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
    visible_variable="NVIDIA_VISIBLE_DEVICES",
    driver_source="nvml",
    resources=("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/pgpu"),
    claim_driver="gpu.nvidia.com",
    id_starts=("GPU-", "MIG-"),
    id_forms=_ID_FORMS,
    stand_ins=("dcgm-exporter", "nvidia_gpu_exporter"),
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
