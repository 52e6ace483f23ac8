"""The NVML source: every GPU of this machine with processes and XIDs, read in tiers through one session.

`read` makes no driver call itself. It starts a job on each GPU's runner (`job_runner.py`) and waits for most of
a cycle. A GPU whose job takes longer keeps its last numbers until they are stale and does not delay other GPUs.
The driver lists its GPUs only when a session starts; a new session is therefore started when the kernel's list
of GPUs changes, and at intervals while a GPU is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gpuscope.agent.job_runner import (
    MAX_ABANDONED_THREADS,
    JobRunner,
    JobRunners,
    StuckCallLog,
    abandoned_threads,
)
from gpuscope.base.errors import NoAnswerYet, SourceError
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, Maybe, Process, Reading, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.nvml.gpu import NvmlGpu
from gpuscope.vendors.nvidia.nvml.session import KERNEL_LIST, Session, kernel_gpus
from gpuscope.vendors.nvidia.nvml.tiers import NO_REQUESTS, SYSTEM, Clocks, TierPlan

LOST_RETRY_SECONDS: Final = 300.0  # interval of new sessions while a GPU is lost
# Runners start one after another: Python runs one thread at a time, and eight threads that alternate after each
# call take twice the CPU time. No runner waits longer than this for the previous one.
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
        """With `quick_start` the first reading has the fast tier only: all tiers of eight GPUs take a second.

        `read` waits at most `reading_seconds` for the driver. The numbers of a GPU that does not answer are
        repeated for `stale_seconds`.
        """
        if abandoned_threads() >= MAX_ABANDONED_THREADS:
            raise SourceError(f"{abandoned_threads()} driver calls of earlier sessions have not returned")
        self._tier_plan = tier_plan
        self._kernel_list = kernel_list
        self._quick_start = quick_start
        self._clocks = clocks
        self._reading_seconds = reading_seconds
        self._stale_seconds = stale_seconds
        self._runners = JobRunners(clocks)
        stuck_call_log = StuckCallLog(lambda: any(gpu.runner.idle for gpu in self.gpus))
        self.driver_runner = JobRunner("the driver", clocks, stuck_call_log)
        self._answered_before = False  # whether the previous read returned a reading
        self.session: Session | None = None
        self._new_list: list[NvmlGpu] | None = None  # set by the driver's runner, not adopted yet
        self.gpus: list[NvmlGpu] = []
        self._previous_gpus: dict[Uuid, NvmlGpu] = {}  # of the previous session, while a new one starts
        self._xids: deque[ErrorEvent] = deque(maxlen=MAX_WAITING_XIDS)
        self._is_first = True  # no reading was returned yet
        self._lost_devices: dict[Uuid, Device] = {}  # lost GPUs that the current session does not list
        self._runners.start(self.driver_runner, self._open_session, replaceable=False)
        self._runners.wait([self.driver_runner], clocks.monotonic() + reading_seconds)
        if self.driver_runner.error is not None:
            self.driver_runner.stop()
            raise self.driver_runner.error

    def read(self, due: frozenset[Tier]) -> Reading:
        until = self._clocks.monotonic() + self._reading_seconds
        session = self._opened(until)
        self.driver_runner.replace_overdue_thread(self._runners.finished)
        if Tier.MEDIUM in due or not self.gpus:
            session = self._update_gpu_list(session, until)
        self._adopt_gpu_list()
        failures = self._read_gpus(due, until)
        self._read_names_and_xids(session, Tier.MEDIUM in due, until)
        self._log_stuck_calls()
        if not self._has_answered():
            raise NoAnswerYet(self._describe_pending_calls())
        self._is_first = False
        devices = tuple(self._to_devices())
        return Reading(
            drivers={} if session.driver is ABSENT else {NVIDIA: session.driver},
            devices=tuple(
                sorted(devices + self._still_lost(session, devices), key=lambda device: device.index)
            ),
            processes=self._to_processes(session),
            errors=self._take_xids(),
            failures=self._failing(session, failures),
            unfinished=any(not (runner.idle or runner.blocked) for runner in self._all_runners()),
        )

    def _log_stuck_calls(self) -> None:
        """Logs after two readings in succession: calls of a driver that was blocked return one by one."""
        has_answered = self._has_answered()
        if has_answered and self._answered_before:
            for runner in self._all_runners():
                runner.log_stuck_calls()
        self._answered_before = has_answered

    def _has_answered(self) -> bool:
        """Whether a GPU answered. The first reading waits for every GPU that may still answer."""
        if not self.gpus:
            return self.driver_runner.idle
        if self._is_first and any(gpu.device is None for gpu in self.gpus):
            return False
        return any(gpu.runner.idle for gpu in self.gpus)

    # The session

    def _open_session(self) -> None:
        self.session = Session(self.driver_runner, self._clocks, self._kernel_list, self._tier_plan)

    def _opened(self, until: float) -> Session:
        if self.session is None:
            self._runners.wait([self.driver_runner], until)
            self._raise_if_failed(self.driver_runner)
        if self.session is None:
            raise NoAnswerYet("nvmlInit has not returned")
        return self.session

    def _update_gpu_list(self, session: Session, until: float) -> Session:
        if self._needs_new_session(session) and self._nothing_in_flight():
            session = self._restart_session(session, until)
        if self.driver_runner.idle:
            self._runners.start(self.driver_runner, partial(self._list_gpus, session))
            # The other half of the time remains for the known GPUs if the list does not arrive.
            self._runners.wait([self.driver_runner], until - self._reading_seconds / 2)
        self._raise_if_failed(self.driver_runner)
        return session

    def _list_gpus(self, session: Session) -> None:
        lost_at = [device.index for device in self._lost_devices.values()]
        self._new_list = session.list_gpus(self.gpus, self._previous_gpus, lost_at)

    def _adopt_gpu_list(self) -> None:
        if self._new_list is None or not self.driver_runner.idle:
            return
        listed, self._new_list = self._new_list, None
        for gone in set(self.gpus) - set(listed):
            gone.runner.run_last(gone.close, self._runners.finished)
        self.gpus, self._previous_gpus = listed, {}

    def _needs_new_session(self, session: Session) -> bool:
        anything_lost = bool(self._lost_devices) or any(gpu.lost for gpu in self.gpus)
        is_old = self._clocks.monotonic() - session.began_at >= LOST_RETRY_SECONDS
        return kernel_gpus(self._kernel_list) != session.in_kernel or (anything_lost and is_old)

    def _nothing_in_flight(self) -> bool:
        """Ending a session during a call crashes the process, so a stuck call delays it."""
        return all(runner.idle and not runner.has_stuck_calls for runner in self._all_runners())

    def _all_runners(self) -> list[JobRunner]:
        return [self.driver_runner, *(gpu.runner for gpu in self.gpus)]

    def _restart_session(self, session: Session, until: float) -> Session:
        """Replaces the session. Lost GPUs are kept until another GPU takes their place."""
        self._lost_devices |= {gpu.uuid: gpu.to_reading() for gpu in self.gpus if gpu.lost}
        self._previous_gpus = {gpu.uuid: gpu for gpu in self.gpus}
        self._close_gpus(until)
        self.session = None
        self._runners.start(self.driver_runner, partial(self._replace_session, session), replaceable=False)
        return self._opened(until)

    def _replace_session(self, session: Session) -> None:
        session.read_xids([], self._xids)
        session.close()
        self._open_session()

    def _close_gpus(self, until: float) -> None:
        runners = [gpu.runner for gpu in self.gpus]
        for gpu in self.gpus:
            gpu.runner.run_last(gpu.close, self._runners.finished)
        self._end(runners, until)
        self.gpus = []

    def _end(self, runners: Sequence[JobRunner], until: float) -> None:
        self._runners.wait(runners, until)
        for runner in runners:
            if not runner.idle:
                runner.stop()

    # The GPUs

    def _read_gpus(self, due: frozenset[Tier], until: float) -> Counter[str]:
        """Starts each GPU's jobs: the fast tier of all GPUs first, so that its times are close together."""
        later: dict[NvmlGpu, list[Tier]] = {}
        awaited: list[JobRunner] = []
        for gpu in self.gpus:
            taken_over = gpu.runner.replace_overdue_thread(self._runners.finished)
            if gpu.runner.idle:
                gpu.reprobe_if_due(due)
                later[gpu] = self._later_tiers(gpu, due)
                self._start_reading(gpu, [Tier.FAST], due, with_processes=not later[gpu])
            elif not taken_over:
                gpu.overdue |= due
                continue  # an earlier job still runs; an earlier read waited for it
            awaited.append(gpu.runner)
            self._runners.wait([gpu.runner], min(until, self._clocks.monotonic() + TURN_SECONDS))
        self._runners.wait(awaited, until)
        self._quick_start = False  # the other tiers are read in the next reading
        for gpu, tiers in later.items():
            if tiers and gpu.runner.idle and gpu.runner.error is None:
                self._start_reading(gpu, tiers, due, with_processes=True)
                self._runners.wait([gpu.runner], min(until, self._clocks.monotonic() + TURN_SECONDS))
            elif tiers:
                gpu.overdue |= due
        self._runners.wait(awaited, until)
        return self._collect_results(due)

    def _later_tiers(self, gpu: NvmlGpu, due: frozenset[Tier]) -> list[Tier]:
        tiers = () if self._quick_start else (Tier.MEDIUM, Tier.SLOW)
        return [tier for tier in tiers if tier in due or tier in gpu.overdue or gpu.has_not_read(tier)]

    def _start_reading(
        self, gpu: NvmlGpu, tiers: list[Tier], due: frozenset[Tier], with_processes: bool
    ) -> None:
        wanted = due | gpu.overdue
        gpu.overdue -= set(tiers)
        self._runners.start(gpu.runner, partial(gpu.read_tiers, tiers, wanted, self.gpus, with_processes))

    def _collect_results(self, due: frozenset[Tier]) -> Counter[str]:
        """Takes the results of the finished jobs."""
        failures: Counter[str] = Counter()
        now = self._clocks.monotonic()
        for gpu in self.gpus:
            if not gpu.runner.idle:
                if now - gpu.answered_at > self._stale_seconds:
                    gpu.device, gpu.processes = gpu.to_identity(), ABSENT
                continue
            error, gpu.runner.error = gpu.runner.error, None
            if isinstance(error, SourceError):
                raise error
            gpu.answered_at = now
            gpu.failing = gpu.take_failures(due)
            if error is None:
                gpu.device = gpu.to_reading()
            else:  # an error in our code for this GPU; the other GPUs are not affected
                gpu.device, gpu.processes = gpu.to_identity(), ABSENT
                gpu.failing[f"reading GPU {gpu.index} ({type(error).__name__}: {error})"] = 1
            if gpu.failing:
                failures.update(gpu.failing)
        return failures

    def _failing(self, session: Session, failures: Counter[str]) -> dict[str, int]:
        standing = {name for gpu in self.gpus if not gpu.runner.idle for name in gpu.failing}
        if self.driver_runner.idle:
            failures.update(self.driver_runner.failures)
            self.driver_runner.failures.clear()
        standing |= session.failing_in_list | set(failures)
        return {**dict.fromkeys(sorted(standing), 0), **{name: n for name, n in failures.items() if n}}

    def _to_devices(self) -> list[Device]:
        return [gpu.device for gpu in self.gpus if gpu.device is not None]

    def _still_lost(self, session: Session, present: Sequence[Device]) -> tuple[Device, ...]:
        """The lost GPUs of previous sessions, without those that recovered, were replaced or left the bus."""
        uuids = {device.uuid for device in present}
        addresses = {device.pci_bus_id for device in present} - {ABSENT}
        on_the_bus = {address.lower() for address in session.in_kernel}
        for uuid, device in list(self._lost_devices.items()):
            off_the_bus = bool(on_the_bus) and _kernel_name(device) not in on_the_bus
            if uuid in uuids or device.pci_bus_id in addresses or off_the_bus:
                del self._lost_devices[uuid]
        return tuple(self._lost_devices.values())

    # Results of the driver's runner

    def _read_names_and_xids(self, session: Session, refresh: bool, until: float) -> None:
        if not self.driver_runner.idle:
            return
        pids = {pid for gpu in self.gpus for pid in gpu.pids()}
        present = [(gpu.calls.handle, gpu.uuid) for gpu in self.gpus if not gpu.lost]

        def job() -> None:
            session.read_xids(present, self._xids)
            session.names.update(pids, refresh)

        self._runners.start(self.driver_runner, job)
        self._runners.wait([self.driver_runner], max(until, self._clocks.monotonic() + TURN_SECONDS))
        self._raise_if_failed(self.driver_runner)

    def _to_processes(self, session: Session) -> Maybe[tuple[Process, ...]]:
        known = [(gpu, gpu.processes) for gpu in self.gpus if gpu.processes is not ABSENT]
        if self.gpus and not known:
            return ABSENT
        return tuple(
            process
            for gpu, found in known
            for part in found
            for process in part.to_processes(session.names, gpu.uuid)
        )

    def _take_xids(self) -> tuple[ErrorEvent, ...]:
        return tuple(self._xids.popleft() for _ in range(len(self._xids)))

    def _raise_if_failed(self, runner: JobRunner) -> None:
        error, runner.error = runner.error, None
        if error is not None:
            raise error

    def _describe_pending_calls(self) -> str:
        calls = [call for runner in self._all_runners() for call in runner.calls()]
        if not calls:
            return "the driver is slow"
        more = f" and {len(calls) - 1} more calls have" if len(calls) > 1 else " has"
        return f"{min(calls, key=lambda call: call.since)}{more} not returned"

    def close(self) -> None:
        """Ends the session; abandons threads whose calls do not return in time."""
        until = self._clocks.monotonic() + CLOSE_SECONDS
        self._close_gpus(until)
        session, self.session = self.session, None
        if session is not None:
            self.driver_runner.run_last(session.close, self._runners.finished)
            self._end([self.driver_runner], until)
        else:
            self.driver_runner.stop()


def _kernel_name(device: Device) -> str:
    """The kernel writes a bus address with a four-digit domain, the driver with eight digits."""
    return "" if device.pci_bus_id is ABSENT else device.pci_bus_id.lower()[4:]
