"""The CUDA driver API by ctypes: only the calls a load needs, each checked.

`libcuda.so.1` comes with the driver; no toolkit is needed. Every call goes through `Cuda.call`, which turns an
error code into a `CudaError` that names the call. Handles are plain integers. The primary context is used: it
ends with the process, whatever happens to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

from gpuscope.base.errors import GpuscopeError, NoGpuReadable

LIBRARY: Final = "libcuda.so.1"

OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100

BLOCKING_SYNC: Final = 0x04
"""Context flag: a thread that waits for the GPU sleeps instead of spinning."""

COMPUTE_CAPABILITY_MAJOR: Final = 75
COMPUTE_CAPABILITY_MINOR: Final = 76
MULTIPROCESSOR_COUNT: Final = 16


class CudaError(GpuscopeError):
    """A call that failed, with the driver's code and its name for it."""

    def __init__(self, function: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{function}: {name} ({text})")
        self.function = function
        self.code = code


class Cuda:
    """The loaded driver library."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NoGpuReadable(
                f"no CUDA driver: {error}. Install the NVIDIA driver, or in a container use the NVIDIA runtime"
            ) from None
        self.call("cuInit", c_uint(0))

    def call(self, function: str, *arguments: Any) -> None:
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            raise GpuscopeError(f"the driver has no {function}: it is older than CUDA 11") from None
        code = int(entry(*arguments))
        if code:
            raise CudaError(
                function, code, self._text("cuGetErrorName", code), self._text("cuGetErrorString", code)
            )

    def _text(self, function: str, code: int) -> str:
        text = c_char_p()
        getattr(self._library, function)(c_int(code), byref(text))
        return (text.value or b"unknown error").decode("utf-8", "replace")

    def device_count(self) -> int:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value


class CudaDevice:
    """A GPU or MIG instance with its primary context, current in the calling thread."""

    def __init__(self, cuda: Cuda, ordinal: int) -> None:
        self._cuda = cuda
        device = c_int()
        cuda.call("cuDeviceGet", byref(device), c_int(ordinal))
        self._device = device.value
        cuda.call("cuDevicePrimaryCtxSetFlags_v2", device, c_uint(BLOCKING_SYNC))
        context = c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._context = context
        self._allocations: list[int] = []
        self._host_allocations: list[int] = []
        self._modules: list[c_void_p] = []
        self._streams: list[c_void_p] = []
        self._events: list[c_void_p] = []
        self.make_current()

    def make_current(self) -> None:
        self._cuda.call("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int:
        value = c_int()
        self._cuda.call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(self._device))
        return value.value

    def capability(self) -> tuple[int, int]:
        return self.attribute(COMPUTE_CAPABILITY_MAJOR), self.attribute(COMPUTE_CAPABILITY_MINOR)

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        pointer = c_uint64()
        self._cuda.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        self._allocations.append(pointer.value)
        return pointer.value

    def allocate_host(self, size: int) -> int:
        """Page-locked memory: the GPU copies from it and to it without the CPU."""
        pointer = c_void_p()
        self._cuda.call("cuMemHostAlloc", byref(pointer), c_size_t(size), c_uint(0))
        address = pointer.value or 0
        self._host_allocations.append(address)
        return address

    def load(self, text: str, name: str) -> c_void_p:
        """Compiles PTX for this GPU and returns the kernel."""
        module, function = c_void_p(), c_void_p()
        source = c_char_p(text.encode("ascii"))
        self._cuda.call("cuModuleLoadDataEx", byref(module), source, c_uint(0), None, None)
        self._modules.append(module)
        self._cuda.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode("ascii")))
        return function

    def blocks_per_multiprocessor(self, function: c_void_p, threads: int) -> int:
        count = c_int()
        self._cuda.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(count), function, c_int(threads), c_size_t(0)
        )
        return count.value

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self._cuda.call("cuStreamCreate", byref(stream), c_uint(1))  # 1: independent of the default stream
        self._streams.append(stream)
        return stream

    def event(self) -> c_void_p:
        event = c_void_p()
        self._cuda.call("cuEventCreate", byref(event), c_uint(1))  # 1: a thread that waits for it sleeps
        self._events.append(event)
        return event

    def record(self, event: c_void_p, stream: c_void_p) -> None:
        self._cuda.call("cuEventRecord", event, stream)

    def wait(self, event: c_void_p) -> None:
        self._cuda.call("cuEventSynchronize", event)

    def seconds_between(self, start: c_void_p, end: c_void_p) -> float:
        milliseconds = c_float()
        self._cuda.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value / 1000

    def launch(
        self, function: c_void_p, blocks: int, threads: int, stream: c_void_p, arguments: Sequence[Any]
    ) -> None:
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid = (c_uint(blocks), c_uint(1), c_uint(1), c_uint(threads), c_uint(1), c_uint(1))
        self._cuda.call("cuLaunchKernel", function, *grid, c_uint(0), stream, pointers, None)

    def copy_to_device(self, device: int, host: int, size: int, stream: c_void_p) -> None:
        self._cuda.call("cuMemcpyHtoDAsync_v2", c_uint64(device), c_void_p(host), c_size_t(size), stream)

    def copy_to_host(self, host: int, device: int, size: int, stream: c_void_p) -> None:
        self._cuda.call("cuMemcpyDtoHAsync_v2", c_void_p(host), c_uint64(device), c_size_t(size), stream)

    def copy_to_peer(self, other: CudaDevice, target: int, source: int, size: int, stream: c_void_p) -> None:
        arguments = (c_uint64(target), other._context, c_uint64(source), self._context, c_size_t(size), stream)
        self._cuda.call("cuMemcpyPeerAsync", *arguments)

    def reaches(self, other: CudaDevice) -> bool:
        """Whether copies to the other GPU go directly, not through the host."""
        answer = c_int()
        self._cuda.call("cuDeviceCanAccessPeer", byref(answer), c_int(self._device), c_int(other._device))
        return bool(answer.value)

    def close(self) -> None:
        """Frees everything and gives the context back."""
        self.make_current()
        self._cuda.call("cuCtxSynchronize")
        while self._events:
            self._cuda.call("cuEventDestroy_v2", self._events.pop())
        while self._streams:
            self._cuda.call("cuStreamDestroy_v2", self._streams.pop())
        while self._modules:
            self._cuda.call("cuModuleUnload", self._modules.pop())
        while self._allocations:
            self._cuda.call("cuMemFree_v2", c_uint64(self._allocations.pop()))
        while self._host_allocations:
            self._cuda.call("cuMemFreeHost", c_void_p(self._host_allocations.pop()))
        self._cuda.call("cuDevicePrimaryCtxRelease_v2", c_int(self._device))
