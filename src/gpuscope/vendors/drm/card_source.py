"""The part of a source of cards that all vendors share: lists them, reads each in tiers, follows its failures.

`read` opens no file itself. It starts a job on each GPU's runner (`agent/job_runner.py`), and one for the list
of cards and the processes, and waits for most of a cycle: a file that does not answer costs its own number. A
card that leaves the list is lost while it is on the PCI bus, and gone when it is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from gpuscope.agent.job_runner import JobRunner, JobRunners, StuckCallLog
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.errors import NoAnswerYet, SourceMissing
from gpuscope.model.readings import ABSENT, Device, Driver, Maybe, Process, Reading, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.drm.card_files import CallGuard, read_whole
from gpuscope.vendors.drm.card_identity import make_uuid
from gpuscope.vendors.drm.client_walk import ClientUse, DrmClients
from gpuscope.vendors.drm.pci_gpus import other_gpus

TURN_SECONDS: Final = 0.02
"""Runners start one after another, as those of NVML do: threads that alternate cost more CPU time."""
CARDS: Final = "the list of cards"
DRM_CLIENTS: Final = "the clients of /dev/dri"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Mount points of the machine's file systems."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    rootfs: str = "/"


class RunnerGuard:
    """Records each read of a runner's jobs, so that one that does not return is noticed."""

    def __init__(self, runner: JobRunner, device_name: str = "") -> None:
        self._runner = runner
        self._device_name = device_name

    def is_skipped(self, name: str) -> bool:
        return bool(self._runner.skipped) and self._runner.is_skipped(name)

    def enter(self, name: str) -> Any:
        thread = self._runner.thread
        if thread is not None:
            thread.enter(name, self._device_name, name, (), self._runner.now())
        return thread

    def leave(self, entered: Any) -> None:
        if entered is not None:
            entered.leave()


class DrmCard(Protocol):
    @property
    def address(self) -> str: ...

    @property
    def name(self) -> str:
        """In log lines."""
        ...


CardT = TypeVar("CardT", bound=DrmCard)


class DrmGpu(Protocol[CardT]):
    """A card that is read."""

    card: CardT
    uuid: Uuid
    answered_at: float
    failures: dict[str, str]
    processes_known: bool

    def read(self, tiers: frozenset[Tier]) -> None: ...
    def has_not_read(self, tier: Tier) -> bool: ...
    def to_device(self, stale_seconds: float) -> Device: ...
    def to_identity(self) -> Device: ...


GpuT = TypeVar("GpuT", bound=DrmGpu[Any])


@dataclass(slots=True)
class ReadGpu(Generic[GpuT]):
    """A GPU, its runner, and what is known of it."""

    gpu: GpuT
    runner: JobRunner
    overdue: frozenset[Tier] = frozenset()
    device: Device | None = None
    is_listed: bool = True


