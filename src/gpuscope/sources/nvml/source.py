"""The NVML source: every GPU of this machine, its processes and XIDs, read in tiers through one session.

The driver lists its GPUs when a session begins and never again; so that a GPU that was plugged in, swapped or
reset is seen, a new session is begun when the kernel's list of GPUs changes, and now and then while one is
lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpuscope.readings import ABSENT, Device, Maybe, Process, Reading, Uuid, XidEvent
from gpuscope.sources import Tier
from gpuscope.sources.nvml.clocks import SYSTEM, Clocks
from gpuscope.sources.nvml.events import XidWatch, address
from gpuscope.sources.nvml.gate import Gate, GpuLostError
from gpuscope.sources.nvml.gpu import Gpu
from gpuscope.sources.nvml.library import Library
from gpuscope.sources.nvml.processes import NameBook, ProcessLists
from gpuscope.sources.nvml.profiling import Gpm
from gpuscope.sources.nvml.tiers import NO_REQUESTS, P2P_STATUS, TierPlan

KERNEL_LIST: Final = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, named by its bus address
REPROBE_SECONDS: Final = 300.0  # when what was refused is asked again
LOST_RETRY_SECONDS: Final = 300.0  # when a new session looks for a lost GPU


class NvmlSource:
    def __init__(
        self,
        kernel_list: Path = KERNEL_LIST,
        clocks: Clocks = SYSTEM,
        quick_start: bool = False,
        tier_plan: TierPlan = NO_REQUESTS,
    ) -> None:
        """With `quick_start` the first reading has the fast numbers only: all of eight GPUs take a second."""
        self._tier_plan = tier_plan
        self._peers_tier = tier_plan.tier_of(Tier.SLOW, [(P2P_STATUS, None)])
        self._kernel_list = kernel_list
        self._quick_start = quick_start
        self._clocks = clocks
        self._failures: Counter[str] = Counter()
        self._failing_in: dict[Tier, frozenset[str]] = {}
        self._failing_in_stock: frozenset[str] = frozenset()
        self._gpus: list[Gpu] = []
        self._former: dict[Uuid, Gpu] = {}  # of the session before, while a new one begins
        self._last_xids: tuple[XidEvent, ...] = ()  # of the session before
        self._ghosts: dict[Uuid, Device] = {}  # lost GPUs that the present session does not list
        self._begin()

    def _begin(self) -> None:
        self._library = Library(self._tier_plan)
        self._driver = self._library.driver()
        self._lists = ProcessLists(self._library)
        self._names = NameBook(self._library)
        self._gpm = Gpm(self._library)
        self._xids = XidWatch(self._library, self._failures, self._clocks.now)
        self._watched: frozenset[int] = frozenset()
        self._in_kernel = self._kernel_gpus()
        self._began_at = self._asked_all_at = self._clocks.monotonic()

    def read(self, due: frozenset[Tier]) -> Reading:
        self._failures.clear()
        if Tier.MEDIUM in due or not self._gpus:
            self._take_stock()
            self._failing_in_stock = frozenset(self._failures)
        # The fast numbers of all GPUs first: the slower calls take their time, and would set them apart.
        for tier in (Tier.FAST,) if self._quick_start else Tier:
            self._read_tier(tier, tier in due)
        self._quick_start = False  # what a GPU lacks is read the next time
        processes = self._read_processes(refresh_names=Tier.MEDIUM in due)
        devices = tuple(gpu.to_reading() for gpu in self._gpus)
        return Reading(
            driver=self._driver,
            devices=tuple(sorted(devices + self._still_lost(devices), key=lambda device: device.index)),
            processes=processes,
            xids=self._read_xids(),
            failures=self._failing(due),
        )

    def _read_tier(self, tier: Tier, due: bool) -> None:
        before = Counter(self._failures)
        for gpu in self._gpus:
            if due or gpu.lacks(tier):
                gpu.read(tier)
                if tier is self._peers_tier:
                    gpu.read_peers(self._gpus)
        if due:
            self._failing_in[tier] = frozenset(self._failures - before)

    def _failing(self, due: frozenset[Tier]) -> dict[str, int]:
        """What failed in this reading; and with 0, what failed when its tier was last read."""
        standing = [self._failing_in_stock]
        standing += [names for tier, names in self._failing_in.items() if tier not in due]
        return {**dict.fromkeys(frozenset().union(*standing), 0), **self._failures}

    def _read_processes(self, refresh_names: bool) -> Maybe[tuple[Process, ...]]:
        read = [gpu.processes(self._lists, self._names) for gpu in self._gpus]
        self._names.turn(refresh_names)
        told = [processes for processes in read if processes is not ABSENT]
        if read and not told:
            return ABSENT
        return tuple(process for processes in told for process in processes)

    def _read_xids(self) -> tuple[XidEvent, ...]:
        # Before the lost are taken out: the XID that says why a GPU fell off the bus may be waiting.
        events = self._last_xids + self._xids.poll()
        self._last_xids = ()
        present = [gpu for gpu in self._gpus if not gpu.lost]
        watched = frozenset(address(gpu.gate.handle) for gpu in present)
        if watched != self._watched and self._xids.watch((gpu.gate.handle, gpu.uuid) for gpu in present):
            self._watched = watched
        return events

    # Which GPUs there are

    def _take_stock(self) -> None:
        now = self._clocks.monotonic()
        anything_lost = bool(self._ghosts) or any(gpu.lost for gpu in self._gpus)
        if self._kernel_gpus() != self._in_kernel or (
            anything_lost and now - self._began_at >= LOST_RETRY_SECONDS
        ):
            self._begin_again()
        elif now - self._asked_all_at >= REPROBE_SECONDS:
            self._asked_all_at = now
            for gpu in self._gpus:
                gpu.start_over()
        self._gpus = self._list_gpus()
        self._former = {}

    def _list_gpus(self) -> list[Gpu]:
        """The driver's GPUs in its order; those that are still the same keep what is known of them."""
        known = {(gpu.uuid, address(gpu.gate.handle)): gpu for gpu in self._gpus}
        driver = Gate(self._library, None, self._failures)
        try:
            count = driver.answer(("nvmlDeviceGetCount", ()))
        except GpuLostError:  # said of no GPU in particular: each will tell for itself
            self._failures["nvmlDeviceGetCount"] += 1
            count = ABSENT
        if count is ABSENT:
            return self._gpus
        listed = [self._find_gpu(driver, index, known) for index in range(count)]
        gpus = [gpu for gpu in listed if gpu is not None]
        for gone in set(self._gpus) - set(gpus):
            gone.close()
        return gpus

    def _find_gpu(self, driver: Gate, index: int, known: dict[tuple[Uuid, int], Gpu]) -> Gpu | None:
        handle = uuid = ABSENT
        lost = False
        try:
            handle = driver.answer(("nvmlDeviceGetHandleByIndex", (index,)))
            if handle is not ABSENT:
                gate = Gate(self._library, handle, self._failures)
                uuid = gate.answer(("nvmlDeviceGetUUID", ()))
        except GpuLostError:
            lost = True
        if uuid is ABSENT:
            # It does not say who it is: whoever had this handle, or this place, before.
            before = self._known_at(index, handle)
            if before is None and lost and all(ghost.index != index for ghost in self._ghosts.values()):
                self._failures["nvmlDeviceGetHandleByIndex"] += 1
            return before
        gpu = known.get((uuid, address(handle)))
        if gpu is None:
            gpu = Gpu(gate, index, Uuid(uuid), self._gpm, self._failures, self._clocks)
            if gpu.uuid in self._former:
                gpu.follow(self._former[gpu.uuid])
        gpu.index = index
        return gpu

    def _known_at(self, index: int, handle: Maybe[Any]) -> Gpu | None:
        for gpu in self._gpus:
            if gpu.index == index if handle is ABSENT else address(gpu.gate.handle) == address(handle):
                return gpu
        return None

    def _kernel_gpus(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._kernel_list.iterdir())
        except OSError:
            return frozenset()  # no such list here (WSL, some containers): never any change

    # The session

    def _begin_again(self) -> None:
        """A new session in place of the old; the lost are remembered until someone is in their place."""
        self._ghosts |= {gpu.uuid: gpu.to_reading() for gpu in self._gpus if gpu.lost}
        self._former = {gpu.uuid: gpu for gpu in self._gpus}
        self._last_xids = self._xids.poll()
        self.close()
        self._begin()

    def _still_lost(self, present: Sequence[Device]) -> tuple[Device, ...]:
        """The lost GPUs of former sessions, less those that are back, were replaced, or left the bus."""
        uuids = {device.uuid for device in present}
        places = {device.pci_bus_id for device in present} - {ABSENT}
        on_the_bus = {place.lower() for place in self._in_kernel}
        for uuid, ghost in list(self._ghosts.items()):
            off_the_bus = bool(on_the_bus) and _kernel_name(ghost) not in on_the_bus
            if uuid in uuids or ghost.pci_bus_id in places or off_the_bus:
                del self._ghosts[uuid]
        return tuple(self._ghosts.values())

    def close(self) -> None:
        for gpu in self._gpus:
            gpu.close()
        self._gpus = []
        self._xids.close()
        self._library.close()


def _kernel_name(device: Device) -> str:
    """The kernel writes a bus address with a domain of four digits where the driver writes eight."""
    return "" if device.pci_bus_id is ABSENT else device.pci_bus_id.lower()[4:]
