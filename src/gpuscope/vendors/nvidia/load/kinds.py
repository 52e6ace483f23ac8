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

# The kernels as PTX text, one for each kind of load.
#
# PTX for compute capability 7.0 runs on every newer GPU: the driver compiles it when it is loaded. A kernel
# repeats one block of independent instructions, so that the unit under load never waits for a result, and
# stores its registers at the end, so that no compiler removes the work. `operations` is the exact amount of
# work of one repetition, in floating-point operations or bytes, of one thread (`warp` kernels: of one warp).

VERSION = ".version 6.3\n.target sm_70\n.address_size 64\n"
THREADS = 256
"""Threads per block of every kernel."""

ACCUMULATORS = 8
UNROLLED = 8
"""Each of the accumulators is updated this many times in one repetition."""

WMMA_TILES = 4
WMMA_UNROLLED = 4
WMMA_OPERATIONS = 2 * 16 * 16 * 16
"""A warp multiplies two 16×16 matrices and adds a third."""

LOAD_BYTES = 16
LOADS = 4


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    text: str
    operations: int
    per_warp: bool = False


def _entry(name: str, parameters: str, body: str) -> str:
    return f"{VERSION}\n.visible .entry {name}({parameters})\n.maxntid {THREADS}, 1, 1\n{{\n{body}}}\n"


_THREAD_NUMBER = """\
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
"""

_LOOP_REGISTERS = """\
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
"""

_COMPUTE_PARAMETERS = ".param .u64 out, .param .u32 repetitions"

_LOOP_HEAD = f"""\
{_THREAD_NUMBER}\
    ld.param.u32 %r4, [repetitions];
    ld.param.u64 %rd0, [out];
    cvta.to.global.u64 %rd0, %rd0;
"""

_LOOP_END = """\
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p, %r4, 0;
    @%p bra repeat;
"""


def _fma_kernel(name: str, kind: str, register: str, size: int, factors: tuple[str, str], each: int) -> Kernel:
    """Independent chains of x = x·a + b; |a| < 1 keeps x finite for any number of repetitions."""
    base, digits = int(factors[1][2:], 16), len(factors[1]) - 2
    chains = range(ACCUMULATORS)
    lines = [_LOOP_REGISTERS, f"    .reg .{register} %x<{ACCUMULATORS}>, %a, %b;\n", _LOOP_HEAD]
    lines += [f"    mov.{register} %a, {factors[0]};\n    mov.{register} %b, {factors[1]};\n"]
    # Chains that began alike would stay alike, and the compiler would keep only one of them.
    starts = [f"{factors[1][:2]}{base + chain + 1:0{digits}x}" for chain in chains]
    lines += [f"    mov.{register} %x{chain}, {start};\n" for chain, start in enumerate(starts)]
    lines += ["repeat:\n"]
    lines += [f"    fma.rn.{kind} %x{chain}, %x{chain}, %a, %b;\n" for _ in range(UNROLLED) for chain in chains]
    lines += [_LOOP_END, f"    mad.wide.u32 %rd1, %r3, {size * ACCUMULATORS}, %rd0;\n"]
    lines += [f"    st.global.{register} [%rd1+{size * chain}], %x{chain};\n" for chain in chains]
    text = _entry(name, _COMPUTE_PARAMETERS, "".join([*lines, "    ret;\n"]))
    return Kernel(name, text, each * ACCUMULATORS * UNROLLED)


FP32_KERNEL = _fma_kernel("fp32", "f32", "f32", 4, ("0f3F7FF972", "0f3A83126F"), 2)
FP64_KERNEL = _fma_kernel("fp64", "f64", "f64", 8, ("0d3FEFFF2E48E8A71E", "0d3F50624DD2F1A9FC"), 2)
FP16_KERNEL = _fma_kernel("fp16", "f16x2", "b32", 4, ("0x3bfe3bfe", "0x10001000"), 4)
"""Two numbers in a register: an instruction is four operations."""


def _registers(prefix: str, tile: int, count: int = 8) -> str:
    return "{" + ", ".join(f"%{prefix}{8 * tile + number}" for number in range(count)) + "}"


