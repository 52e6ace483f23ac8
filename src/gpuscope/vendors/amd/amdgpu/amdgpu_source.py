"""The source amdgpu: every AMD GPU of this machine with its processes, read in tiers from the kernel's files.

`read` opens no file itself. It starts a job on each GPU's runner (`agent/job_runner.py`), and one for the list
of cards and the processes, and waits for most of a cycle: a file that does not answer costs its own number. A
card that leaves the list is lost while it is on the PCI bus, and gone when it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpuscope.agent.job_runner import JobRunner, JobRunners, StuckCallLog
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.errors import NoAnswerYet, SourceMissing
from gpuscope.model.readings import ABSENT, Device, Driver, Maybe, Process, Reading, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.amd_gpu import VENDOR, AmdGpu, make_uuid
from gpuscope.vendors.amd.amdgpu.amd_processes import GpuPart, PartIndex, to_processes
from gpuscope.vendors.amd.amdgpu.card_files import read_whole
from gpuscope.vendors.amd.amdgpu.card_list import DRIVER, CardList, ListedCard, list_cards
from gpuscope.vendors.amd.amdgpu.kfd_processes import KfdProcesses, KfdUse
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdTopology
from gpuscope.vendors.amd.amdgpu.pci_gpus import other_gpus
from gpuscope.vendors.drm.client_walk import ClientUse, DrmClients

NAME: Final = "amdgpu"
TURN_SECONDS: Final = 0.02
"""Runners start one after another, as those of NVML do: threads that alternate cost more CPU time."""
CLOSE_SECONDS: Final = 0.8
CARDS: Final = "the list of cards"
ROCM_PROCESSES: Final = "the processes of ROCm"
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


@dataclass(slots=True)
class _ReadGpu:
    """A GPU, its runner, and what is known of it."""

    gpu: AmdGpu
    runner: JobRunner
    overdue: frozenset[Tier] = frozenset()
    device: Device | None = None
    is_listed: bool = True


class AmdgpuSource:
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
        self._stuck_call_log = StuckCallLog(self._any_answers, NAME)
        self._machine = JobRunner("the machine", self._clock, self._stuck_call_log)
        self._guard = RunnerGuard(self._machine)
        self._topology = KfdTopology(roots.sysfs)
        self._kfd = KfdProcesses(roots.sysfs)
        self._clients = DrmClients(roots.procfs, {DRIVER}, self._clock.monotonic)
        self._listed: CardList | None = None
        self._gpus: dict[str, _ReadGpu] = {}
        self._uses: Maybe[tuple[KfdUse, ...]] = ABSENT
        self._has_read_rocm = False
        self._client_uses: Maybe[Sequence[ClientUse]] = ABSENT
        self._failures: Counter[str] = Counter()
        self._driver = self._read_driver()
        if not self._list_cards().cards:
            raise SourceMissing(f"{roots.sysfs}/class/drm has no card of the driver amdgpu: is it loaded?")

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
            drivers={VENDOR: Driver(driver_version=self._driver, gpu_count=len(devices))},
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
        """AMD's own package has a version; the driver of the kernel has that of the kernel."""
        of_package = f"{self._roots.sysfs}/module/amdgpu/version"
        for path in (of_package, f"{self._roots.procfs}/sys/kernel/osrelease"):
            try:
                version = read_whole(path, 256).decode("utf-8", "replace").strip()
            except OSError:
                continue
            if version:
                return version
        return ABSENT

    # The list of cards

    def _list_cards(self) -> CardList:
        return list_cards(self._roots.sysfs, self._topology.read())

    def _update_list(self, until: float) -> None:
        if self._machine.idle:
            self._start(self._machine, partial(self._guarded, CARDS, self._keep_list))
            # The other half of the time remains for the known cards if the list does not arrive.
            self._runners.wait([self._machine], until - self._reading_seconds / 2)
        if self._listed is not None and self._machine.idle:
            listed, self._listed = self._listed, None
            self._adopt(listed)

    def _keep_list(self) -> None:
        self._listed = self._list_cards()
        for file, why in self._topology.failures().items():
            self._failures[f"KFD: {file} ({why})"] += 1

    def _adopt(self, listed: CardList) -> None:
        cards = {card.address: card for card in self._wanted(listed.cards)}
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
                self._gpus[address] = self._open(card, listed)
        self._make_unique()

    def _wanted(self, cards: Sequence[ListedCard]) -> list[ListedCard]:
        """Without processors' GPUs on machines that have another one."""
        if self._integrated == "always":
            return list(cards)
        integrated = {card.address for card in cards if is_integrated(card)}
        if self._integrated == "auto" and not other_gpus(self._roots.sysfs, integrated):
            return list(cards)
        return [card for card in cards if card.address not in integrated]

    def _is_on_the_bus(self, address: str) -> bool:
        return Path(self._roots.sysfs, "bus/pci/devices", address).exists()

    def _open(self, card: ListedCard, listed: CardList) -> _ReadGpu:
        runner = JobRunner(card.name, self._clock, self._stuck_call_log)
        guard = RunnerGuard(runner, card.name)
        gpu = AmdGpu(card, self._roots.rootfs, self._clock.monotonic, guard, listed.partition_devices)
        return _ReadGpu(gpu, runner)

    def _make_unique(self) -> None:
        """Two cards with one id would be one GPU: that of the later address is made of its address."""
        seen: set[Uuid] = set()
        for address in sorted(self._gpus):
            gpu = self._gpus[address].gpu
            if gpu.uuid in seen:
                gpu.uuid = make_uuid(gpu.card, self._roots.rootfs)
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
                self._start(each.runner, partial(each.gpu.read, frozenset(tiers)))
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

    def _is_stale(self, each: _ReadGpu) -> bool:
        return self._clock.monotonic() - each.gpu.answered_at > self._stale_seconds

    def _collect(self, each: _ReadGpu) -> None:
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
        self._start(self._machine, partial(self._read_users, due))
        self._runners.wait([self._machine], max(until, self._clock.monotonic() + TURN_SECONDS))

    def _forget_users(self) -> None:
        self._uses = self._client_uses = ABSENT
        self._has_read_rocm = False

    def _read_users(self, due: frozenset[Tier]) -> None:
        self._forget_users()
        self._guarded(ROCM_PROCESSES, partial(self._read_rocm, due))
        self._guarded(DRM_CLIENTS, partial(self._read_clients, due))

    def _read_rocm(self, due: frozenset[Tier]) -> None:
        self._uses = self._kfd.read(due)
        self._has_read_rocm = True

    def _read_clients(self, due: frozenset[Tier]) -> None:
        is_walk = Tier.MEDIUM in due
        self._client_uses = self._clients.walk() if is_walk else self._clients.read_known()

    def _processes_are_known(self) -> bool:
        """KFD lists every process of ROCm. On a kernel without it, all processes must have been looked at."""
        if not self._has_read_rocm or self._uses is not ABSENT:
            return self._has_read_rocm
        return self._client_uses is not ABSENT and self._clients.unreadable == 0

    def _to_processes(self) -> Maybe[tuple[Process, ...]]:
        if not self._machine.idle or not self._processes_are_known():
            return ABSENT
        uses = () if self._uses is ABSENT else self._uses
        clients = () if self._client_uses is ABSENT else self._client_uses
        return tuple(to_processes(uses, clients, self._parts()))

    def _parts(self) -> PartIndex:
        by_gpu_id: dict[int, GpuPart] = {}
        by_device: dict[str, GpuPart] = {}
        by_address: dict[str, GpuPart] = {}
        for address, each in self._gpus.items():
            gpu = each.gpu
            whole = GpuPart(gpu.uuid, ABSENT, gpu.is_processor)
            by_address[address] = whole
            if gpu.card.render_minor is not ABSENT:
                by_device[f"renderD{gpu.card.render_minor}"] = whole
            for node in gpu.card.nodes:
                part = GpuPart(gpu.uuid, gpu.instance_uuid(node), gpu.is_processor)
                by_gpu_id[node.gpu_id] = part
                if node.render_minor is not ABSENT:
                    by_device[f"renderD{node.render_minor}"] = part
        return PartIndex(by_gpu_id, by_device, by_address)

    def _guarded(self, name: str, job: Callable[[], None]) -> None:
        """Counts as one call: if it does not return, what it reads is absent."""
        if self._guard.is_skipped(name):
            return
        entered = self._guard.enter(name)
        try:
            job()
        finally:
            self._guard.leave(entered)

    def _start(self, runner: JobRunner, job: Callable[[], None]) -> None:
        self._runners.start(runner, job)


def is_integrated(card: ListedCard) -> bool:
    """Whether the GPU is part of a processor: those have revisions 2 and 3 of `gpu_metrics`."""
    try:
        header = read_whole(f"{card.folder}/gpu_metrics", 4)
    except OSError:
        return False
    return len(header) == 4 and header[2] in (2, 3)
