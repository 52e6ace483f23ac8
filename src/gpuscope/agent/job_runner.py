"""The threads that make calls of a driver, or read its files: one runner per GPU, and one for what concerns
no single GPU.

A runner executes one job at a time in its own thread, which records each call when it enters it. A call that
exceeds its deadline is stuck: its thread is abandoned in the call, a new thread takes over the runner, and the
job starts again without that call. The call is repeated only after it has returned. The number of abandoned
threads is limited, per runner and in the process.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from gpuscope.base.clock import Clock

log = logging.getLogger("gpuscope.source")


class StuckCallLog:
    """Log lines about stuck calls of all runners of a source.

    A stuck call and its return are logged while other GPUs answer. While no GPU answers, only the first stuck
    call is logged: a driver that blocks every call of eight GPUs would otherwise cause forty lines, and the
    source's own message contains their number. Calls that are still stuck when GPUs answer again are logged
    then.
    """

    def __init__(self, answers: Callable[[], bool] = lambda: True, source: str = "nvml") -> None:
        """`answers` returns whether any GPU answered its last calls."""
        self._answers = answers
        self.source = source
        self._logged: set[Hashable] = set()  # threads whose stuck calls were logged

    def should_log(self, thread: Hashable) -> bool:
        """Whether to log this thread's call now. If so, its return is logged too."""
        if thread in self._logged or (self._logged and not self._answers()):
            return False
        self._logged.add(thread)
        return True

    def forget(self, thread: Hashable) -> None:
        self._logged.discard(thread)

    def stuck(self, call: object, seconds: float) -> None:
        log.warning(
            "source %s: %s has not returned for %.0f s; its number is absent, other numbers are still read",
            self.source, call, seconds,
        )  # fmt: skip

    def returned(self, thread: Hashable, call: object, seconds: float, pause_seconds: float) -> None:
        if thread in self._logged:
            pause = f"; it is called again in {pause_seconds:.0f} s" if pause_seconds else ""
            log.info("source %s: %s returned after %.0f s%s", self.source, call, seconds, pause)

    def blocked(self, runner: str, calls: int) -> bool:
        """Logs that a runner makes no calls; returns whether it was logged."""
        if not self._answers():
            return False
        log.warning(
            "source %s: %s: %d calls have not returned; no call is made until one returns",
            self.source, runner, calls,
        )  # fmt: skip
        return True


CALL_DEADLINE_SECONDS: Final = 2.0  # the slowest call takes 20 ms, or some 100 ms while a GPU wakes up
MAX_STUCK_CALLS: Final = 4  # per runner; with this many no call is made until one returns
MAX_ABANDONED_THREADS: Final = 32  # in this process; with this many no thread is replaced
# A call that is stuck again within RELAPSE_SECONDS is repeated after a pause, which doubles each time. Without
# the pause, a call that always takes 3 s would fill the log.
RELAPSE_SECONDS: Final = 600.0
FIRST_PAUSE_SECONDS: Final = 10.0
MAX_PAUSE_SECONDS: Final = 300.0
MIN_STRUCT_VERSION: Final = 1 << 24  # NVML's version arguments are larger than any sensor, link or field id
CHECK_SECONDS: Final = 0.05  # how often `wait` checks for overdue calls

Job = Callable[[], None]


class ThreadAbandoned(BaseException):
    """Ends a thread whose call returned after another thread had replaced it.

    A BaseException, so that no `except Exception` between the call and the thread's start catches it.
    """


class PendingCall(NamedTuple):
    key: Hashable  # calls with this key are skipped while this call is stuck
    device_name: str  # "GPU 3", or "" for the driver itself
    name: str
    qualifier: tuple[object, ...]  # distinguishes calls of the same name
    since: float

    def __str__(self) -> str:
        # A struct version (0x2000028: a number and the size) has no meaning for the reader.
        shown = [str(each) for each in self.qualifier if not _is_struct_version(each)]
        arguments = f"({', '.join(shown)})" if shown else ""
        return f"{self.device_name}: {self.name}{arguments}" if self.device_name else f"{self.name}{arguments}"


def _is_struct_version(argument: object) -> bool:
    return isinstance(argument, int) and argument >= MIN_STRUCT_VERSION


_abandoned: set[JobThread] = set()


def abandoned_threads() -> int:
    """The number of threads in this process, of all sessions, that may still be in a stuck call."""
    return len(_abandoned)


