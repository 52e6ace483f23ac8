"""Who runs on a GPU: the driver's three process lists, each process' share of the work, and its name.

A process may end between any two calls; that is no failure, it is just not there or has no name. Memory is
absent where the driver will not say. The driver has no samples of a process that did nothing: its share is 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuscope.readings import ABSENT, Maybe, Pid, Process, Uuid
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.call_table import as_is, percent
from gpuscope.sources.nvml.clocks import SYSTEM, Clocks
from gpuscope.sources.nvml.driver_calls import Gate
from gpuscope.sources.nvml.library import Library, plain

# In the order nvidia-smi writes them: an MPS client is "M+C".
LISTS: Final = {
    "M": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "C": "nvmlDeviceGetComputeRunningProcesses_v3",
    "G": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
LONGEST_PERIOD_US: Final = 1_000_000  # of the driver's sampling
LONGEST_NAME: Final = 256
_NAME_BUFFER_BYTES: Final = 4096


@dataclass(slots=True)
class Running:
    """A process on one GPU or MIG instance, merged from the lists it is on."""

    kinds: list[str] = field(default_factory=list)
    memory_bytes: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True)
class Share:
    """What part of a GPU a process used."""

    sm: Maybe[float]
    memory: Maybe[float]
    encoder: Maybe[float]
    decoder: Maybe[float]


UNKNOWN: Final = Share(ABSENT, ABSENT, ABSENT, ABSENT)
IDLE: Final = Share(0.0, 0.0, 0.0, 0.0)
Shares = Mapping[int, Share]


class _Array:
    """A C array that grows to what the driver wants to put in, and is used again."""

    def __init__(self, element: Any, length: int = 64) -> None:
        self._element = element
        self.count = ctypes.c_uint()
        self.items = (element * length)()

    def fill(self, call: Callable[[], None], too_small: type[Exception]) -> None:
        for attempt in range(3):
            self.count.value = len(self.items)
            try:
                return call()
            except too_small as error:
                if getattr(error, "value", None) != codes.INSUFFICIENT_SIZE or attempt == 2:
                    raise
                # Room to spare: more processes may start before the next attempt.
                self.items = (self._element * (max(self.count.value, len(self.items)) * 2))()
        return None

    def filled(self) -> list[Any]:
        found: list[Any] = self.items[: min(self.count.value, len(self.items))]
        return found


class ProcessLists:
    """Reads the process lists of one GPU or of its MIG instances, with one buffer for all."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._array = _Array(plain(library.nvml.c_nvmlProcessInfo_v3_t))

    def read(self, gate: Gate) -> Maybe[dict[int, Running]]:
        """By PID; ABSENT if no list could be read, or one does not return: who is on it is not known."""
        if any(gate.is_stuck(name) for name in LISTS.values()):
            return ABSENT
        answered = False
        found: dict[int, Running] = {}
        for kind, name in LISTS.items():
            if not gate.run(name, gate.handle, function=self._filler(name)):
                continue
            answered = True
            for info in self._array.filled():
                running = found.setdefault(info.pid, Running())
                if kind not in running.kinds:
                    running.kinds.append(kind)
                memory = as_is(info.usedGpuMemory)
                if running.memory_bytes is ABSENT or (memory is not ABSENT and memory > running.memory_bytes):
                    running.memory_bytes = memory
        return found if answered else ABSENT

    def _filler(self, name: str) -> Callable[[Any], None]:
        array, function = self._array, self._library.raw(name)

        def fill(handle: Any) -> None:
            array.fill(
                lambda: function(handle, ctypes.byref(array.count), array.items),
                self._library.nvml.NVMLError,
            )

        return fill


