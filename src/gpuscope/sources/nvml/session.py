"""One session with the driver: what concerns no single GPU. Which GPUs there are, process names, XIDs.

Everything here runs in jobs of the driver's lane. Opening may raise SourceMissing or SourceError; afterwards a
call that fails or is stuck costs its own answer only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuscope.readings import ABSENT, Driver, Maybe, Uuid, XidEvent
from gpuscope.sources.nvml.clocks import Clocks
from gpuscope.sources.nvml.driver_calls import Gate, GpuLostError, address
from gpuscope.sources.nvml.events import XidWatch
from gpuscope.sources.nvml.gpu import Gpu
from gpuscope.sources.nvml.lane import Lane
from gpuscope.sources.nvml.library import Library
from gpuscope.sources.nvml.process_list import NameBook
from gpuscope.sources.nvml.tiers import NO_REQUESTS, TierPlan

KERNEL_LIST: Final = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, named by its bus address


def kernel_gpus(kernel_list: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in kernel_list.iterdir())
    except OSError:
        return frozenset()  # no such list here (WSL, some containers): never any change


class Session:
    def __init__(
        self, lane: Lane, clocks: Clocks, kernel_list: Path, tier_plan: TierPlan = NO_REQUESTS
    ) -> None:
        self._library = Library(tier_plan)
        self._clocks = clocks
        self._gate = Gate(self._library, lane)
        self._watch = XidWatch(self._gate, clocks.now)
        self._watched: frozenset[int] = frozenset()
        self.names = NameBook(self._gate)
        self.driver: Maybe[Driver] = ABSENT
        self.in_kernel = kernel_gpus(kernel_list)
        self.began_at = clocks.monotonic()
        self.failing_in_stock: frozenset[str] = frozenset()

    def list_gpus(self, known: Sequence[Gpu], former: Mapping[Uuid, Gpu], lost_at: Iterable[int]) -> list[Gpu]:
        """The driver's GPUs in its order; those of `known` that are still the same are kept.

        `former` are those of the session before; `lost_at` the indices where a GPU is known to be lost.
        """
        self._gate.forget()  # these few calls are made again even if they were refused
        if self.driver is ABSENT:
            self.driver = self._read_driver()
        try:
            count = self._gate.answer(("nvmlDeviceGetCount", ()))
        except GpuLostError:  # said of no GPU in particular: each will tell for itself
            self._gate.lane.failures["nvmlDeviceGetCount"] += 1
            count = ABSENT
        listed = list(known)
        if count is not ABSENT:
            found = [self._find_gpu(index, known, former, lost_at) for index in range(count)]
            listed = [gpu for gpu in found if gpu is not None]
        self.failing_in_stock = frozenset(self._gate.lane.failures)
        return listed

    def _read_driver(self) -> Driver:
        cuda = self._system("nvmlSystemGetCudaDriverVersion_v2")
        confidential = self._system("nvmlSystemGetConfComputeState")
        return Driver(
            driver_version=self._system("nvmlSystemGetDriverVersion"),
            nvml_version=self._system("nvmlSystemGetNVMLVersion"),
            cuda_version=ABSENT if cuda is ABSENT else f"{cuda // 1000}.{cuda % 1000 // 10}",
            confidential_compute=ABSENT if confidential is ABSENT else int(confidential.ccFeature),
        )

    def _system(self, name: str) -> Maybe[Any]:
        if self._gate.is_stuck(name):
            return ABSENT
        try:
            return self._gate.call(name, name, self._library.function(name))
        except (self._library.nvml.NVMLError, UnicodeDecodeError):
            return ABSENT

    def _find_gpu(
        self, index: int, known: Sequence[Gpu], former: Mapping[Uuid, Gpu], lost_at: Iterable[int]
    ) -> Gpu | None:
        handle = uuid = ABSENT
        lost = False
        try:
            handle = self._gate.answer(("nvmlDeviceGetHandleByIndex", (index,)))
            if handle is not ABSENT:
                gate = Gate(self._library, self._gate.lane, handle, f"GPU {index}")
                uuid = gate.answer(("nvmlDeviceGetUUID", ()))
        except GpuLostError:
            lost = True
        if uuid is ABSENT:
            # It does not say who it is: whoever had this handle, or this place, before.
            before = _known_at(known, index, handle)
            if before is None and lost and index not in lost_at:
                self._gate.lane.failures["nvmlDeviceGetHandleByIndex"] += 1
            return before
        same = (gpu for gpu in known if (gpu.uuid, address(gpu.gate.handle)) == (uuid, address(handle)))
        gpu = next(same, None)
        if gpu is None:
            lane = Lane(f"GPU {index}", self._clocks, self._gate.lane.stuck_log)
            gpu = Gpu(Gate(self._library, lane, handle, lane.name), index, Uuid(uuid), self._clocks)
            if gpu.uuid in former:
                gpu.follow(former[gpu.uuid])
        gpu.move_to(index)
        return gpu

    def read_xids(self, present: Sequence[tuple[Any, Uuid]], into: deque[XidEvent]) -> None:
        # Before the lost are taken out: the XID that says why a GPU fell off the bus may be waiting.
        self._watch.poll(into)
        watched = frozenset(address(handle) for handle, _ in present)
        if watched != self._watched and self._watch.watch(present):
            self._watched = watched

    def close(self) -> None:
        self._watch.close()
        self._library.close()


def _known_at(known: Sequence[Gpu], index: int, handle: Maybe[Any]) -> Gpu | None:
    for gpu in known:
        if gpu.index == index if handle is ABSENT else address(gpu.gate.handle) == address(handle):
            return gpu
    return None
