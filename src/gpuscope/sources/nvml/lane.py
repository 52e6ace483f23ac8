"""The threads that make driver calls: one lane per GPU, and one for calls that concern no single GPU.

A lane runs one job at a time in a thread of its own. Every driver call is noted with the thread that makes it
(`gate.py`), so it is known who is in which call since when. A call past its deadline is stuck: its thread stays
behind in it, another thread takes the lane over, and the job starts again without that call. The call is made
again only after it has returned. The number of threads left behind is bounded, per lane and in the process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from gpuscope.sources.nvml.clocks import Clocks
from gpuscope.sources.nvml.stuck_log import StuckLog

CALL_DEADLINE_SECONDS: Final = 2.0  # the slowest call takes 20 ms; a card that wakes up, some hundred
MAX_STUCK_PER_LANE: Final = 4  # a GPU with more calls that do not return is left alone until one does
MAX_THREADS_LEFT_BEHIND: Final = 32  # in this process; from here on no thread is replaced
RELAPSE_SECONDS: Final = 600.0  # a call that is stuck again within this time is asked less and less often,
FIRST_REST_SECONDS: Final = 10.0  # from this
MAX_REST_SECONDS: Final = 300.0  # to this: otherwise a call that takes 3 s each time would fill the log
STRUCT_VERSION: Final = 1 << 24  # NVML's version arguments begin here; sensors, links and field ids are small
LOOK_SECONDS: Final = 0.05  # while lanes are waited for, how often it is looked whether a call is overdue

Job = Callable[[], None]


class LeftBehind(BaseException):
    """Ends a thread whose call returned after another thread had taken its place.

    Not an Exception: no handler of errors on the way may keep such a thread going.
    """


class Call(NamedTuple):
    key: Hashable  # what is not asked again while this call is stuck
    who: str  # "GPU 3", or "" for the driver itself
    name: str
    about: tuple[object, ...]  # what tells it apart from other calls of this name
    since: float

    def __str__(self) -> str:
        # The version of a struct (its size and a number, 0x2000028) tells a reader nothing.
        told = [str(one) for one in self.about if not (isinstance(one, int) and one >= STRUCT_VERSION)]
        arguments = f"({', '.join(told)})" if told else ""
        return f"{self.who}: {self.name}{arguments}" if self.who else f"{self.name}{arguments}"


_left_behind: set[LaneThread] = set()


def threads_left_behind() -> int:
    """Threads of this process, of whatever session, that may still be in a driver call."""
    return len(_left_behind)


class LaneThread:
    """A thread and the driver call it is in."""

    def __init__(self, lane: Lane, finished: SimpleQueue[Lane]) -> None:
        self._lane = lane
        self._finished = finished
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Whether a call has returned and whether its thread is left behind is decided under this lock.
        self._lock = threading.Lock()
        self._noted: tuple[Any, ...] | None = None
        self._left_behind = False
        threading.Thread(target=self._run, name=f"nvml {lane.name}", daemon=True).start()

    def give(self, job: Job) -> None:
        self._jobs.put(job)

    def enter(self, *call: Any) -> None:
        """`call` are the fields of a Call, which is made only when somebody looks: this runs at every call."""
        if self._left_behind:
            raise LeftBehind
        self._noted = call

    def leave(self) -> None:
        with self._lock:
            self._noted = None
            if self._left_behind:
                raise LeftBehind

    def call(self) -> Call | None:
        noted = self._noted
        return None if noted is None else Call(*noted)

    def leave_behind(self, call: Call) -> bool:
        """Gives this thread up if it is still in `call`."""
        with self._lock:
            self._left_behind = self._noted == call
            return self._left_behind

    def end(self) -> None:
        """Ends this thread when it has done its jobs."""
        self._jobs.put(None)

    def retire(self) -> None:
        """Ends this thread as soon as it comes out of its call, or wants to make one."""
        _left_behind.add(self)
        with self._lock:
            self._left_behind = True
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                error = None
                try:
                    job()
                except Exception as raised:
                    error = raised
                self._lane.job_ended(error)
                self._finished.put(self._lane)
                del job, error  # what they refer to must not live until the next job comes
        except LeftBehind:
            self._lane.thread_returned(self)
        finally:
            _left_behind.discard(self)


class Lane:
    """One GPU's driver calls, or those of the driver itself, one after the other.

    `start`, `look` and `stop` belong to the thread that coordinates; what a job works on belongs to the job
    until the lane is idle again.
    """

    def __init__(self, name: str, clocks: Clocks, stuck_log: StuckLog | None = None) -> None:
        self.name = name
        self.stuck_log = stuck_log or StuckLog()
        self.failures: Counter[str] = Counter()  # failed calls by name, until somebody takes them
        self.thread: LaneThread | None = None
        self.error: Exception | None = None  # what the last job raised
        self.returned = 0  # how many stuck calls have returned
        self.now = clocks.monotonic
        self._job: Job | None = None
        self._replaceable = True
        self._stuck: dict[LaneThread, Call] = {}
        self.skipped: dict[Hashable, float] = {}  # until when a call is not made
        self._relapses: dict[Hashable, tuple[int, float]] = {}  # how often a call was stuck, and until when
        self._said_blocked = False

    @property
    def idle(self) -> bool:
        return self._job is None

    @property
    def blocked(self) -> bool:
        """Whether its job cannot go on before a stuck call returns."""
        return self._job is not None and self.thread is None

    @property
    def has_stuck_calls(self) -> bool:
        return bool(self._stuck)

    def calls(self) -> list[Call]:
        """The calls that have not returned, oldest first."""
        now = self.thread.call() if self.thread is not None else None
        return [*self._stuck.values(), *([now] if now is not None else [])]

    # The coordinator's side

    def start(self, job: Job, finished: SimpleQueue[Lane], replaceable: bool = True) -> None:
        """Runs a job. One that is not `replaceable` is waited for, however long its calls take."""
        if self._job is not None:
            raise RuntimeError(f"{self.name} is busy")
        self._job, self._replaceable, self.error = job, replaceable, None
        if self.thread is None:
            self.thread = LaneThread(self, finished)
        self.thread.give(job)

    def look(self, finished: SimpleQueue[Lane]) -> bool:
        """Gives up a thread whose call is overdue, and lets another take its place; whether one has."""
        if self._job is None or not self._replaceable:
            return False
        if self.thread is not None:
            call = self.thread.call()
            overdue = call is not None and self.now() - call.since > CALL_DEADLINE_SECONDS
            if call is None or not overdue or not self._leave_behind(self.thread, call):
                return False
            self.thread = None
        job = self._job
        if len(self._stuck) < MAX_STUCK_PER_LANE and threads_left_behind() < MAX_THREADS_LEFT_BEHIND:
            self._said_blocked = False
            self.thread = LaneThread(self, finished)
            self.thread.give(job)
            return True
        if not self._said_blocked:
            self._said_blocked = self.stuck_log.blocked(self.name, len(self._stuck))
        return False

    def _leave_behind(self, thread: LaneThread, call: Call) -> bool:
        # Noted first: once it is left behind, the thread takes these notes back whenever its call returns.
        self._stuck[thread] = call
        self.skipped[call.key] = float("inf")
        _left_behind.add(thread)
        is_to_tell = self.stuck_log.is_to_tell(thread)
        if not thread.leave_behind(call):
            self._forget(thread)
            return False
        if is_to_tell:
            self.stuck_log.stuck(call, self.now() - call.since)
        return True

    def tell_stuck_calls(self) -> None:
        """Those that were not told because no GPU answered."""
        for thread, call in list(self._stuck.items()):
            if not self.stuck_log.is_to_tell(thread):
                continue
            if thread in self._stuck:
                self.stuck_log.stuck(call, self.now() - call.since)
            else:  # it has returned meanwhile
                self.stuck_log.forget(thread)

    def end_with(self, job: Job, finished: SimpleQueue[Lane]) -> None:
        """Runs a last job, if the lane is idle, and ends."""
        if not self.idle:
            self.stop()
            return
        self.start(job, finished, replaceable=False)
        if self.thread is not None:
            self.thread.end()

    def stop(self) -> None:
        """Ends the thread, or leaves it behind in its call."""
        thread, self.thread = self.thread, None
        if thread is not None:
            (thread.end if self.idle else thread.retire)()

    # The job's side

    def skips(self, key: Hashable) -> bool:
        """Whether this call is not to be made now: it has not returned, or was stuck again and again."""
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

    # The side of a thread that was left behind

    def thread_returned(self, thread: LaneThread) -> None:
        call = self._stuck.get(thread)
        if call is None:
            return  # the lane was stopped meanwhile
        now = self.now()
        times, last = self._relapses.get(call.key, (0, float("-inf")))
        times = min(times + 1, 10) if call.since - last < RELAPSE_SECONDS else 0
        self._relapses = {key: seen for key, seen in self._relapses.items() if now - seen[1] < RELAPSE_SECONDS}
        self._relapses[call.key] = (times, now)
        rest = min(FIRST_REST_SECONDS * 2 ** (times - 1), MAX_REST_SECONDS) if times else 0.0
        again = f"; it is asked again in {rest:.0f} s" if rest else ""
        self.stuck_log.returned(thread, call, now - call.since, again)
        self._forget(thread, now + rest if rest else None)
        self.returned += 1

    def _forget(self, thread: LaneThread, rest_until: float | None = None) -> None:
        call = self._stuck.pop(thread)
        self.stuck_log.forget(thread)
        if rest_until is None:
            self.skipped.pop(call.key, None)
        else:
            self.skipped[call.key] = rest_until
        _left_behind.discard(thread)


class Lanes:
    """Waits for lanes, and looks after overdue calls meanwhile."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.finished: SimpleQueue[Lane] = SimpleQueue()

    def start(self, lane: Lane, job: Job, replaceable: bool = True) -> None:
        lane.start(job, self.finished, replaceable)

    def wait(self, lanes: Iterable[Lane], until: float) -> None:
        """Until all of them are idle or blocked, or it is `until` on the monotonic clock."""
        waiting = list(lanes)
        while not self.finished.empty():
            self.finished.get_nowait()  # of earlier waits that saw a lane idle before it was told
        while waiting := [lane for lane in waiting if not (lane.idle or lane.blocked)]:
            left = until - self._clocks.monotonic()
            if left <= 0:
                return
            try:
                # The clock may be a test's: hence a look now and then instead of one long wait.
                self.finished.get(timeout=min(left, LOOK_SECONDS))
            except Empty:
                for lane in waiting:
                    lane.look(self.finished)
