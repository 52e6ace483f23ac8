"""One driver session: calls that concern no single GPU, which are the list of GPUs, process names and XIDs.

Everything runs in jobs of the driver's runner. Opening may raise SourceMissing or SourceError; later a failed
or stuck call affects only its own result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpuscope.agent.job_runner import JobRunner
from gpuscope.model.readings import ABSENT, Driver, ErrorEvent, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import cuda_version, known_values
from gpuscope.vendors.nvidia.nvml.clocks import Clocks
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls, GpuLostError, address
from gpuscope.vendors.nvidia.nvml.events import XidWatch
from gpuscope.vendors.nvidia.nvml.gpu import NvmlGpu
from gpuscope.vendors.nvidia.nvml.library import Library
from gpuscope.vendors.nvidia.nvml.process_list import ProcessNames
from gpuscope.vendors.nvidia.nvml.tiers import NO_REQUESTS, TierPlan

KERNEL_LIST: Final = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, named by its bus address


def kernel_gpus(kernel_list: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in kernel_list.iterdir())
    except OSError:
        return frozenset()  # WSL and some containers have no such list; it then never changes


class Session:
    def __init__(
        self, runner: JobRunner, clocks: Clocks, kernel_list: Path, tier_plan: TierPlan = NO_REQUESTS
    ) -> None:
        self._library = Library(tier_plan)
        self._clocks = clocks
        self._calls = DriverCalls(self._library, runner)
        self._watch = XidWatch(self._calls, clocks.now)
        self._watched: frozenset[int] = frozenset()
        self.names = ProcessNames(self._calls)
        self.driver: Maybe[Driver] = ABSENT
        self.in_kernel = kernel_gpus(kernel_list)
        self.began_at = clocks.monotonic()
        self.failing_in_list: frozenset[str] = frozenset()

    def list_gpus(
        self, known: Sequence[NvmlGpu], previous: Mapping[Uuid, NvmlGpu], lost_at: Iterable[int]
    ) -> list[NvmlGpu]:
        """The driver's GPUs in its order; unchanged GPUs of `known` are kept.

        `previous` are the GPUs of the previous session, `lost_at` the indices of lost GPUs.
        """
        self._calls.retry_refused()  # these few calls are repeated even if they were refused
        if self.driver is ABSENT:
            self.driver = self._read_driver()
            self._library.driver_version = self.driver.driver_version
        try:
            count = self._calls.result(("nvmlDeviceGetCount", ()))
        except GpuLostError:  # not about one GPU; calls to each GPU show which is lost
            self._calls.runner.failures["nvmlDeviceGetCount"] += 1
            count = ABSENT
        listed = list(known)
        self.driver = replace(self.driver, gpu_count=count)
        if count is not ABSENT:
            found = [self._find_gpu(index, known, previous, lost_at) for index in range(count)]
            listed = [gpu for gpu in found if gpu is not None]
        self.failing_in_list = frozenset(self._calls.runner.failures)
        return listed

    def _read_driver(self) -> Driver:
        cuda = self._system("nvmlSystemGetCudaDriverVersion_v2")
        confidential = self._system("nvmlSystemGetConfComputeState")
        return Driver(
            driver_version=self._system("nvmlSystemGetDriverVersion"),
            library_versions=known_values(
                nvml=self._system("nvmlSystemGetNVMLVersion"),
                cuda=ABSENT if cuda is ABSENT else cuda_version(cuda),
            ),
            modes=known_values(
                confidential_compute=ABSENT if confidential is ABSENT else int(confidential.ccFeature)
            ),
        )

    def _system(self, name: str) -> Maybe[Any]:
        if self._calls.is_stuck(name):
            return ABSENT
        try:
            return self._calls.call(name, name, self._library.function(name))
        except (self._library.nvml.NVMLError, UnicodeDecodeError):
            return ABSENT

    def _find_gpu(
        self, index: int, known: Sequence[NvmlGpu], previous: Mapping[Uuid, NvmlGpu], lost_at: Iterable[int]
    ) -> NvmlGpu | None:
        handle = uuid = ABSENT
        lost = False
        try:
            handle = self._calls.result(("nvmlDeviceGetHandleByIndex", (index,)))
            if handle is not ABSENT:
                calls = DriverCalls(self._library, self._calls.runner, handle, f"GPU {index}")
                uuid = calls.result(("nvmlDeviceGetUUID", ()))
        except GpuLostError:
            lost = True
        if uuid is ABSENT:
            # The UUID is unknown: assume the GPU that had this handle or this index before.
            before = _known_at(known, index, handle)
            if before is None and lost and index not in lost_at:
                self._calls.runner.failures["nvmlDeviceGetHandleByIndex"] += 1
            return before
        same = (gpu for gpu in known if (gpu.uuid, address(gpu.calls.handle)) == (uuid, address(handle)))
        gpu = next(same, None)
        if gpu is None:
            runner = JobRunner(f"GPU {index}", self._clocks, self._calls.runner.stuck_call_log)
            gpu = NvmlGpu(
                DriverCalls(self._library, runner, handle, runner.name), index, Uuid(uuid), self._clocks
            )
            if gpu.uuid in previous:
                gpu.continue_from(previous[gpu.uuid])
        gpu.move_to(index)
        return gpu

    def read_xids(self, present: Sequence[tuple[Any, Uuid]], into: deque[ErrorEvent]) -> None:
        # Before lost GPUs are removed: the XID of a GPU that fell off the bus may be waiting.
        self._watch.poll(into)
        watched = frozenset(address(handle) for handle, _ in present)
        if watched != self._watched and self._watch.watch(present):
            self._watched = watched

    def close(self) -> None:
        self._watch.close()
        self._library.close()


def _known_at(known: Sequence[NvmlGpu], index: int, handle: Maybe[Any]) -> NvmlGpu | None:
    for gpu in known:
        if gpu.index == index if handle is ABSENT else address(gpu.calls.handle) == address(handle):
            return gpu
    return None
