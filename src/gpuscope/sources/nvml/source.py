"""The NVML source: every GPU of this machine, its processes and XIDs, read in tiers through one session.

`read` makes no driver call itself. It gives each GPU's lane a job (`lane.py`) and waits for most of a cycle; a
GPU whose job takes longer keeps its last numbers until they are stale, and the others are not delayed. The
driver lists its GPUs when a session begins and never again; so that a GPU that was plugged in, swapped or reset
is seen, a new session is begun when the kernel's list of GPUs changes, and now and then while one is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gpuscope.errors import NoAnswerYet, SourceError
from gpuscope.readings import ABSENT, Device, Maybe, Process, Reading, Uuid, XidEvent
from gpuscope.sources import Tier
from gpuscope.sources.nvml.clocks import SYSTEM, Clocks
from gpuscope.sources.nvml.gpu import Gpu
from gpuscope.sources.nvml.lane import MAX_THREADS_LEFT_BEHIND, Lane, Lanes, threads_left_behind
from gpuscope.sources.nvml.session import KERNEL_LIST, Session, kernel_gpus
from gpuscope.sources.nvml.stuck_log import StuckLog
from gpuscope.sources.nvml.tiers import NO_REQUESTS, TierPlan

LOST_RETRY_SECONDS: Final = 300.0  # when a new session looks for a lost GPU
# Lanes start one after the other, since Python lets one thread run at a time and eight that take turns after
# each call cost twice the CPU; but none waits longer than this for the one before.
TURN_SECONDS: Final = 0.02
CLOSE_SECONDS: Final = 0.8
MAX_WAITING_XIDS: Final = 100_000


class NvmlSource:
    def __init__(
        self,
        kernel_list: Path = KERNEL_LIST,
        clocks: Clocks = SYSTEM,
        quick_start: bool = False,
        reading_seconds: float = 0.8,
        stale_seconds: float = 5.0,
        tier_plan: TierPlan = NO_REQUESTS,
    ) -> None:
        """With `quick_start` the first reading has the fast numbers only: all of eight GPUs take a second.

        `reading_seconds` is the longest that `read` waits for the driver; `stale_seconds` how long the numbers
        of a GPU that does not answer are repeated.
        """
        if threads_left_behind() >= MAX_THREADS_LEFT_BEHIND:
            raise SourceError(f"{threads_left_behind()} driver calls of earlier sessions have not returned")
        self._tier_plan = tier_plan
        self._kernel_list = kernel_list
        self._quick_start = quick_start
        self._clocks = clocks
        self._reading_seconds = reading_seconds
        self._stale_seconds = stale_seconds
        self._lanes = Lanes(clocks)
        stuck_log = StuckLog(lambda: any(gpu.lane.idle for gpu in self._gpus))
        self._driver_lane = Lane("the driver", clocks, stuck_log)
        self._answered_before = False  # the reading before this one was given
        self._session: Session | None = None
        self._listed: list[Gpu] | None = None  # what the driver's lane found and nobody has looked at yet
        self._gpus: list[Gpu] = []
        self._former: dict[Uuid, Gpu] = {}  # of the session before, while a new one begins
        self._xids: deque[XidEvent] = deque(maxlen=MAX_WAITING_XIDS)
        self._is_first = True  # no reading was given yet
        self._ghosts: dict[Uuid, Device] = {}  # lost GPUs that the present session does not list
        self._lanes.start(self._driver_lane, self._open_session, replaceable=False)
        self._lanes.wait([self._driver_lane], clocks.monotonic() + reading_seconds)
        if self._driver_lane.error is not None:
            self._driver_lane.stop()
            raise self._driver_lane.error

    def read(self, due: frozenset[Tier]) -> Reading:
        until = self._clocks.monotonic() + self._reading_seconds
        session = self._opened(until)
        self._driver_lane.look(self._lanes.finished)
        if Tier.MEDIUM in due or not self._gpus:
            session = self._take_stock(session, until)
        self._take_over_list()
        failures = self._read_gpus(due, until)
        self._read_names_and_xids(session, Tier.MEDIUM in due, until)
        self._tell_stuck_calls()
        if not self._has_answered():
            raise NoAnswerYet(self._what_is_awaited())
        self._is_first = False
        devices = tuple(self._to_devices())
        return Reading(
            driver=session.driver,
            devices=tuple(
                sorted(devices + self._still_lost(session, devices), key=lambda device: device.index)
            ),
            processes=self._to_processes(session),
            xids=self._take_xids(),
            failures=self._failing(session, failures),
            unfinished=any(not (lane.idle or lane.blocked) for lane in self._all_lanes()),
        )

    def _tell_stuck_calls(self) -> None:
        """After a second reading in turn: when a driver that blocked goes on, its calls return one by one."""
        has_answered = self._has_answered()
        if has_answered and self._answered_before:
            for lane in self._all_lanes():
                lane.tell_stuck_calls()
        self._answered_before = has_answered

    def _has_answered(self) -> bool:
        """Whether there is anything new. The first reading waits for every GPU that may still answer."""
        if not self._gpus:
            return self._driver_lane.idle
        if self._is_first and any(gpu.device is None for gpu in self._gpus):
            return False
        return any(gpu.lane.idle for gpu in self._gpus)

    # The session

    def _open_session(self) -> None:
        self._session = Session(self._driver_lane, self._clocks, self._kernel_list, self._tier_plan)

    def _opened(self, until: float) -> Session:
        if self._session is None:
            self._lanes.wait([self._driver_lane], until)
            self._raise_if_failed(self._driver_lane)
        if self._session is None:
            raise NoAnswerYet("nvmlInit has not returned")
        return self._session

    def _take_stock(self, session: Session, until: float) -> Session:
        if self._needs_new_session(session) and self._nothing_in_flight():
            session = self._begin_again(session, until)
        if self._driver_lane.idle:
            self._lanes.start(self._driver_lane, partial(self._list_gpus, session))
            # The known GPUs have the rest of the time, should the list not come.
            self._lanes.wait([self._driver_lane], until - self._reading_seconds / 2)
        self._raise_if_failed(self._driver_lane)
        return session

    def _list_gpus(self, session: Session) -> None:
        lost_at = [ghost.index for ghost in self._ghosts.values()]
        self._listed = session.list_gpus(self._gpus, self._former, lost_at)

    def _take_over_list(self) -> None:
        if self._listed is None or not self._driver_lane.idle:
            return
        listed, self._listed = self._listed, None
        for gone in set(self._gpus) - set(listed):
            gone.lane.end_with(gone.close, self._lanes.finished)
        self._gpus, self._former = listed, {}

    def _needs_new_session(self, session: Session) -> bool:
        anything_lost = bool(self._ghosts) or any(gpu.lost for gpu in self._gpus)
        asked_long_ago = self._clocks.monotonic() - session.began_at >= LOST_RETRY_SECONDS
        return kernel_gpus(self._kernel_list) != session.in_kernel or (anything_lost and asked_long_ago)

    def _nothing_in_flight(self) -> bool:
        """Ending a session under a call would end the process; a stuck call therefore puts it off."""
        return all(lane.idle and not lane.has_stuck_calls for lane in self._all_lanes())

    def _all_lanes(self) -> list[Lane]:
        return [self._driver_lane, *(gpu.lane for gpu in self._gpus)]

    def _begin_again(self, session: Session, until: float) -> Session:
        """A new session in place of the old; the lost are remembered until someone is in their place."""
        self._ghosts |= {gpu.uuid: gpu.to_reading() for gpu in self._gpus if gpu.lost}
        self._former = {gpu.uuid: gpu for gpu in self._gpus}
        self._close_gpus(until)
        self._session = None
        self._lanes.start(self._driver_lane, partial(self._replace_session, session), replaceable=False)
        return self._opened(until)

    def _replace_session(self, session: Session) -> None:
        session.read_xids([], self._xids)
        session.close()
        self._open_session()

    def _close_gpus(self, until: float) -> None:
        lanes = [gpu.lane for gpu in self._gpus]
        for gpu in self._gpus:
            gpu.lane.end_with(gpu.close, self._lanes.finished)
        self._end(lanes, until)
        self._gpus = []

    def _end(self, lanes: Sequence[Lane], until: float) -> None:
        self._lanes.wait(lanes, until)
        for lane in lanes:
            if not lane.idle:
                lane.stop()

    # The GPUs

    def _read_gpus(self, due: frozenset[Tier], until: float) -> Counter[str]:
        """Gives each GPU its jobs: the fast numbers of all first, for the slower calls would set them apart."""
        later: dict[Gpu, list[Tier]] = {}
        awaited: list[Lane] = []
        for gpu in self._gpus:
            taken_over = gpu.lane.look(self._lanes.finished)
            if gpu.lane.idle:
                gpu.start_over_if_due(due)
                later[gpu] = self._later_tiers(gpu, due)
                self._start_reading(gpu, [Tier.FAST], due, with_processes=not later[gpu])
            elif not taken_over:
                gpu.owed |= due
                continue  # still at an earlier job, and waited for then
            awaited.append(gpu.lane)
            self._lanes.wait([gpu.lane], min(until, self._clocks.monotonic() + TURN_SECONDS))
        self._lanes.wait(awaited, until)
        self._quick_start = False  # what a GPU lacks is read the next time
        for gpu, tiers in later.items():
            if tiers and gpu.lane.idle and gpu.lane.error is None:
                self._start_reading(gpu, tiers, due, with_processes=True)
                self._lanes.wait([gpu.lane], min(until, self._clocks.monotonic() + TURN_SECONDS))
            elif tiers:
                gpu.owed |= due
        self._lanes.wait(awaited, until)
        return self._settle(due)

    def _later_tiers(self, gpu: Gpu, due: frozenset[Tier]) -> list[Tier]:
        tiers = () if self._quick_start else (Tier.MEDIUM, Tier.SLOW)
        return [tier for tier in tiers if tier in due or tier in gpu.owed or gpu.lacks(tier)]

    def _start_reading(self, gpu: Gpu, tiers: list[Tier], due: frozenset[Tier], with_processes: bool) -> None:
        wanted = due | gpu.owed
        gpu.owed -= set(tiers)
        self._lanes.start(gpu.lane, partial(gpu.read_tiers, tiers, wanted, self._gpus, with_processes))

    def _settle(self, due: frozenset[Tier]) -> Counter[str]:
        """Takes in what the finished jobs brought."""
        failures: Counter[str] = Counter()
        now = self._clocks.monotonic()
        for gpu in self._gpus:
            if not gpu.lane.idle:
                if now - gpu.answered_at > self._stale_seconds:
                    gpu.device, gpu.processes = gpu.to_identity(), ABSENT
                continue
            error, gpu.lane.error = gpu.lane.error, None
            if isinstance(error, SourceError):
                raise error
            gpu.answered_at = now
            gpu.failing = gpu.take_failures(due)
            if error is None:
                gpu.device = gpu.to_reading()
            else:  # a defect of ours, met on this GPU: the others go on
                gpu.device, gpu.processes = gpu.to_identity(), ABSENT
                gpu.failing[f"reading GPU {gpu.index} ({type(error).__name__}: {error})"] = 1
            if gpu.failing:
                failures.update(gpu.failing)
        return failures

    def _failing(self, session: Session, failures: Counter[str]) -> dict[str, int]:
        standing = {name for gpu in self._gpus if not gpu.lane.idle for name in gpu.failing}
        if self._driver_lane.idle:
            failures.update(self._driver_lane.failures)
            self._driver_lane.failures.clear()
        standing |= session.failing_in_stock | set(failures)
        return {**dict.fromkeys(sorted(standing), 0), **{name: n for name, n in failures.items() if n}}

    def _to_devices(self) -> list[Device]:
        return [gpu.device for gpu in self._gpus if gpu.device is not None]

    def _still_lost(self, session: Session, present: Sequence[Device]) -> tuple[Device, ...]:
        """The lost GPUs of former sessions, less those that are back, were replaced, or left the bus."""
        uuids = {device.uuid for device in present}
        places = {device.pci_bus_id for device in present} - {ABSENT}
        on_the_bus = {place.lower() for place in session.in_kernel}
        for uuid, ghost in list(self._ghosts.items()):
            off_the_bus = bool(on_the_bus) and _kernel_name(ghost) not in on_the_bus
            if uuid in uuids or ghost.pci_bus_id in places or off_the_bus:
                del self._ghosts[uuid]
        return tuple(self._ghosts.values())

    # What the driver's lane brings

    def _read_names_and_xids(self, session: Session, refresh: bool, until: float) -> None:
        if not self._driver_lane.idle:
            return
        pids = {pid for gpu in self._gpus for pid in gpu.pids()}
        present = [(gpu.gate.handle, gpu.uuid) for gpu in self._gpus if not gpu.lost]

        def job() -> None:
            session.read_xids(present, self._xids)
            session.names.learn(pids, refresh)

        self._lanes.start(self._driver_lane, job)
        self._lanes.wait([self._driver_lane], max(until, self._clocks.monotonic() + TURN_SECONDS))
        self._raise_if_failed(self._driver_lane)

    def _to_processes(self, session: Session) -> Maybe[tuple[Process, ...]]:
        told = [(gpu, gpu.processes) for gpu in self._gpus if gpu.processes is not ABSENT]
        if self._gpus and not told:
            return ABSENT
        return tuple(
            process
            for gpu, found in told
            for part in found
            for process in part.to_processes(session.names, gpu.uuid)
        )

    def _take_xids(self) -> tuple[XidEvent, ...]:
        return tuple(self._xids.popleft() for _ in range(len(self._xids)))

    def _raise_if_failed(self, lane: Lane) -> None:
        error, lane.error = lane.error, None
        if error is not None:
            raise error

    def _what_is_awaited(self) -> str:
        calls = [call for lane in self._all_lanes() for call in lane.calls()]
        if not calls:
            return "the driver is slow"
        more = f" and {len(calls) - 1} more calls have" if len(calls) > 1 else " has"
        return f"{min(calls, key=lambda call: call.since)}{more} not returned"

    def close(self) -> None:
        """Ends the session. A call that does not return keeps nobody: its thread is left behind."""
        until = self._clocks.monotonic() + CLOSE_SECONDS
        self._close_gpus(until)
        session, self._session = self._session, None
        if session is not None:
            self._driver_lane.end_with(session.close, self._lanes.finished)
            self._end([self._driver_lane], until)
        else:
            self._driver_lane.stop()


def _kernel_name(device: Device) -> str:
    """The kernel writes a bus address with a domain of four digits where the driver writes eight."""
    return "" if device.pci_bus_id is ABSENT else device.pci_bus_id.lower()[4:]
