"""One driver session: calls that concern no single GPU, which are the list of GPUs, process names and XIDs.

Everything runs in jobs of the driver's runner. Opening may raise SourceMissing or SourceError; later a failed
or stuck call affects only its own result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpuscope.agent.job_runner import JobRunner
from gpuscope.model.readings import ABSENT, Driver, ErrorEvent, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, cuda_version, known_values
from gpuscope.vendors.nvidia.nvml import library
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls, GpuLostError, address
from gpuscope.vendors.nvidia.nvml.gpu import NvmlGpu
from gpuscope.vendors.nvidia.nvml.library import Library
from gpuscope.vendors.nvidia.nvml.process_list import ProcessNames
from gpuscope.vendors.nvidia.nvml.tiers import NO_REQUESTS, Clocks, TierPlan

# XIDs from the driver's events: every GPU is registered with one event set, which each reading empties.

MAX_PER_READING: Final = 1000  # a failing GPU can report XIDs faster than they are read
_CREATE: Final = "nvmlEventSetCreate"
_REGISTER: Final = "nvmlDeviceRegisterEvents"
_WAIT: Final = "nvmlEventSetWait_v2"
_FREE: Final = "nvmlEventSetFree"


class XidWatch:
    def __init__(self, calls: DriverCalls, now: Callable[[], float] = time.time) -> None:
        self._calls = calls
        self._nvml = calls.library.nvml
        self._now = now
        self._set: Any = None
        self._uuids: Mapping[int, Uuid] = {}

    def watch(self, gpus: Iterable[tuple[Any, Uuid]]) -> bool:
        """Registers these GPUs only: a lost GPU in the set would make every wait fail."""
        self.close()
        uuids = {}
        if self._calls.is_stuck(_CREATE):
            return False
        try:
            self._set = self._call(_CREATE)
        except self._nvml.NVMLError as error:
            self._count(_CREATE, error.value)
            return error.value in library.REFUSED
        for handle, uuid in gpus:
            if self._calls.is_stuck((_REGISTER, uuid)):
                continue
            try:
                self._call(
                    _REGISTER, handle, self._nvml.nvmlEventTypeXidCriticalError, self._set, qualifier=(uuid,)
                )
            except self._nvml.NVMLError as error:
                self._count(_REGISTER, error.value)
                continue
            uuids[address(handle)] = uuid
        self._uuids = uuids
        return True

    def poll(self, into: deque[ErrorEvent]) -> None:
        """Takes all waiting events; stores each at once, because the next call may not return."""
        if self._set is None or not self._uuids or self._calls.is_stuck(_WAIT):
            return
        for _ in range(MAX_PER_READING):
            try:
                self._calls.call(_WAIT, _WAIT, self._take, self._set, self._uuids, into)
            except self._nvml.NVMLError as error:
                if error.value != library.TIMEOUT:
                    self._count("nvmlEventSetWait", error.value)
                break

    def _take(self, event_set: Any, uuids: Mapping[int, Uuid], into: deque[ErrorEvent]) -> None:
        """Stores the event inside the call, because a stuck call may return with an event."""
        data = self._calls.library.function(_WAIT)(event_set, 0)
        uuid = uuids.get(address(data.device))
        if data.eventType == self._nvml.nvmlEventTypeXidCriticalError and uuid is not None:
            into.append(
                ErrorEvent(
                    vendor=NVIDIA,
                    code=str(int(data.eventData)),
                    at=self._now(),
                    monotonic=time.monotonic(),
                    reporter="nvml",
                    gpu_uuid=uuid,
                )
            )

    def _call(self, name: str, *arguments: Any, qualifier: tuple[Any, ...] = ()) -> Any:
        key = (name, *qualifier) if qualifier else name
        return self._calls.call(key, name, self._calls.library.function(name), *arguments, qualifier=qualifier)

    def _count(self, name: str, code: int) -> None:
        # A lost GPU and an ended session are visible in the reading itself.
        if code not in library.REFUSED | library.LOST | library.DRIVER_GONE:
            self._calls.runner.failures[name] += 1

    def close(self) -> None:
        # A stuck call may still use the set, so it is not freed then.
        if self._set is not None and not self._calls.runner.has_stuck_calls:
            with suppress(self._nvml.NVMLError):  # the session may have ended already
                self._call(_FREE, self._set)
        self._set, self._uuids = None, {}


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
