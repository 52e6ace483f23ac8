"""Units of work on one GPU: a kernel repeated some number of times, or a copy of some number of pieces.

A `Work` starts an amount of work on a stream without waiting, and knows how many operations or bytes one unit
of it is. How long a unit takes is measured by the control loop, not assumed.
"""

from __future__ import annotations

from ctypes import c_uint, c_uint64, c_void_p
from typing import Final, Protocol

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.vendors.nvidia.load.cuda import MULTIPROCESSOR_COUNT, OUT_OF_MEMORY, CudaDevice, CudaError
from gpuscope.vendors.nvidia.load.kinds import NVLINK, PCIE, PCIE_RX, PCIE_TX, Kind
from gpuscope.vendors.nvidia.load.ptx import ACCUMULATORS, LOADS, THREADS

WARP: Final = 32
MAX_RESULT_BYTES: Final = 8 * ACCUMULATORS
"""What one thread of any kernel stores at its end."""

COPY_BYTES: Final = 16 << 20
DEFAULT_BUFFER_BYTES: Final = 2 << 30
"""Many times the largest cache, so that reads reach the memory."""
SHARE_OF_FREE_MEMORY: Final = 0.8


class Work(Protocol):
    unit_amount: float
    """Operations or bytes of one unit."""

    def start(self, units: int, stream: c_void_p) -> None:
        """Queues that many units; returns at once."""


class KernelWork:
    """One unit is one repetition of the kernel's block, in every thread of a grid that fills the GPU."""

    def __init__(self, device: CudaDevice, kind: Kind, memory_bytes: int | None) -> None:
        if kind.kernel is None:
            raise ValueError(kind.name)
        require_capability(device)
        self._device = device
        self._function = device.load(kind.kernel.text, kind.kernel.name)
        blocks_each = max(1, device.blocks_per_multiprocessor(self._function, THREADS))
        self._blocks = blocks_each * device.attribute(MULTIPROCESSOR_COUNT)
        threads = self._blocks * THREADS
        self._arguments = [c_uint64(device.allocate(threads * MAX_RESULT_BYTES))]
        workers = threads // WARP if kind.kernel.per_warp else threads
        self.unit_amount = float(kind.kernel.operations * workers)
        self._buffer: list[c_uint64] = []
        if kind.kernel.name == "memory":
            stride = kind.kernel.operations * LOADS * threads
            size = buffer_bytes(device, memory_bytes) // stride * stride
            if size == 0:
                raise UsageError(f"--memory: at least {stride} bytes are needed to load this GPU's memory")
            self._buffer = [c_uint64(device.allocate(size)), c_uint64(size)]
            self.unit_amount = float(size)
        elif memory_bytes is not None:
            device.allocate(buffer_bytes(device, memory_bytes))  # held, so that memory panels move too

    def start(self, units: int, stream: c_void_p) -> None:
        arguments = [*self._arguments, c_uint(units), *self._buffer]
        self._device.launch(self._function, self._blocks, THREADS, stream, arguments)


class CopyWork:
    """One unit is one piece copied in each direction of the kind."""

    def __init__(self, device: CudaDevice, kind: Kind, peer: CudaDevice | None) -> None:
        self._device = device
        self._kind = kind
        self._peer = peer
        self._on_device = device.allocate(2 * COPY_BYTES)
        self._other = peer.allocate(COPY_BYTES) if peer is not None else device.allocate_host(2 * COPY_BYTES)
        self.unit_amount = float(COPY_BYTES * (2 if kind is PCIE else 1))

    def start(self, units: int, stream: c_void_p) -> None:
        for _ in range(units):
            if self._kind is NVLINK and self._peer is not None:
                self._device.copy_to_peer(self._peer, self._other, self._on_device, COPY_BYTES, stream)
            if self._kind in (PCIE, PCIE_RX):
                self._device.copy_to_device(self._on_device, self._other, COPY_BYTES, stream)
            if self._kind in (PCIE, PCIE_TX):
                there, here = self._other + COPY_BYTES, self._on_device + COPY_BYTES
                self._device.copy_to_host(there, here, COPY_BYTES, stream)


def require_capability(device: CudaDevice) -> None:
    major, minor = device.capability()
    if major < 7:
        raise GpuscopeError(f"compute capability {major}.{minor}: loads need 7.0 (Volta) or newer")


def buffer_bytes(device: CudaDevice, wanted: int | None) -> int:
    free = device.free_bytes()
    if wanted is None:
        return min(DEFAULT_BUFFER_BYTES, int(free * SHARE_OF_FREE_MEMORY))
    if wanted > free:
        raise UsageError(f"--memory: {wanted} bytes requested, {free} free on this GPU")
    return wanted


def build_work(
    device: CudaDevice, kind: Kind, memory_bytes: int | None, peer: CudaDevice | None = None
) -> Work:
    try:
        if kind.kernel is not None:
            return KernelWork(device, kind, memory_bytes)
        if kind is NVLINK and (peer is None or not device.reaches(peer)):
            raise GpuscopeError("nvlink: the two GPUs cannot reach each other directly")
        return CopyWork(device, kind, peer)
    except CudaError as error:
        if error.code == OUT_OF_MEMORY:
            raise GpuscopeError(f"not enough free memory on this GPU ({error})") from None
        raise