class ProcessShares:
    """One GPU's per-process utilisation since the last reading."""

    def __init__(self, gate: Gate, clocks: Clocks = SYSTEM) -> None:
        self._gate = gate
        self._clocks = clocks
        self._array = _Array(plain(gate.library.nvml.c_nvmlProcessUtilizationSample_t))
        self._since_us = 0
        self._asked_us = 0

    def read(self) -> Maybe[Shares]:
        """By PID, only of those that did something; ABSENT where the driver does not tell (MIG)."""
        now_us = self._clocks.now_us()
        a_period_ago = now_us - LONGEST_PERIOD_US  # at least one sample is as new as that
        self._since_us = min(self._asked_us or a_period_ago, a_period_ago)
        self._asked_us = now_us
        failed_before = self._gate.failed(UTILIZATION)
        if self._gate.run(UTILIZATION, self._gate.handle, function=self._fill):
            samples = sorted(self._array.filled(), key=lambda sample: int(sample.timeStamp))
            return {sample.pid: _share(sample) for sample in samples}
        if self._gate.refuses(UTILIZATION) or self._gate.failed(UTILIZATION) > failed_before:
            return ABSENT
        return {}  # no samples: nobody did anything

    def _fill(self, handle: Any) -> None:
        function, array = self._gate.library.raw(UTILIZATION), self._array
        since = ctypes.c_ulonglong(self._since_us)
        array.fill(
            lambda: function(handle, array.items, ctypes.byref(array.count), since),
            self._gate.library.nvml.NVMLError,
        )


def _share(sample: Any) -> Share:
    return Share(
        percent(sample.smUtil), percent(sample.memUtil), percent(sample.encUtil), percent(sample.decUtil)
    )


@dataclass(frozen=True, slots=True)
class FoundProcesses:
    """The processes on one GPU or MIG instance, by PID, before they have names."""

    running: Mapping[int, Running]
    shares: Maybe[Shares]
    instance_uuid: Maybe[Uuid] = ABSENT

    def to_processes(self, names: NameBook, gpu_uuid: Uuid) -> list[Process]:
        processes = []
        for pid, running in self.running.items():
            share = UNKNOWN if self.shares is ABSENT else self.shares.get(pid, IDLE)
            processes.append(
                Process(
                    pid=Pid(pid),
                    gpu_uuid=gpu_uuid,
                    instance_uuid=self.instance_uuid,
                    kind="+".join(running.kinds),
                    command=names.short(pid),
                    driver_name=names.full(pid),
                    memory_bytes=running.memory_bytes,
                    sm_ratio=share.sm,
                    memory_ratio=share.memory,
                    encoder_ratio=share.encoder,
                    decoder_ratio=share.decoder,
                )
            )
        return processes


class NameBook:
    """Names of the processes that run now, as the driver tells them. Asked once, and again with `refresh`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._names: dict[int, Maybe[str]] = {}

    def short(self, pid: int) -> Maybe[str]:
        full = self.full(pid)
        return ABSENT if full is ABSENT else short_name(full)

    def full(self, pid: int) -> Maybe[str]:
        return self._names.get(pid, ABSENT)

    def learn(self, pids: Iterable[int], refresh: bool) -> None:
        """Asks for the names of these, and forgets the others; with `refresh` all, for a PID may be reused."""
        present = frozenset(pids)
        for pid in present:
            if refresh or pid not in self._names:
                self._names[pid] = self._ask(pid)
        for gone in self._names.keys() - present:
            del self._names[gone]

    def _ask(self, pid: int) -> Maybe[str]:
        # The driver looks into /proc, where a process that cannot be interrupted may keep it: a call of its own
        # for each PID, with a buffer of its own. The binding would fail on a name that is not UTF-8.
        buffer = ctypes.create_string_buffer(_NAME_BUFFER_BYTES)
        key = ("nvmlSystemGetProcessName", pid)
        if self._gate.is_stuck(key):
            return ABSENT
        try:
            function = self._gate.library.raw("nvmlSystemGetProcessName")
            size = ctypes.c_uint(_NAME_BUFFER_BYTES)
            self._gate.call(
                key, "nvmlSystemGetProcessName", function, ctypes.c_uint(pid), buffer, size, about=(pid,)
            )
        except self._gate.library.nvml.NVMLError:
            return ABSENT  # it has ended, or lives in another PID namespace
        return buffer.value.decode("utf-8", "replace") or ABSENT


def short_name(full: str) -> Maybe[str]:
    """The executable's name: no path, and no arguments, for they may be secret."""
    command = full.strip().split(" ", 1)[0]
    name = command.rstrip("/").rsplit("/", 1)[-1][:LONGEST_NAME]
    return name or ABSENT
