"""Reads one thing at an interval, in its own thread, so that a read that hangs blocks nothing else.

A `Worker[T]` opens a reader, reads it at an interval, keeps the latest value of type T, closes and reopens the
reader with back-off after a failure, and reports its status. A source is a `Worker[Reading]`; pods, allocation
claims, container names, job files and process facts have workers with a type of their own. This is the only
place that catches what a reader raises. The wiring starts the thread; `fresh` is ABSENT without a value. It is
not part of `collect/`, because `owners/`, which stands above it, has workers too.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, TypeVar

from gpuscope.base.clock import Clock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import NoAnswerYet, SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Maybe, SourceStatus

log = logging.getLogger("gpuscope.source")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_BACKOFF_SECONDS = 30.0
MAX_FAILING_PARTS_LOGGED = 256
NOT_READ_YET = "not read yet"


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[T_co]):
    """What one read gave. `failures` counts, by name, the parts of it that failed while the rest succeeded."""

    value: T_co
    failures: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True  # False: the rest comes with the next read; one-shot commands wait for it
    down: str = ""  # reason, if the reader itself reports that what it reads is down; the value still counts


class ValueReader(Protocol[T_co]):
    """After any error of `read` but `NoAnswerYet` the reader is closed and opened again."""

    def read(self) -> ReadResult[T_co]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FunctionReader(Generic[T]):
    """A reader without state: calls `function` for each read."""

    function: Callable[[], T]

    def read(self) -> ReadResult[T]:
        return ReadResult(self.function())

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a worker reads and how long its value counts, in seconds.

    `deadline`: without an answer for this long the worker counts as down. `good_for` is how long a value stays
    fresh although later reads fail; None: until the deadline or the next failure. `slack` is the tolerance of
    `interval`: a tick that comes slightly early must not wait for the next one.
    """

    interval: float
    deadline: float
    slack: float = 0.0
    good_for: float | None = None


@dataclass(frozen=True, slots=True)
class _LastRead(Generic[T]):
    """The result of the last successful read; `began` and `ended` are monotonic, `at` is wall-clock time."""

    result: ReadResult[T]
    began: float
    ended: float
    at: float


