"""The child process that loads one GPU: `python -m gpuscope.vendors.nvidia.load.device_process JSON`.

A process of its own, because CUDA opens at most one MIG instance per process, because a driver call that hangs
must not stop the other GPUs, and because the driver frees everything when a process ends, however it ends. The
GPU is chosen by UUID in CUDA_VISIBLE_DEVICES. Each second one JSON line goes to standard output.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import threading
from collections.abc import Callable
from ctypes import c_uint, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.vendors.nvidia.load.cuda import (
    MULTIPROCESSOR_COUNT,
    NO_DEVICE,
    OUT_OF_MEMORY,
    Cuda,
    CudaDevice,
    CudaError,
)
from gpuscope.vendors.nvidia.load.kinds import (
    ACCUMULATORS,
    KINDS,
    LOADS,
    NVLINK,
    PCIE,
    PCIE_RX,
    PCIE_TX,
    THREADS,
    Kind,
)

# Keeps one GPU busy for a given share of the time, and counts the work done.
#
# Work is started in slices of some milliseconds. How long a slice kept the GPU busy is measured on the GPU by
# events; below full load the next slice starts when the pause makes the share right, so neither clock changes
# nor launch latency shift it. At full load the next slice is queued before the last one ends. The thread
# sleeps while it waits, and a stop is seen between two slices.

PERIOD_SECONDS: Final = 1 / 60
"""A tenth of the driver's own sample period, 1/6 s, so that each of its samples sees the same share."""
FULL_SLICE_SECONDS: Final = 0.1
MIN_SLICE_SECONDS: Final = 0.001
MAX_UNITS: Final = 1 << 30
REPORT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Since the load began: seconds, operations or bytes done, seconds the GPU was busy with them."""

    elapsed: float
    amount: float
    busy_seconds: float


class DutyCycle:
    def __init__(
        self, device: CudaDevice, work: Work, target: float, clock: Clock, report: Callable[[Progress], None]
    ) -> None:
        """`target` is the share of the time in which the GPU is busy, above 0 and up to 1."""
        self._device = device
        self._work = work
        self._target = target
        self._clock = clock
        self._report = report
        self._stream = device.stream()
        self._events = [(device.event(), device.event()) for _ in range(2)]
        full = target >= 1
        self._slice_seconds = FULL_SLICE_SECONDS if full else max(MIN_SLICE_SECONDS, target * PERIOD_SECONDS)
        self._units = 1
        self._queued = [0, 0]
        self._amount = 0.0
        self._busy = 0.0

    def run(self, duration: float, stop: threading.Event) -> None:
        self._calibrate(stop)
        self._amount = self._busy = 0.0
        self._began_at = self._clock.monotonic()
        self._reported_at = self._began_at
        if self._target >= 1:
            self._run_without_pauses(duration, stop)
        else:
            self._run_with_pauses(duration, stop)
        self._report_progress()

    def _calibrate(self, stop: threading.Event) -> None:
        """Finds how many units fill a slice, beginning with one."""
        while not stop.is_set():
            self._start(0)
            seconds = self._finish(0)
            if seconds >= MIN_SLICE_SECONDS or self._units >= MAX_UNITS:
                break
            self._units = min(MAX_UNITS, self._units * 4)

    def _run_with_pauses(self, duration: float, stop: threading.Event) -> None:
        end = self._began_at + duration
        next_at = self._began_at
        while next_at < end and not stop.wait(max(0.0, next_at - self._clock.monotonic())):
            self._start(0)
            busy = self._finish(0)
            next_at = max(next_at + busy / self._target, self._clock.monotonic() - PERIOD_SECONDS)
            self._report_if_due()

    def _run_without_pauses(self, duration: float, stop: threading.Event) -> None:
        end = self._began_at + duration
        self._start(0)
        current = 0
        while self._clock.monotonic() < end and not stop.is_set():
            self._start(1 - current)
            self._finish(current)
            current = 1 - current
            self._report_if_due()
        self._finish(current)

    def _start(self, slot: int) -> None:
        first, last = self._events[slot]
        self._device.record(first, self._stream)
        self._work.start(self._units, self._stream)
        self._device.record(last, self._stream)
        self._queued[slot] = self._units

    def _finish(self, slot: int) -> float:
        """Waits for a slice, adjusts the size of the next one, and returns how long the GPU was busy."""
        first, last = self._events[slot]
        self._device.wait(last)
        seconds = self._device.seconds_between(first, last)
        self._busy += seconds
        self._amount += self._queued[slot] * self._work.unit_amount
        if seconds > 0:
            # At most doubled: a first slice that ran at idle clocks says little about the next.
            factor = min(2.0, max(0.1, self._slice_seconds / seconds))
            self._units = max(1, min(MAX_UNITS, round(self._queued[slot] * factor)))
        return seconds

    def _report_if_due(self) -> None:
        if self._clock.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at += REPORT_SECONDS
            self._report_progress()

    def _report_progress(self) -> None:
        elapsed = self._clock.monotonic() - self._began_at
        self._report(Progress(elapsed, self._amount, min(self._busy, elapsed)))


# Units of work on one GPU: a kernel repeated some number of times, or a copy of some number of pieces.
#
# A `Work` starts an amount of work on a stream without waiting, and knows how many operations or bytes one
# unit of it is. How long a unit takes is measured by the control loop, not assumed.

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


PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """What one child does; sent as JSON."""

    kind: str
    duration: float
    target: float
    memory_bytes: int | None = None


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _report(progress: Progress) -> None:
    _print(asdict(progress))


def run_load(load: DeviceLoad, stop: threading.Event) -> None:
    cuda = Cuda()
    kind = KINDS[load.kind]
    count = cuda.device_count()
    if count < kind.gpus_needed:
        raise GpuscopeError(f"{kind.name} needs {kind.gpus_needed} GPUs; CUDA sees {count}")
    devices = [CudaDevice(cuda, ordinal) for ordinal in reversed(range(kind.gpus_needed))]
    try:
        device = devices[-1]  # opened last, so current in this thread
        work = build_work(device, kind, load.memory_bytes, devices[0] if len(devices) > 1 else None)
        DutyCycle(device, work, load.target, SystemClock(), _report).run(load.duration, stop)
    finally:
        for device in reversed(devices):
            device.close()


def main(argv: list[str]) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a parent that is killed leaves no load behind
    try:
        run_load(DeviceLoad(**json.loads(argv[0])), stop)
    except CudaError as error:
        hint = "; is it in use exclusively, or hidden from this container?" if error.code == NO_DEVICE else ""
        _print({"error": f"{error}{hint}"})
        return 1
    except GpuscopeError as error:
        _print({"error": str(error)})
        return error.exit_code
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