class DrmSource(ABC, Generic[CardT, GpuT]):
    """A vendor's source says which cards there are, how one is read, and who uses them."""

    name: str
    vendor: str
    drivers: Collection[str]
    """Names of the kernel's drivers of its cards."""

    def __init__(
        self,
        roots: Roots,
        *,
        clock: Clock | None = None,
        reading_seconds: float = 0.8,
        stale_seconds: float = 5.0,
        integrated: str = "auto",
    ) -> None:
        """`read` waits at most `reading_seconds` for the kernel. A GPU that does not answer for `stale_seconds`
        counts as lost."""
        self._roots = roots
        self._clock = clock or SystemClock()
        self._reading_seconds = reading_seconds
        self._stale_seconds = stale_seconds
        self._integrated = integrated
        self._runners = JobRunners(self._clock)
        self._stuck_call_log = StuckCallLog(self._any_answers, self.name)
        self._machine = JobRunner("the machine", self._clock, self._stuck_call_log)
        self._guard = RunnerGuard(self._machine)
        self._clients = DrmClients(roots.procfs, self.drivers, self._clock.monotonic)
        self._client_uses: Maybe[Sequence[ClientUse]] = ABSENT
        self._listed: Sequence[CardT] | None = None
        self._gpus: dict[str, ReadGpu[GpuT]] = {}
        self._failures: Counter[str] = Counter()
        self._driver = self._read_driver()
        if not self._list_cards():
            named = " or ".join(self.drivers)
            raise SourceMissing(f"{roots.sysfs}/class/drm has no card of the driver {named}: is it loaded?")

    @abstractmethod
    def _list_cards(self) -> Sequence[CardT]: ...

    @abstractmethod
    def _is_integrated(self, card: CardT) -> bool:
        """Whether the GPU is part of a processor."""

    @abstractmethod
    def _open_gpu(self, card: CardT, guard: CallGuard) -> GpuT: ...

    @abstractmethod
    def _read_users(self, due: frozenset[Tier]) -> None:
        """Reads the processes, in a runner's thread."""

    def _forget_users(self) -> None:
        self._client_uses = ABSENT

    @abstractmethod
    def _processes_are_known(self) -> bool: ...

    @abstractmethod
    def _make_processes(self) -> Sequence[Process]:
        """Called while they are known."""

    def read(self, due: frozenset[Tier]) -> Reading:
        until = self._clock.monotonic() + self._reading_seconds
        self._machine.replace_overdue_thread(self._runners.finished)
        if Tier.MEDIUM in due or not self._gpus:
            self._update_list(until)
        self._read_gpus(due, until)
        self._read_processes(due, until)
        for runner in self._all_runners():
            runner.log_stuck_calls()
        devices = tuple(sorted(self._to_devices(), key=lambda device: device.index))
        if not devices:
            raise NoAnswerYet(CARDS)
        failures, self._failures = self._failures, Counter()
        return Reading(
            drivers={self.vendor: Driver(driver_version=self._driver, gpu_count=len(devices))},
            devices=devices,
            processes=self._to_processes(),
            failures=dict(failures),
            unfinished=any(not (runner.idle or runner.blocked) for runner in self._all_runners()),
        )

    def close(self) -> None:
        for runner in self._all_runners():
            runner.stop()

    def _all_runners(self) -> list[JobRunner]:
        return [self._machine, *(each.runner for each in self._gpus.values())]

    def _any_answers(self) -> bool:
        return any(each.runner.idle for each in self._gpus.values())

    def _read_driver(self) -> Maybe[str]:
        """A vendor's own package has a version; the driver of the kernel has that of the kernel."""
        of_packages = (f"{self._roots.sysfs}/module/{driver}/version" for driver in self.drivers)
        for path in (*of_packages, f"{self._roots.procfs}/sys/kernel/osrelease"):
            try:
                version = read_whole(path, 256).decode("utf-8", "replace").strip()
            except OSError:
                continue
            if version:
                return version
        return ABSENT

    # The list of cards

    def _update_list(self, until: float) -> None:
        if self._machine.idle:
            self._runners.start(self._machine, partial(self._guarded, CARDS, self._keep_list))
            # The other half of the time remains for the known cards if the list does not arrive.
            self._runners.wait([self._machine], until - self._reading_seconds / 2)
        if self._listed is not None and self._machine.idle:
            listed, self._listed = self._listed, None
            self._adopt(listed)

    def _keep_list(self) -> None:
        self._listed = self._list_cards()

    def _adopt(self, listed: Sequence[CardT]) -> None:
        cards = {card.address: card for card in self._wanted(listed)}
        known, self._gpus = self._gpus, {}
        for address, each in known.items():
            each.is_listed = address in cards
            if each.is_listed or self._is_on_the_bus(address):
                self._gpus[address] = each
            else:
                each.runner.stop()
        for address, card in cards.items():
            before = self._gpus.get(address)
            if before is None or before.gpu.card != card:
                if before is not None:
                    before.runner.stop()
                self._gpus[address] = self._open(card)
        self._make_unique()

    def _wanted(self, cards: Sequence[CardT]) -> list[CardT]:
        """Without processors' GPUs on machines that have another one."""
        if self._integrated == "always":
            return list(cards)
        integrated = {card.address for card in cards if self._is_integrated(card)}
        if self._integrated == "auto" and not other_gpus(self._roots.sysfs, integrated):
            return list(cards)
        return [card for card in cards if card.address not in integrated]

    def _is_on_the_bus(self, address: str) -> bool:
        return Path(self._roots.sysfs, "bus/pci/devices", address).exists()

    def _open(self, card: CardT) -> ReadGpu[GpuT]:
        runner = JobRunner(card.name, self._clock, self._stuck_call_log)
        return ReadGpu(self._open_gpu(card, RunnerGuard(runner, card.name)), runner)

    def _make_unique(self) -> None:
        """Two cards with one id would be one GPU: that of the later address is made of its address."""
        seen: set[Uuid] = set()
        for address in sorted(self._gpus):
            gpu = self._gpus[address].gpu
            if gpu.uuid in seen:
                gpu.uuid = make_uuid(address, self._roots.rootfs)
            seen.add(gpu.uuid)

    # The GPUs

    def _read_gpus(self, due: frozenset[Tier], until: float) -> None:
        started = []
        for each in self._gpus.values():
            taken_over = each.runner.replace_overdue_thread(self._runners.finished)
            if not each.is_listed:
                continue
            if each.runner.idle:
                tiers = due | each.overdue | {tier for tier in Tier if each.gpu.has_not_read(tier)}
                each.overdue = frozenset()
                self._runners.start(each.runner, partial(each.gpu.read, frozenset(tiers)))
            elif not taken_over:
                each.overdue |= due
                continue
            started.append(each)
            self._runners.wait([each.runner], min(until, self._clock.monotonic() + TURN_SECONDS))
        self._runners.wait([each.runner for each in started], until)

    def _to_devices(self) -> list[Device]:
        devices = []
        for each in self._gpus.values():
            if not each.is_listed:
                each.device = each.gpu.to_identity()
            elif each.runner.idle:
                self._collect(each)
            elif each.device is not None and self._is_stale(each):
                each.device = each.gpu.to_identity()
            if each.device is not None:
                devices.append(each.device)
        return devices

    def _is_stale(self, each: ReadGpu[GpuT]) -> bool:
        return self._clock.monotonic() - each.gpu.answered_at > self._stale_seconds

    def _collect(self, each: ReadGpu[GpuT]) -> None:
        error, each.runner.error = each.runner.error, None
        if error is not None:  # an error in our code for this card; the others are not affected
            self._failures[f"{each.gpu.card.name} ({type(error).__name__}: {error})"] += 1
        for file, why in each.gpu.failures.items():
            self._failures[f"{each.gpu.card.name}: {file} ({why})"] += 1
        each.gpu.processes_known = self._processes_are_known()
        each.device = each.gpu.to_device(self._stale_seconds)

    # Processes

    def _read_processes(self, due: frozenset[Tier], until: float) -> None:
        if not self._machine.idle:
            if self._machine.blocked:
                self._forget_users()
            return
        self._runners.start(self._machine, partial(self._read_users, due))
        self._runners.wait([self._machine], max(until, self._clock.monotonic() + TURN_SECONDS))

    def _read_clients(self, due: frozenset[Tier]) -> None:
        is_walk = Tier.MEDIUM in due
        self._client_uses = self._clients.walk() if is_walk else self._clients.read_known()

    def _to_processes(self) -> Maybe[tuple[Process, ...]]:
        if not self._machine.idle or not self._processes_are_known():
            return ABSENT
        return tuple(self._make_processes())

    def _guarded(self, name: str, job: Callable[[], None]) -> None:
        """Counts as one call: if it does not return, what it reads is absent."""
        if self._guard.is_skipped(name):
            return
        entered = self._guard.enter(name)
        try:
            job()
        finally:
            self._guard.leave(entered)