class Worker(Generic[T]):
    def __init__(
        self,
        name: str,
        summary: str,
        open_reader: Callable[[], ValueReader[T]],
        timing: Timing,
        clock: Clock,
        *,
        reuse_equal: bool = False,
        log_first_read: bool = True,
    ) -> None:
        """`reuse_equal`: a value equal to the one before is the same object, so that `is` can compare them."""
        self.name = name
        self.summary = summary
        self.wanted = True
        """Set by the collector. A worker that is not wanted closes its reader and forgets its value."""
        self._open_reader = open_reader
        self._timing = timing
        self._clock = clock
        self._reuse_equal = reuse_equal
        self._log_first_read = log_first_read
        self._reader: ValueReader[T] | None = None
        self._latest: _LastRead[T] | None = None
        self._failure = NOT_READ_YET  # why the last read failed; empty after a success
        self._episode = EpisodeLog(
            log, f"source {name}", recovered=f"answers ({summary})", clock=clock.monotonic
        )
        self._failing_parts: dict[str, EpisodeLog] = {}
        self._woken_at: float | None = None  # when it was first woken
        self._answering_since = float("-inf")
        self._waiting_for = ""  # what the reader waits for, from NoAnswerYet
        self._failures = 0
        self._failed_reads = 0
        self._code: Maybe[int] = ABSENT
        self._backoff = 0.0
        self._next_due = 0.0
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False

    # For users of the value; safe in any thread.

    def fresh(self) -> Maybe[T]:
        """The latest value, unless it is too old or a later read failed (`Timing.good_for`)."""
        latest, good_for = self._latest, self._timing.good_for
        if latest is None or (good_for is None and self._failure):
            return ABSENT
        max_age = self._timing.deadline if good_for is None else good_for
        return ABSENT if self._clock.monotonic() - latest.ended > max_age else latest.result.value

    def has_answered_since(self, monotonic: float) -> bool:
        """Whether a read that began at this time or later has succeeded."""
        return self._latest is not None and self._latest.began >= monotonic

    def status(self) -> SourceStatus:
        latest, failure = self._latest, self._failure
        if self._silent_for() > self._timing.deadline:
            failure = self._no_answer()
        elif not failure and latest is not None:
            failure = latest.result.down
        return SourceStatus(
            name=self.name,
            up=not failure,
            why=failure or self.summary,
            failures=self._failures,
            failed_reads=self._failed_reads,
            code=self._code,
            duration_seconds=ABSENT if latest is None else latest.ended - latest.began,
            last_success_at=ABSENT if latest is None else latest.at,
        )

    def is_down(self) -> bool:
        """Failed or silent past its deadline; False while the first read is still running."""
        if self._failure in ("", NOT_READ_YET):
            reported = self._latest is not None and bool(self._latest.result.down)
            return reported or self._silent_for() > self._timing.deadline
        return True

    def is_waiting(self) -> bool:
        """Whether it works but has not answered yet, or not with everything."""
        latest = self._latest
        return bool(self._waiting_for) or (
            latest is not None and not self._failure and not latest.result.complete
        )

    def answering_for(self) -> float:
        """Seconds since its first answer, or the first answer after a failure."""
        return self._clock.monotonic() - self._answering_since

    def _silent_for(self) -> float:
        """Seconds without an answer; 0 while the reason of a failure is known."""
        if self._failure not in ("", NOT_READ_YET):
            return 0.0
        since = self._woken_at if self._latest is None else self._latest.ended
        return 0.0 if since is None else self._clock.monotonic() - since

    def _no_answer(self) -> str:
        waiting_for = f": {self._waiting_for}" if self._waiting_for else ""
        return f"no answer for {self._silent_for():.0f} s{waiting_for}"

    # For the collector.

    def wake_if_due(self) -> bool:
        """Wakes the thread if it is time for a read and the last one is over."""
        if not self._idle.is_set():
            self._log_if_silent()
            return False
        due = self.wanted and self._clock.monotonic() >= self._next_due
        if due or (not self.wanted and self._reader is not None):
            if self._woken_at is None:
                self._woken_at = self._clock.monotonic()
            self._idle.clear()
            self._wake.set()
        return due

    def wait(self, seconds: float) -> bool:
        """Waits until the current read is over; False if it was still running after `seconds`."""
        return self._idle.wait(seconds)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    # For the worker's own thread.

    def run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                self.close_reader()
                return
            if self.wanted:
                self.read_once()
            else:
                self._retire()
            self._idle.set()

    def read_once(self) -> None:
        """Opens the reader if it is not open, and reads it once."""
        began = self._clock.monotonic()
        self._next_due = began + self._timing.interval - self._timing.slack
        try:
            if self._reader is None:
                self._reader = self._open_reader()
            result = self._reader.read()
        except NoAnswerYet as waiting:
            self._waiting_for = str(waiting)
            self._log_if_silent()
        except Exception as error:  # a reader may fail in any way; nothing else may fail with it
            self._failed(error)
        else:
            self._succeeded(result, began)

    def _succeeded(self, result: ReadResult[T], began: float) -> None:
        ended, before = self._clock.monotonic(), self._latest
        if self._reuse_equal and before is not None and before.result.value == result.value:
            result = replace(result, value=before.result.value)
        self._latest = _LastRead(result, began, ended, self._clock.now())
        self._log_failing_parts(result.failures)
        if result.down:
            self._reported_down(result.down)
            return
        if self._failure or self._episode.why:
            self._answering_since = ended
            if not self._episode.why and self._log_first_read:
                log.info("source %s answers: %s", self.name, self.summary)
        self._episode.succeeded()
        self._failure, self._backoff, self._code, self._waiting_for = "", 0.0, 0, ""

    def _reported_down(self, why: str) -> None:
        """The reader works and says that what it reads is down: no reopening, no back-off."""
        self._failures += 1
        self._code = -1
        self._episode.failed(why, kind="down")
        self._failure, self._backoff, self._waiting_for = "", 0.0, ""

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._failed_reads += 1
        self._code = error.code if isinstance(error, SourceError) else -1
        reason = str(error) or type(error).__name__
        # By type and code, not by text: a command may print something new each time.
        self._episode.failed(reason, kind=(type(error).__name__, self._code))
        self._failure, self._waiting_for = reason, ""
        self.close_reader()
        self._backoff = min(max(2 * self._backoff, self._timing.interval), MAX_BACKOFF_SECONDS)
        self._next_due = self._clock.monotonic() + self._backoff * 0.9

    def _retire(self) -> None:
        """Closes a reader that is not wanted any more: DCGM's holds a process open."""
        self.close_reader()
        self._latest, self._woken_at, self._failure = None, None, NOT_READ_YET
        log.info("source %s is not needed any more", self.name)

    def _log_if_silent(self) -> None:
        if self._silent_for() > self._timing.deadline:
            self._episode.failed(self._no_answer(), kind="no answer")

    def _log_failing_parts(self, failures: Mapping[str, int]) -> None:
        if not failures and not self._failing_parts:
            return
        self._failures += sum(failures.values())
        for part in sorted(failures):
            if part not in self._failing_parts and len(self._failing_parts) < MAX_FAILING_PARTS_LOGGED:
                self._failing_parts[part] = EpisodeLog(
                    log,
                    f"source {self.name}: {part}",
                    recovered="answers again",
                    clock=self._clock.monotonic,
                )
                self._failing_parts[part].failed("failed; the other values are still read")
        for part in sorted(self._failing_parts.keys() - failures.keys()):
            self._failing_parts.pop(part).succeeded()

    def close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except Exception as error:
                log.debug("source %s: closing failed: %s", self.name, error)


# How often the workers of lookups read, and how long what they found counts.

KUBELET_GOOD_FOR_SECONDS: Final = 60.0


def kubelet_timing(settings: Settings) -> Timing:
    """For what the kubelet says: a kubelet that restarts must not make every pod disappear."""
    return Timing(
        interval=settings.kubelet_interval,
        deadline=KUBELET_GOOD_FOR_SECONDS,
        slack=0.5 * settings.interval,
        good_for=KUBELET_GOOD_FOR_SECONDS,
    )


def lasting_timing(settings: Settings, interval: float) -> Timing:
    """For facts that do not change: a process keeps its cgroup, a container its name, whatever fails later."""
    return Timing(
        interval=interval,
        deadline=max(5.0, 3 * settings.interval),
        slack=0.5 * settings.interval,
        good_for=math.inf,
    )