class JobThread:
    """A thread and the driver call it is in."""

    def __init__(self, runner: JobRunner, finished: SimpleQueue[JobRunner]) -> None:
        self._runner = runner
        self._finished = finished
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Held to decide whether the call has returned or the thread is abandoned.
        self._lock = threading.Lock()
        self._entered: tuple[Any, ...] | None = None
        self._abandoned = False
        threading.Thread(
            target=self._run, name=f"{runner.stuck_call_log.source} {runner.name}", daemon=True
        ).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def enter(self, *call: Any) -> None:
        """`call` has the fields of a PendingCall, which is built only when needed: this runs at every call."""
        if self._abandoned:
            raise ThreadAbandoned
        self._entered = call

    def leave(self) -> None:
        with self._lock:
            self._entered = None
            if self._abandoned:
                raise ThreadAbandoned

    def call(self) -> PendingCall | None:
        entered = self._entered
        return None if entered is None else PendingCall(*entered)

    def abandon(self, call: PendingCall) -> bool:
        """Abandons this thread if it is still in `call`; returns whether it was."""
        with self._lock:
            self._abandoned = self._entered == call
            return self._abandoned

    def end(self) -> None:
        """Ends this thread after its jobs."""
        self._jobs.put(None)

    def abandon_now(self) -> None:
        """Ends this thread when its call returns, or before its next call."""
        _abandoned.add(self)
        with self._lock:
            self._abandoned = True
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                error = None
                try:
                    job()
                except Exception as raised:
                    error = raised
                self._runner.job_ended(error)
                self._finished.put(self._runner)
                del job, error  # free what they refer to before waiting for the next job
        except ThreadAbandoned:
            self._runner.thread_returned(self)
        finally:
            _abandoned.discard(self)


