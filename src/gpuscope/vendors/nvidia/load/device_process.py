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
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import GpuscopeError
from gpuscope.vendors.nvidia.load.cuda import NO_DEVICE, Cuda, CudaDevice, CudaError
from gpuscope.vendors.nvidia.load.duty_cycle import DutyCycle, Progress
from gpuscope.vendors.nvidia.load.kinds import KINDS
from gpuscope.vendors.nvidia.load.work import build_work

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