def _tensor_kernel() -> Kernel:
    """16×16×16 products of half-precision matrices with single-precision sums, kept in registers."""
    lines = [
        _LOOP_REGISTERS,
        "    .reg .b32 %a<8>, %b<8>;\n",
        f"    .reg .f32 %c<{8 * WMMA_TILES}>;\n",
        _LOOP_HEAD,
    ]
    # Different bits in every thread: products of zeros would draw less power than real work.
    lines += ["    and.b32 %r5, %r3, 0x00ff00ff;\n"]
    for number in range(8):
        lines += [f"    xor.b32 %a{number}, %r5, 0x{0x2C002C00 + 0x00110011 * number:08x};\n"]
        lines += [f"    xor.b32 %b{number}, %r5, 0x{0xAC002C00 + 0x00070013 * number:08x};\n"]
    # Tiles that began alike would stay alike, and the compiler would keep only one of them.
    lines += [
        f"    mov.f32 %c{number}, 0f{0x3F800000 + (number << 12):08x};\n" for number in range(8 * WMMA_TILES)
    ]
    lines += ["repeat:\n"]
    product = "    wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {c}, {a}, {b}, {c};\n"
    for _ in range(WMMA_UNROLLED):
        for tile in range(WMMA_TILES):
            c, a, b = _registers("c", tile), _registers("a", 0), _registers("b", 0)
            lines += [product.format(a=a, b=b, c=c)]
    lines += [_LOOP_END, f"    mad.wide.u32 %rd1, %r3, {4 * WMMA_TILES}, %rd0;\n"]
    for tile in range(WMMA_TILES):  # every element counts: the compiler drops products nobody reads
        lines += [f"    add.f32 %c{8 * tile}, %c{8 * tile}, %c{8 * tile + number};\n" for number in range(1, 8)]
        lines += [f"    st.global.f32 [%rd1+{4 * tile}], %c{8 * tile};\n"]
    text = _entry("tensor", _COMPUTE_PARAMETERS, "".join([*lines, "    ret;\n"]))
    return Kernel("tensor", text, WMMA_OPERATIONS * WMMA_TILES * WMMA_UNROLLED, per_warp=True)


TENSOR_KERNEL = _tensor_kernel()


def _memory_kernel() -> Kernel:
    """Reads a buffer much larger than the caches from end to end, `repetitions` times."""
    loads = [
        f"    ld.global.v4.u32 {{%v{4 * load}, %v{4 * load + 1}, %v{4 * load + 2}, %v{4 * load + 3}}}, "
        f"[%rd{2 + load}];\n"
        for load in range(LOADS)
    ]
    sums = [f"    xor.b32 %s, %s, %v{number};\n" for number in range(4 * LOADS)]
    steps = [f"    add.u64 %rd{3 + load}, %rd{2 + load}, %rd7;\n" for load in range(LOADS - 1)]
    body = f"""\
    .reg .pred %p, %q;
    .reg .b32 %r<8>, %v<{4 * LOADS}>, %s;
    .reg .b64 %rd<12>;
{_THREAD_NUMBER}\
    mov.u32 %r5, %nctaid.x;
    mul.lo.u32 %r5, %r5, %r1;
    mul.wide.u32 %rd7, %r5, {LOAD_BYTES};
    mul.lo.u64 %rd8, %rd7, {LOADS};
    ld.param.u32 %r4, [repetitions];
    ld.param.u64 %rd0, [buffer];
    ld.param.u64 %rd6, [bytes];
    cvta.to.global.u64 %rd0, %rd0;
    add.u64 %rd6, %rd6, %rd0;
    mad.wide.u32 %rd1, %r3, {LOAD_BYTES}, %rd0;
    mov.u32 %s, 0;
repeat:
    mov.u64 %rd2, %rd1;
read:
{"".join(steps)}{"".join(loads)}{"".join(sums)}\
    add.u64 %rd2, %rd2, %rd8;
    setp.lt.u64 %q, %rd2, %rd6;
    @%q bra read;
{_LOOP_END}\
    ld.param.u64 %rd9, [out];
    cvta.to.global.u64 %rd9, %rd9;
    mad.wide.u32 %rd10, %r3, 4, %rd9;
    st.global.u32 [%rd10], %s;
    ret;
"""
    parameters = ".param .u64 out, .param .u32 repetitions, .param .u64 buffer, .param .u64 bytes"
    return Kernel("memory", _entry("memory", parameters, body), LOAD_BYTES)


MEMORY_KERNEL = _memory_kernel()

_KERNELS = (TENSOR_KERNEL, FP32_KERNEL, FP64_KERNEL, FP16_KERNEL, MEMORY_KERNEL)
KERNELS = {kernel.name: kernel for kernel in _KERNELS}


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
    kernel: Kernel | None
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
    TENSOR_KERNEL,
    _shares(**_COMPUTE, tensor_active_ratio=ExpectedShare(0.15, 1.0), fp64_active_ratio=_QUIET),
)
FP32 = Kind(
    "fp32",
    "single-precision multiply-adds",
    FLOPS,
    FP32_KERNEL,
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
    FP64_KERNEL,
    _shares(**_COMPUTE, fp64_active_ratio=ExpectedShare(0.4, 1.0), tensor_active_ratio=_QUIET),
)
FP16 = Kind(
    "fp16",
    "half-precision multiply-adds without tensor cores",
    FLOPS,
    FP16_KERNEL,
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
    MEMORY_KERNEL,
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
