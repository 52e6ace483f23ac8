"""The processes on a GPU: the driver's three process lists, utilisation per process, and process names.

A process may end between two calls; it is then missing or has no name, which is not a failure. Memory is absent
if the driver does not report it. The driver has no utilisation sample for an idle process: its share is 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Maybe, Pid, Process, Uuid
from gpuscope.vendors.nvidia.nvml import library
from gpuscope.vendors.nvidia.nvml.call_table import as_is, percent
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls
from gpuscope.vendors.nvidia.nvml.library import Library, plain
from gpuscope.vendors.nvidia.nvml.tiers import SYSTEM, Clocks

# In nvidia-smi's order: an MPS client is "M+C".
LISTS: Final = {
    "M": "nvmlDeviceGetMPSComputeRunningProcesses",
    "C": "nvmlDeviceGetComputeRunningProcesses",
    "G": "nvmlDeviceGetGraphicsRunningProcesses",
}
# Newest first: older drivers have no _v3, the oldest no _v2.
VERSIONS: Final = ("_v3", "_v2", "")
LIST_NAMES: Final = tuple(name + version for name in LISTS.values() for version in VERSIONS)
UTILIZATION: Final = "nvmlDeviceGetProcessesUtilizationInfo"
OLD_UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
"""Of drivers before R550: without the JPEG and optical flow engines."""
MAX_PERIOD_US: Final = 1_000_000  # of the driver's sampling
MAX_NAME_CHARACTERS: Final = 256
_NAME_BUFFER_BYTES: Final = 4096


class OldProcessInfo(ctypes.Structure):
    """The entry of the oldest lists, which the binding does not have: without MIG instance ids."""

    _fields_: Final = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]  # type: ignore[misc]


class UtilizationRequest(ctypes.Structure):
    """The binding's, with a plain pointer: to an array of `plain` samples."""

    _fields_: Final = [  # type: ignore[misc]
        ("version", ctypes.c_uint),
        ("processSamplesCount", ctypes.c_uint),
        ("lastSeenTimeStamp", ctypes.c_ulonglong),
        ("procUtilArray", ctypes.c_void_p),
    ]


@dataclass(slots=True)
class RunningProcess:
    """A process on one GPU or MIG instance, merged from all lists that contain it."""

    kinds: list[str] = field(default_factory=list)
    memory_bytes: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """The share of a GPU that a process used."""

    sm: Maybe[float]
    memory: Maybe[float]
    encoder: Maybe[float]
    decoder: Maybe[float]
    jpeg: Maybe[float] = ABSENT
    ofa: Maybe[float] = ABSENT


