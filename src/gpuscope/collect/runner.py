"""One source, kept alive: opened, read at its tiers, reopened with back-off after a failure.

A runner's `cycle` runs in a thread of its own, started by the wiring; a call that never returns blocks that
thread alone, and the source's last reading turns stale at its deadline. This is the only place that catches
what a source raises: once per episode it is logged, always it is counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from gpuscope.clock import Clock
from gpuscope.errors import NoAnswerYet, SourceError
from gpuscope.readings import ABSENT, Maybe, Reading, SourceStatus, XidEvent
from gpuscope.settings import Settings
from gpuscope.sources import Source, SourceSpec, Tier

log = logging.getLogger("gpuscope.source")

LONGEST_BACKOFF_SECONDS = 30.0
NOT_READ_YET = "not read yet"
MAX_LINES_PER_EPISODE = 3
MAX_WAITING_XIDS = 100_000  # a storm while nobody composes must not fill the memory


@dataclass(frozen=True, slots=True)
class Latest:
    """A reading, and when it was complete."""

    reading: Reading
    at: float
    monotonic: float
    duration_seconds: float


class Runner:
    def __init__(self, spec: SourceSpec, settings: Settings, clock: Clock) -> None:
        self.spec = spec
        self._settings = settings
        self._clock = clock
        self._interval = spec.interval_seconds(settings)
        self._deadline = spec.deadline_seconds(settings)
        self._source: Source | None = None
        self._latest: Latest | None = None
        self._told: set[tuple[str, int]] = set()  # kinds of failure of this episode that are in the log
        self._trouble = NOT_READ_YET  # why the last cycle failed; empty while all is well
        self._asked_at: float | None = None  # when it was first woken
        self._answering_since = float("-inf")  # since when without trouble
        self._late = False  # whether it was logged that no answer comes
        self._waiting_for = ""  # what the source waits for, if it says so
        self._failures = 0
        self._failed_reads = 0
        self._code: Maybe[int] = ABSENT
        self._backoff = 0.0
        self._next_due = 0.0
        self._tier_read_at: dict[Tier, float] = {}
        self._failing_calls: frozenset[str] = frozenset()
        self._xids: deque[XidEvent] = deque(maxlen=MAX_WAITING_XIDS)
        self.wanted = True
        self._poke = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False

    def fresh(self) -> Maybe[Reading]:
        """The latest reading, unless it is past its deadline or the source failed since."""
        latest = self._latest
        if latest is None or self._trouble or self._age(latest) > self._deadline:
            return ABSENT
        return latest.reading

    def take_xids(self) -> list[XidEvent]:
        """Every event since the last call, also those of a reading that was overtaken by the next one."""
        taken = []
        while self._xids:
            taken.append(self._xids.popleft())
        return taken

    def status(self) -> SourceStatus:
        latest, trouble = self._latest, self._trouble
        if self._silent_for() > self._deadline:
            trouble = self._no_answer()
        return SourceStatus(
            name=self.spec.name,
            up=not trouble,
            why=trouble or self.spec.summary,
            failures=self._failures,
            failed_reads=self._failed_reads,
            code=self._code,
            duration_seconds=ABSENT if latest is None else latest.duration_seconds,
            last_success_at=ABSENT if latest is None else latest.at,
        )

    def is_down(self) -> bool:
        """Failed or silent; not merely still at its first read."""
        return self.fresh() is ABSENT and (self._trouble != NOT_READ_YET or self._silent_for() > self._deadline)

    def is_waiting(self) -> bool:
        """Whether its source is well but has not answered yet, or not with everything."""
        latest = self._latest
        return bool(self._waiting_for) or (
            latest is not None and not self._trouble and latest.reading.unfinished
        )

    def answering_for(self) -> float:
        """Seconds since its first answer, or the first after trouble."""
        return self._clock.monotonic() - self._answering_since

    def _age(self, latest: Latest) -> float:
        return self._clock.monotonic() - latest.monotonic

    def _silent_for(self) -> float:
        """Seconds without an answer; 0 while it is known what fails."""
        if self._trouble not in ("", NOT_READ_YET):
            return 0.0
        since = self._asked_at if self._latest is None else self._latest.monotonic
        return 0.0 if since is None else self._clock.monotonic() - since

    # What the collector does with a runner.

    def start_cycle_if_due(self) -> bool:
        """Wakes the worker if it is time and it is not still busy with the last cycle."""
        if not self._idle.is_set():
            self._say_if_late()
            return False
        due = self.wanted and self._clock.monotonic() >= self._next_due
        if due or (not self.wanted and self._source is not None):  # what nobody wants is closed
            if self._asked_at is None:
                self._asked_at = self._clock.monotonic()
            self._idle.clear()
            self._poke.set()
        return due

    def _say_if_late(self) -> None:
        if not self._late and self._silent_for() > self._deadline:
            self._late = True
            log.warning("source %s: %s", self.spec.name, self._no_answer())

    def _no_answer(self) -> str:
        awaited = f": {self._waiting_for}" if self._waiting_for else ""
        return f"no answer for {self._silent_for():.0f} s{awaited}"

    def wait(self, seconds: float) -> bool:
        return self._idle.wait(seconds)

    def stop(self) -> None:
        self._stopping = True
        self._poke.set()

    # What the worker thread does.

    def run(self) -> None:
        while True:
            self._poke.wait()
            self._poke.clear()
            if self._stopping:
                self._close()
                return
            if self.wanted:
                self.cycle()
            else:
                self._retire()
            self._idle.set()

    def cycle(self) -> None:
        """Opens the source if it is not open, and reads it once."""
        started = self._clock.monotonic()
        # Half a tick of tolerance: one that comes a hair early must not wait for the next.
        self._next_due = started + self._interval - 0.5 * self._settings.interval
        try:
            if self._source is None:
                self._source = self.spec.open(self._settings)
                self._tier_read_at.clear()
            reading = self._source.read(self._due_tiers(started))
        except NoAnswerYet as waiting:
            self._waiting_for = str(waiting)
            self._say_if_late()
            return
        except Exception as error:  # a source may fail in any way; nothing else may fail with it
            self._failed(error)
            return
        finished = self._clock.monotonic()
        self._latest = Latest(reading, self._clock.now(), finished, finished - started)
        self._xids.extend(reading.xids)
        self._count_failed_calls(reading)
        if self._trouble or self._late:
            self._answering_since = finished
            log.info("source %s answers: %s", self.spec.name, self.spec.summary)
        self._trouble, self._late, self._backoff, self._code = "", False, 0.0, 0
        self._waiting_for = ""
        self._told.clear()

    def _retire(self) -> None:
        """Lets go of a source that is not wanted any more: a DCGM stream is a process of its own."""
        self._close()
        self._latest, self._asked_at, self._trouble = None, None, NOT_READ_YET
        log.info("source %s is not needed any more", self.spec.name)

    def _due_tiers(self, now: float) -> frozenset[Tier]:
        slack = 0.5 * self._settings.interval
        due = {
            tier
            for tier in Tier
            if tier not in self._tier_read_at or now - self._tier_read_at[tier] >= tier.value - slack
        }
        self._tier_read_at.update(dict.fromkeys(due, now))
        return frozenset(due)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._failed_reads += 1
        self._code = error.code if isinstance(error, SourceError) else -1
        reason = str(error) or type(error).__name__
        # A command may print new rubbish each time: one line for each kind of failure, whatever it says.
        kind = (type(error).__name__, self._code)
        if kind not in self._told and len(self._told) < MAX_LINES_PER_EPISODE:
            self._told.add(kind)
            log.warning("source %s: %s", self.spec.name, reason)
        self._trouble, self._waiting_for = reason, ""
        self._close()
        self._backoff = min(max(2 * self._backoff, self._interval), LONGEST_BACKOFF_SECONDS)
        self._next_due = self._clock.monotonic() + self._backoff * 0.9

    def _count_failed_calls(self, reading: Reading) -> None:
        self._failures += sum(reading.failures.values())
        failing = frozenset(reading.failures)
        for call in sorted(failing - self._failing_calls):
            log.warning("source %s: %s fails; other numbers go on", self.spec.name, call)
        for call in sorted(self._failing_calls - failing):
            log.info("source %s: %s answers again", self.spec.name, call)
        self._failing_calls = failing

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            try:
                source.close()
            except Exception as error:
                log.debug("source %s: closing failed: %s", self.spec.name, error)
