"""The kinds of load: what each does, what it counts, and what a monitor should show while it runs.

Expected values are shares of the time the GPU was busy, measured by the load itself: a load that is busy 60 %
of the time should show 0.6 times the share. A metric the card does not report is not compared. Lower bounds
are loose on purpose: architectures reach different shares with the same instructions (docs/load.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpuscope.vendors.nvidia.load import ptx


@dataclass(frozen=True, slots=True)
class ExpectedShare:
    """The range a metric should be in, for each unit of busy time."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ExpectedTraffic:
    """The share of the copied bytes that a link carries in one direction, as the GPU sees it: tx or rx."""

    link: str
    direction: str
    share: float


@dataclass(frozen=True, slots=True)
class Kind:
    """`kernel` is None for copies, which need none."""

    name: str
    summary: str
    unit: str
    kernel: ptx.Kernel | None
    expected: Mapping[str, ExpectedShare]
    """By name of a native metric, without its beginning."""
    traffic: tuple[ExpectedTraffic, ...] = ()
    """Of a kind that copies."""
    gpus_needed: int = 1


FLOPS: Final = "FLOP/s"
BYTES: Final = "B/s"

PCIE_LINK, NVLINK_LINK = "pcie", "nvlink"
TX, RX = "tx", "rx"

_BUSY: Final = ExpectedShare(0.9, 1.0)
_QUIET: Final = ExpectedShare(0.0, 0.1)


def _shares(**shares: ExpectedShare) -> Mapping[str, ExpectedShare]:
    return MappingProxyType(shares)


_COMPUTE = {"sm_active_ratio": _BUSY, "graphics_engine_active_ratio": _BUSY, "dram_active_ratio": _QUIET}

TENSOR = Kind(
    "tensor",
    "half-precision matrix products on the tensor cores",
    FLOPS,
    ptx.TENSOR,
    _shares(**_COMPUTE, tensor_active_ratio=ExpectedShare(0.15, 1.0), fp64_active_ratio=_QUIET),
)
FP32 = Kind(
    "fp32",
    "single-precision multiply-adds",
    FLOPS,
    ptx.FP32,
    _shares(
        **_COMPUTE,
        fp32_active_ratio=ExpectedShare(0.4, 1.0),
        tensor_active_ratio=_QUIET,
        fp64_active_ratio=_QUIET,
    ),
)
FP64 = Kind(
    "fp64",
    "double-precision multiply-adds",
    FLOPS,
    ptx.FP64,
    _shares(**_COMPUTE, fp64_active_ratio=ExpectedShare(0.4, 1.0), tensor_active_ratio=_QUIET),
)
FP16 = Kind(
    "fp16",
    "half-precision multiply-adds without tensor cores",
    FLOPS,
    ptx.FP16,
    _shares(
        **_COMPUTE,
        fp16_active_ratio=ExpectedShare(0.25, 1.0),
        tensor_active_ratio=_QUIET,
        fp64_active_ratio=_QUIET,
    ),
)
MEMORY = Kind(
    "memory",
    "reads from the GPU's own memory",
    BYTES,
    ptx.MEMORY,
    _shares(sm_active_ratio=_BUSY, dram_active_ratio=ExpectedShare(0.5, 1.0), tensor_active_ratio=_QUIET),
)
_NO_TENSOR = _shares(tensor_active_ratio=_QUIET)


def _copies(name: str, summary: str, *traffic: ExpectedTraffic, gpus_needed: int = 1) -> Kind:
    return Kind(name, summary, BYTES, None, _NO_TENSOR, traffic, gpus_needed)


PCIE = _copies(
    "pcie",
    "copies between host and GPU, both ways",
    ExpectedTraffic(PCIE_LINK, TX, 0.5),
    ExpectedTraffic(PCIE_LINK, RX, 0.5),
)
PCIE_TX = _copies("pcie-tx", "copies from the GPU to the host", ExpectedTraffic(PCIE_LINK, TX, 1.0))
PCIE_RX = _copies("pcie-rx", "copies from the host to the GPU", ExpectedTraffic(PCIE_LINK, RX, 1.0))
NVLINK = _copies("nvlink", "copies to another GPU", ExpectedTraffic(NVLINK_LINK, TX, 1.0), gpus_needed=2)

KINDS: Final = {kind.name: kind for kind in (TENSOR, FP32, FP64, FP16, MEMORY, PCIE, PCIE_TX, PCIE_RX, NVLINK)}

PROFTESTER_FIELDS: Final = MappingProxyType(
    {
        1001: FP32,  # graphics engine active
        1002: FP32,  # SM active
        1003: FP32,  # SM occupancy: every kernel here fills the SMs
        1004: TENSOR,
        1005: MEMORY,
        1006: FP64,
        1007: FP32,
        1008: FP16,
        1009: PCIE_TX,
        1010: PCIE_RX,
        1011: NVLINK,
        1012: NVLINK,
    }
)
"""dcgmproftester's `-t`: DCGM's profiling field ids."""
