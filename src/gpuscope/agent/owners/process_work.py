"""What GPU processes do on the CPU: CPU time, the busiest thread, waits for I/O and network, reads, children.

From /proc, every five seconds; a ratio is a mean over the last minute. Times are exact: the kernel counts them.
Waits are the share of samples at which a task was blocked, because most kernels count no I/O delays. Of a
process and its children the task that waits most counts, as data is loaded by children. A file that cannot be
read makes its number ABSENT: `wchan`, which distinguishes network waits from other sleep, needs root.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpuscope.agent.owners.proc import Proc, ProcessGone
from gpuscope.agent.owners.process_lookup import ProcessKey
from gpuscope.agent.owners.process_usage import UNINTERRUPTIBLE, UsageStat, parse_usage
from gpuscope.model.readings import ABSENT, Maybe, ProcessWork

SAMPLE_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 60.0
MIN_WINDOW_SHARE: Final = 1 / 6
"""Share of the window that must be covered: a ratio over less time means little."""
MAX_PROCESSES: Final = 256
"""With more GPU processes, each sample covers a part of them, in turn."""
MAX_CHILDREN: Final = 64
MAX_THREADS: Final = 256
_OTHER_THREADS_RATIO: Final = 0.05
"""Other threads are sampled above this CPU share: below it no thread is busy, even on few cores."""
_SAMPLES_PER_SCAN: Final = 6
"""Threads are scanned less often than processes: PyTorch has hundreds of them."""
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_NANOSECOND: Final = 1e-9

NETWORK_WAITS: Final = (
    "wait_woken", "sk_wait_data", "sk_stream_wait", "__skb_wait_for_more_packets", "inet_stream_connect",
    "inet_wait_for_connect",
)  # fmt: skip
"""Beginnings of kernel functions in which a task waits to receive from the network. Not those of poll and
epoll: an idle server waits there too."""
FILE_WAITS: Final = ("request_wait_answer", "fuse_", "folio_wait")
"""The same for files, beside the state D: a file system in user space blocks readers in an ordinary sleep."""


class _ThreadTime(NamedTuple):
    """Seconds since its start."""

    running: float
    runnable: float
    """Running, or waiting for a core: what a thread wants, also on a machine with too few cores."""


@dataclass(frozen=True, slots=True)
class _TaskSample:
    at: float
    cpu_seconds: float
    main_thread: Maybe[_ThreadTime]
    is_blocked: bool
    waits_for_network: Maybe[bool]
    io_seconds: Maybe[float]


@dataclass(slots=True)
class _Task:
    """A process: samples of the last minute."""

    samples: deque[_TaskSample] = field(default_factory=deque)
    threads: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Of a GPU process: when its other threads were scanned, and their runnable seconds."""
    samples_to_scan: int = 0
    busiest_other: float = 0.0
    """The runnable share of the busiest of them, between the last two scans."""
    read_now: int = 0
    """What it and its children have read, by their counters of now."""
    read_bytes: Maybe[float] = ABSENT
    """The same, never less than before: the counter of a child that ends may be lost."""

    def add(self, sample: _TaskSample, window: float) -> None:
        self.samples.append(sample)
        while len(self.samples) > 2 and sample.at - self.samples[1].at >= window:
            self.samples.popleft()

    def add_reads(self, total: Maybe[int]) -> None:
        """The kernel adds the reads of a child that was waited for to its parent."""
        if total is ABSENT:
            self.read_bytes = ABSENT
            return
        gained = total if self.read_bytes is ABSENT else max(0, total - self.read_now)
        self.read_now, self.read_bytes = total, gained + (0.0 if self.read_bytes is ABSENT else self.read_bytes)

    @property
    def seconds(self) -> float:
        return self.samples[-1].at - self.samples[0].at

    def cpu_ratio(self) -> float:
        return max(0.0, self.samples[-1].cpu_seconds - self.samples[0].cpu_seconds) / self.seconds

    def run_ratio(self) -> Maybe[float]:
        first, last = self.samples[0].main_thread, self.samples[-1].main_thread
        if first is ABSENT or last is ABSENT:
            return ABSENT
        return max(0.0, last.running - first.running) / self.seconds

    def io_wait_ratio(self) -> float:
        """The kernel's own count, or the share of samples, whichever is more: each misses some waits."""
        seen = [sample.is_blocked for sample in self.samples]
        first, last = self.samples[0].io_seconds, self.samples[-1].io_seconds
        counted = 0.0 if first is ABSENT or last is ABSENT else (last - first) / self.seconds
        return min(1.0, max(counted, sum(seen) / len(seen)))

    def network_wait_ratio(self) -> Maybe[float]:
        seen = [sample.waits_for_network for sample in self.samples if sample.waits_for_network is not ABSENT]
        return sum(seen) / len(seen) if seen else ABSENT

    def busiest_ratio(self) -> Maybe[float]:
        first, last = self.samples[0].main_thread, self.samples[-1].main_thread
        if first is ABSENT or last is ABSENT:
            return ABSENT
        return min(1.0, max((last.runnable - first.runnable) / self.seconds, self.busiest_other))