class JobRunner:
    """Runs the jobs of one GPU, or of the driver itself, one after another.

    Only the coordinating thread calls `start`, `replace_overdue_thread` and `stop`. Only the job may use its
    data until the runner is idle again.
    """

    def __init__(self, name: str, clocks: Clock, stuck_call_log: StuckCallLog | None = None) -> None:
        self.name = name
        self.stuck_call_log = stuck_call_log or StuckCallLog()
        self.failures: Counter[str] = Counter()  # failed calls by name, until they are collected
        self.thread: JobThread | None = None
        self.error: Exception | None = None  # raised by the last job
        self.returned = 0  # number of stuck calls that have returned
        self.now = clocks.monotonic
        self._job: Job | None = None
        self._replaceable = True
        self.stuck_calls: dict[JobThread, PendingCall] = {}
        self.skipped: dict[Hashable, float] = {}  # key of a call -> time until which it is not made
        self._relapses: dict[Hashable, tuple[int, float]] = {}  # key -> times stuck, when it last returned
        self._logged_blocked = False

    @property
    def idle(self) -> bool:
        return self._job is None

    @property
    def blocked(self) -> bool:
        """Whether the job cannot continue until a stuck call returns."""
        return self._job is not None and self.thread is None

    @property
    def has_stuck_calls(self) -> bool:
        return bool(self.stuck_calls)

    def calls(self) -> list[PendingCall]:
        """The calls that have not returned, oldest first."""
        now = self.thread.call() if self.thread is not None else None
        return [*self.stuck_calls.values(), *([now] if now is not None else [])]

    # Called by the coordinating thread

    def start(self, job: Job, finished: SimpleQueue[JobRunner], replaceable: bool = True) -> None:
        """Starts a job. The thread of a job that is not `replaceable` is never abandoned."""
        if self._job is not None:
            raise RuntimeError(f"{self.name} is busy")
        self._job, self._replaceable, self.error = job, replaceable, None
        if self.thread is None:
            self.thread = JobThread(self, finished)
        self.thread.submit(job)

    def replace_overdue_thread(self, finished: SimpleQueue[JobRunner]) -> bool:
        """Abandons the thread if its call is overdue; returns whether a new thread took over the job."""
        if self._job is None or not self._replaceable:
            return False
        if self.thread is not None:
            call = self.thread.call()
            overdue = call is not None and self.now() - call.since > CALL_DEADLINE_SECONDS
            if call is None or not overdue or not self._abandon_thread(self.thread, call):
                return False
            self.thread = None
        job = self._job
        if len(self.stuck_calls) < MAX_STUCK_CALLS and abandoned_threads() < MAX_ABANDONED_THREADS:
            self._logged_blocked = False
            self.thread = JobThread(self, finished)
            self.thread.submit(job)
            return True
        if not self._logged_blocked:
            self._logged_blocked = self.stuck_call_log.blocked(self.name, len(self.stuck_calls))
        return False

    def _abandon_thread(self, thread: JobThread, call: PendingCall) -> bool:
        # Recorded first: an abandoned thread removes these records when its call returns.
        self.stuck_calls[thread] = call
        self.skipped[call.key] = float("inf")
        _abandoned.add(thread)
        should_log = self.stuck_call_log.should_log(thread)
        if not thread.abandon(call):
            self._forget(thread)
            return False
        if should_log:
            self.stuck_call_log.stuck(call, self.now() - call.since)
        return True

    def log_stuck_calls(self) -> None:
        """Logs stuck calls that were not logged because no GPU answered."""
        for thread, call in list(self.stuck_calls.items()):
            if not self.stuck_call_log.should_log(thread):
                continue
            if thread in self.stuck_calls:
                self.stuck_call_log.stuck(call, self.now() - call.since)
            else:  # the call has returned meanwhile
                self.stuck_call_log.forget(thread)

    def run_last(self, job: Job, finished: SimpleQueue[JobRunner]) -> None:
        """Runs a last job if the runner is idle, then ends the thread."""
        if not self.idle:
            self.stop()
            return
        self.start(job, finished, replaceable=False)
        if self.thread is not None:
            self.thread.end()

    def stop(self) -> None:
        """Ends the thread, or abandons it in its call."""
        thread, self.thread = self.thread, None
        if thread is not None:
            (thread.end if self.idle else thread.abandon_now)()

    # Called by jobs

    def is_skipped(self, key: Hashable) -> bool:
        """Whether this call must not be made now: it is stuck, or paused after being stuck repeatedly."""
        until = self.skipped.get(key)
        if until is None:
            return False
        if until > self.now():
            return True
        self.skipped.pop(key, None)
        return False

    def job_ended(self, error: Exception | None) -> None:
        self.error = error
        self._job = None

    # Called by abandoned threads

    def thread_returned(self, thread: JobThread) -> None:
        call = self.stuck_calls.get(thread)
        if call is None:
            return  # the runner was stopped
        now = self.now()
        times, last = self._relapses.get(call.key, (0, float("-inf")))
        times = min(times + 1, 10) if call.since - last < RELAPSE_SECONDS else 0
        self._relapses = {key: seen for key, seen in self._relapses.items() if now - seen[1] < RELAPSE_SECONDS}
        self._relapses[call.key] = (times, now)
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (times - 1), MAX_PAUSE_SECONDS) if times else 0.0
        self.stuck_call_log.returned(thread, call, now - call.since, pause)
        self._forget(thread, now + pause if pause else None)
        self.returned += 1

    def _forget(self, thread: JobThread, paused_until: float | None = None) -> None:
        call = self.stuck_calls.pop(thread)
        self.stuck_call_log.forget(thread)
        if paused_until is None:
            self.skipped.pop(call.key, None)
        else:
            self.skipped[call.key] = paused_until
        _abandoned.discard(thread)


class JobRunners:
    """Waits for runners and replaces threads whose calls are overdue."""

    def __init__(self, clocks: Clock) -> None:
        self._clocks = clocks
        self.finished: SimpleQueue[JobRunner] = SimpleQueue()

    def start(self, runner: JobRunner, job: Job, replaceable: bool = True) -> None:
        runner.start(job, self.finished, replaceable)

    def wait(self, runners: Iterable[JobRunner], until: float) -> None:
        """Waits until all are idle or blocked, or until the monotonic time `until`."""
        waiting = list(runners)
        while not self.finished.empty():
            self.finished.get_nowait()  # left from an earlier wait that saw the runner idle first
        while waiting := [runner for runner in waiting if not (runner.idle or runner.blocked)]:
            left = until - self._clocks.monotonic()
            if left <= 0:
                return
            try:
                # Short waits: a test's clock may advance during them.
                self.finished.get(timeout=min(left, CHECK_SECONDS))
            except Empty:
                for runner in waiting:
                    runner.replace_overdue_thread(self.finished)