UNKNOWN: Final = ProcessShare(ABSENT, ABSENT, ABSENT, ABSENT)
IDLE: Final = ProcessShare(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
OLD_IDLE: Final = ProcessShare(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Shares:
    by_pid: Mapping[int, ProcessShare]
    others: ProcessShare
    """Of a process without a sample."""

    def of(self, pid: int) -> ProcessShare:
        return self.by_pid.get(pid, self.others)


class _Array:
    """A reused C array that grows to the size the driver needs."""

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
                if getattr(error, "value", None) != library.INSUFFICIENT_SIZE or attempt == 2:
                    raise
                # Twice the size: more processes may start before the next attempt.
                self.items = (self._element * (max(self.count.value, len(self.items)) * 2))()
        return None

    def filled(self) -> list[Any]:
        found: list[Any] = self.items[: min(self.count.value, len(self.items))]
        return found


class ProcessLists:
    """Reads the process lists of one GPU and its MIG instances into reused buffers."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arrays: dict[str, _Array] = {}

    def read(self, calls: DriverCalls) -> Maybe[dict[int, RunningProcess]]:
        """Processes by PID; ABSENT if no list could be read or one is stuck."""
        if any(calls.is_stuck(name) for name in LIST_NAMES):
            return ABSENT
        answered = False
        found: dict[int, RunningProcess] = {}
        for kind, name in LISTS.items():
            infos = self._read_list(calls, name)
            if infos is None:
                continue
            answered = True
            for info in infos:
                running = found.setdefault(info.pid, RunningProcess())
                if kind not in running.kinds:
                    running.kinds.append(kind)
                memory = as_is(info.usedGpuMemory)
                if running.memory_bytes is ABSENT or (memory is not ABSENT and memory > running.memory_bytes):
                    running.memory_bytes = memory
        return found if answered else ABSENT

    def _read_list(self, calls: DriverCalls, name: str) -> list[Any] | None:
        """The newest version of the list that this driver has; None if it cannot be read."""
        for version in VERSIONS:
            full_name = name + version
            if calls.run(full_name, calls.handle, function=self._filler(full_name, version)):
                return self._array(version).filled()
            if not calls.is_unavailable(full_name):
                return None  # it failed this time; an older version would too
        return None

    def _array(self, version: str) -> _Array:
        array = self._arrays.get(version)
        if array is None:
            layout = plain(self._library.nvml.c_nvmlProcessInfo_v3_t) if version else OldProcessInfo
            array = self._arrays[version] = _Array(layout)
        return array

    def _filler(self, name: str, version: str) -> Callable[[Any], None]:
        def fill(handle: Any) -> None:
            array, function = self._array(version), self._library.raw(name)
            array.fill(
                lambda: function(handle, ctypes.byref(array.count), array.items),
                self._library.nvml.NVMLError,
            )

        return fill


class ProcessShares:
    """One GPU's per-process utilisation since the last reading."""

    def __init__(self, calls: DriverCalls, clocks: Clocks = SYSTEM) -> None:
        self._calls = calls
        self._clocks = clocks
        self._array = _Array(plain(calls.library.nvml.c_nvmlProcessUtilizationInfo_v1_t))
        self._old_array = _Array(plain(calls.library.nvml.c_nvmlProcessUtilizationSample_t))
        self._since_us = 0
        self._read_at_us = 0

    def read(self) -> Maybe[Shares]:
        """ABSENT if the driver does not report them (MIG)."""
        now_us = self._clocks.now_us()
        a_period_ago = now_us - MAX_PERIOD_US  # the driver has at least one sample this recent
        self._since_us = min(self._read_at_us or a_period_ago, a_period_ago)
        self._read_at_us = now_us
        samples = self._samples(UTILIZATION, self._fill, self._array)
        if samples is not None:
            return Shares({sample.pid: _share(sample) for sample in samples}, IDLE)
        if not self._calls.is_refused(UTILIZATION):
            return ABSENT
        samples = self._samples(OLD_UTILIZATION, self._fill_old, self._old_array)
        if samples is None:
            return ABSENT
        return Shares({sample.pid: _old_share(sample) for sample in samples}, OLD_IDLE)

    def _samples(self, name: str, fill: Callable[[Any], None], array: _Array) -> list[Any] | None:
        """The oldest first; none if all processes were idle, None if the call failed."""
        failed_before = self._calls.failure_count(name)
        if self._calls.run(name, self._calls.handle, function=fill):
            return sorted(array.filled(), key=lambda sample: int(sample.timeStamp))
        failed = self._calls.is_unavailable(name) or self._calls.failure_count(name) > failed_before
        return None if failed else []

    def _fill(self, handle: Any) -> None:
        nvml, array = self._calls.library.nvml, self._array
        function = self._calls.library.raw(UTILIZATION)
        request = UtilizationRequest(nvml.ProcessesUtilizationInfo_v1, 0, self._since_us)

        def call() -> None:
            request.processSamplesCount = array.count.value
            request.procUtilArray = ctypes.addressof(array.items)
            try:
                function(handle, ctypes.byref(request))
            finally:
                array.count.value = request.processSamplesCount

        array.fill(call, nvml.NVMLError)

    def _fill_old(self, handle: Any) -> None:
        function, array = self._calls.library.raw(OLD_UTILIZATION), self._old_array
        since = ctypes.c_ulonglong(self._since_us)
        array.fill(
            lambda: function(handle, array.items, ctypes.byref(array.count), since),
            self._calls.library.nvml.NVMLError,
        )


def _old_share(sample: Any) -> ProcessShare:
    return ProcessShare(
        percent(sample.smUtil), percent(sample.memUtil), percent(sample.encUtil), percent(sample.decUtil)
    )


def _share(sample: Any) -> ProcessShare:
    # `dataclasses.replace` of an old share costs three times as much, each second for each process.
    return ProcessShare(
        percent(sample.smUtil),
        percent(sample.memUtil),
        percent(sample.encUtil),
        percent(sample.decUtil),
        percent(sample.jpgUtil),
        percent(sample.ofaUtil),
    )


@dataclass(frozen=True, slots=True)
class FoundProcesses:
    """The processes on one GPU or MIG instance by PID, without names."""

    running: Mapping[int, RunningProcess]
    shares: Maybe[Shares]
    instance_uuid: Maybe[Uuid] = ABSENT

    def to_processes(self, names: ProcessNames, gpu_uuid: Uuid) -> list[Process]:
        processes = []
        for pid, running in self.running.items():
            share = UNKNOWN if self.shares is ABSENT else self.shares.of(pid)
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
                    jpeg_ratio=share.jpeg,
                    ofa_ratio=share.ofa,
                )
            )
        return processes


class ProcessNames:
    """The driver's names of the running processes. Each is read once, and again with `refresh`."""

    def __init__(self, calls: DriverCalls) -> None:
        self._calls = calls
        self._names: dict[int, Maybe[str]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def short(self, pid: int) -> Maybe[str]:
        full = self.full(pid)
        return ABSENT if full is ABSENT else short_name(full)

    def full(self, pid: int) -> Maybe[str]:
        return self._names.get(pid, ABSENT)

    def update(self, pids: Iterable[int], refresh: bool) -> None:
        """Reads missing names and drops ended processes. `refresh` reads all: a PID may have been reused."""
        present = frozenset(pids)
        for pid in present:
            if refresh or pid not in self._names:
                self._names[pid] = self._read_name(pid)
        for gone in self._names.keys() - present:
            del self._names[gone]

    def _read_name(self, pid: int) -> Maybe[str]:
        # The driver reads /proc, which can block on an uninterruptible process, so each PID has its own call
        # key and buffer. The C function, because the binding fails on a name that is not UTF-8.
        buffer = ctypes.create_string_buffer(_NAME_BUFFER_BYTES)
        key = ("nvmlSystemGetProcessName", pid)
        if self._calls.is_stuck(key):
            return ABSENT
        try:
            function = self._calls.library.raw("nvmlSystemGetProcessName")
            size = ctypes.c_uint(_NAME_BUFFER_BYTES)
            self._calls.call(
                key, "nvmlSystemGetProcessName", function, ctypes.c_uint(pid), buffer, size, qualifier=(pid,)
            )
        except self._calls.library.nvml.NVMLError:
            return ABSENT  # it has ended, or is in another PID namespace
        return buffer.value.decode("utf-8", "replace") or ABSENT


def short_name(full: str) -> Maybe[str]:
    """The executable's name, without path and without arguments, which may contain secrets."""
    command = full.strip().split(" ", 1)[0]
    name = command.rstrip("/").rsplit("/", 1)[-1][:MAX_NAME_CHARACTERS]
    return name or ABSENT