class ProcessWorkReader:
    """Call `advance` every cycle with the GPU processes that are present; it samples them when it is time."""

    def __init__(
        self, proc: Proc, sample_seconds: float = SAMPLE_SECONDS, window_seconds: float = WINDOW_SECONDS
    ) -> None:
        self._proc = proc
        self._sample_seconds = sample_seconds
        self._window_seconds = window_seconds
        self._min_window_seconds = window_seconds * MIN_WINDOW_SHARE
        self._counts_io = _kernel_counts_io(proc)
        self._tasks: dict[ProcessKey, _Task] = {}
        self._work: dict[ProcessKey, ProcessWork] = {}
        self._sampled_at: float | None = None
        self._turn = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def advance(self, keys: Iterable[ProcessKey], at: float) -> Mapping[ProcessKey, ProcessWork]:
        """`at` is monotonic."""
        if self._sampled_at is None or not 0 <= at - self._sampled_at < self._sample_seconds:
            self._sampled_at = at
            self._sample_all(list(keys), at)
        return self._work

    def _sample_all(self, keys: list[ProcessKey], at: float) -> None:
        present = {key.pid for key in keys}
        begin = self._turn % len(keys) if len(keys) > MAX_PROCESSES else 0
        chosen = (keys[begin:] + keys[:begin])[:MAX_PROCESSES]
        self._turn = begin + MAX_PROCESSES
        kept: dict[ProcessKey, _Task] = {}
        work: dict[ProcessKey, ProcessWork] = {}
        for key in chosen:
            try:
                work[key] = self._sample_process(key, at, present, kept)
            except (ProcessGone, OSError, ValueError):
                continue
        if len(keys) > MAX_PROCESSES:
            self._keep_others(keys, kept, work)
        self._tasks, self._work = kept, work

    def _keep_others(
        self, keys: list[ProcessKey], kept: dict[ProcessKey, _Task], work: dict[ProcessKey, ProcessWork]
    ) -> None:
        """Processes that were not sampled in this turn keep their last numbers."""
        for key in keys:
            if key not in work and key in self._work:
                work[key] = self._work[key]
            if key not in kept and key in self._tasks:
                kept[key] = self._tasks[key]

    def _sample_process(
        self, key: ProcessKey, at: float, present: set[int], kept: dict[ProcessKey, _Task]
    ) -> ProcessWork:
        stat = self._stat(key.pid)
        if stat.start_ticks != key.start_ticks:
            raise ProcessGone
        task = self._advance(key, stat, at, kept, is_gpu_process=True)
        children: list[_Task] = []
        read_bytes = self._read_bytes(key.pid)
        pids = self._children(key.pid)
        for pid in () if pids is ABSENT else pids[:MAX_CHILDREN]:
            if pid in present:
                continue  # it has numbers of its own
            try:
                child_stat = self._stat(pid)
                child = ProcessKey(pid, child_stat.start_ticks)
                children.append(self._advance(child, child_stat, at, kept))
            except (ProcessGone, OSError, ValueError):
                continue
            if read_bytes is not ABSENT:
                read = self._read_bytes(pid)
                read_bytes += 0 if read is ABSENT else read
        task.add_reads(read_bytes)
        return self._summary(stat, task, children, pids)

    def _summary(
        self, stat: UsageStat, task: _Task, children: list[_Task], pids: Maybe[list[int]]
    ) -> ProcessWork:
        memory, count = float(stat.memory_bytes), ABSENT if pids is ABSENT else len(pids)
        if task.seconds < self._min_window_seconds:
            return ProcessWork(resident_memory_bytes=memory, children=count, read_bytes=task.read_bytes)
        known = [child for child in children if child.seconds >= self._min_window_seconds]
        every = (task, *known)
        return ProcessWork(
            cpu_ratio=task.cpu_ratio(),
            run_ratio=task.run_ratio(),
            io_wait_ratio=max(watched.io_wait_ratio() for watched in every),
            network_wait_ratio=_highest(watched.network_wait_ratio() for watched in every),
            busiest_thread_ratio=_highest(watched.busiest_ratio() for watched in every),
            resident_memory_bytes=memory,
            children=count,
            children_cpu_ratio=ABSENT if pids is ABSENT else sum(child.cpu_ratio() for child in known),
            read_bytes=task.read_bytes,
        )

    def _advance(
        self,
        key: ProcessKey,
        stat: UsageStat,
        at: float,
        kept: dict[ProcessKey, _Task],
        is_gpu_process: bool = False,
    ) -> _Task:
        task = kept[key] = self._tasks.get(key) or _Task()
        cpu_seconds, main = stat.cpu_ticks / _TICKS_PER_SECOND, self._thread_time(key.pid, key.pid)
        waits_in = self._kernel_function(key.pid, stat.state)
        sample = _TaskSample(
            at,
            cpu_seconds,
            main,
            stat.state == UNINTERRUPTIBLE or (waits_in is not ABSENT and waits_in.startswith(FILE_WAITS)),
            ABSENT if waits_in is ABSENT else waits_in.startswith(NETWORK_WAITS),
            stat.io_ticks / _TICKS_PER_SECOND if self._counts_io else ABSENT,
        )
        if is_gpu_process:
            self._scan_threads(key.pid, task, sample)
        task.add(sample, self._window_seconds)
        return task

    def _scan_threads(self, pid: int, task: _Task, sample: _TaskSample) -> None:
        """Finds the busiest thread except the main one, at intervals, and only if other threads use the CPU."""
        first = task.samples[0] if task.samples else None
        task.samples_to_scan -= 1
        if (
            first is None
            or sample.main_thread is ABSENT
            or first.main_thread is ABSENT
            or sample.at <= first.at
        ):
            return
        main = sample.main_thread.running - first.main_thread.running
        if sample.cpu_seconds - first.cpu_seconds - main < _OTHER_THREADS_RATIO * (sample.at - first.at):
            task.threads, task.busiest_other, task.samples_to_scan = {}, 0.0, 0
            return
        if task.samples_to_scan > 0 and task.threads:
            return
        before, task.threads, task.samples_to_scan = task.threads, {}, _SAMPLES_PER_SCAN
        busiest = 0.0
        for thread in self._proc.threads(pid)[:MAX_THREADS]:
            time = ABSENT if thread == pid else self._thread_time(pid, thread)
            if time is ABSENT:
                continue
            task.threads[thread] = sample.at, time.runnable
            if thread in before and sample.at > before[thread][0]:
                busiest = max(busiest, (time.runnable - before[thread][1]) / (sample.at - before[thread][0]))
        task.busiest_other = busiest

    def _stat(self, pid: int) -> UsageStat:
        return parse_usage(self._proc.read(pid, "stat"))

    def _thread_time(self, pid: int, thread: int) -> Maybe[_ThreadTime]:
        try:
            running, waiting = self._proc.read(pid, f"task/{thread}/schedstat").split()[:2]
            return _ThreadTime(int(running) * _NANOSECOND, (int(running) + int(waiting)) * _NANOSECOND)
        except (ProcessGone, OSError, ValueError):
            return ABSENT

    def _kernel_function(self, pid: int, state: str) -> Maybe[str]:
        """The kernel function in which the main thread sleeps; empty if it does not sleep."""
        if state not in ("S", UNINTERRUPTIBLE):
            return ""
        try:
            name = self._proc.read(pid, "wchan").decode("ascii", "replace")
        except (ProcessGone, OSError):
            return ABSENT
        return ABSENT if name in ("", "0") else name

    def _read_bytes(self, pid: int) -> Maybe[int]:
        """Only root and its own user may read it."""
        try:
            name, value = self._proc.read(pid, "io").split(None, 2)[:2]
            return int(value) if name == b"rchar:" else ABSENT
        except (ProcessGone, OSError, ValueError):
            return ABSENT

    def _children(self, pid: int) -> Maybe[list[int]]:
        """Of the main thread, which starts the workers of a data loader."""
        try:
            return [int(word) for word in self._proc.read(pid, f"task/{pid}/children").split()]
        except (ProcessGone, OSError, ValueError):
            return ABSENT


def _highest(values: Iterable[Maybe[float]]) -> Maybe[float]:
    known = [value for value in values if value is not ABSENT]
    return max(known) if known else ABSENT


def _kernel_counts_io(proc: Proc) -> bool:
    """Whether /proc/PID/stat has I/O delays: since Linux 5.14 only if they are switched on."""
    try:
        return proc.read_file("sys/kernel/task_delayacct").strip() == b"1"
    except OSError:
        return False
