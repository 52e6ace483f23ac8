"""The resources of one query: samples, label text, time, and cancellation.

Memory is counted before it is allocated: samples by `charge`, label text by `charge_labels`. `check` is called
between operations and, through `watch`, inside loops over series. A numpy call is short, so a query stops soon
after its time limit or its cancellation. Encoding the result uses the same budget. Numeric functions, which
have no reference to the query, call `check_running` in their loops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.portioned_sort import sort_in_portions
from gpuscope.history.promql.syntax import ExecutionError, QueryCanceledError, QueryTimeoutError

# The memory that all queries share.
#
# Each query has its own limit, but twenty queries at once, or results that slow clients do not read, could
# use twenty times as much. A query that does not get enough memory waits for the others, but only for a short
# time, because two queries could wait for each other.

WAIT_SECONDS = 10.0
POLL_SECONDS = 0.1


class SamplePool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._left = size
        self._changed = threading.Condition()

    @property
    def left(self) -> int:
        return self._left

    def take(self, samples: int, held: int, check: Callable[[], None]) -> None:
        """Take memory for a query that already holds `held`. `check` is called while waiting; it raises when
        the query times out or is cancelled."""
        if held + samples > self.size:
            LIMITS_REACHED.count("query_max_total_samples")
            raise ExecutionError(
                "query processing would load too many samples into memory in query execution"
                " (query_max_total_samples)"
            )
        until = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while samples > self._left:
                check()
                if time.monotonic() > until:
                    LIMITS_REACHED.count("query_max_total_samples")
                    raise QueryTimeoutError(
                        "other queries hold the memory that this one needs (query_max_total_samples); try again"
                    )
                self._changed.wait(POLL_SECONDS)
            self._left -= samples

    def put_back(self, samples: int) -> None:
        with self._changed:
            self._left += samples
            self._changed.notify_all()


T = TypeVar("T")

ITEMS_PER_CHECK = 1024
"""Iterations of a Python loop over series between two checks: a few milliseconds."""
LABEL_SET_BYTES = 128
"""Memory of a label set besides its text: its tuple, a new pair, entries in lists and dictionaries."""
BYTES_PER_SAMPLE = 16
FRAME_BYTES_PER_SAMPLE = 9
"""Of a frame: the value and whether it is present."""
SAMPLES_PER_SERIES = 32
"""Memory of a loaded series besides its samples, in samples: an object, two arrays, dictionary entries."""
SAMPLES_PER_LABEL_SET = 8
"""Memory of a label set without new text, in samples."""
FREE_SAMPLES = 100_000
"""Each query may use so many without the pool: small queries never wait for large ones."""
LABELS_PER_LIMIT = 64
"""One label value may use this fraction of the limit: processing 100 MB of text would block all threads."""

_DEFAULTS = Limits()


class Budget:
    """Counts the memory of a query; raises an exception when a limit is exceeded."""

    __slots__ = (
        "_cancelled",
        "_deadline",
        "_label_bytes",
        "_max_label_bytes",
        "_max_samples",
        "_overhead",
        "_pool",
        "_reserved",
        "_taken",
        "peak",
        "samples",
    )

    def __init__(
        self,
        max_samples: int = _DEFAULTS.query_max_samples,
        timeout_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        max_label_bytes: int = _DEFAULTS.query_max_label_bytes,
        pool: SamplePool | None = None,
    ) -> None:
        self.samples = self.peak = self._label_bytes = self._overhead = self._reserved = self._taken = 0
        self._pool = pool
        self._max_samples = max_samples
        self._max_label_bytes = max_label_bytes
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._cancelled = cancelled

    def check(self, during: str = "expression evaluation") -> None:
        if self._cancelled is not None and self._cancelled.is_set():
            raise QueryCanceledError(f"query was canceled in {during}")
        if self._deadline is not None and time.monotonic() > self._deadline:
            LIMITS_REACHED.count("query_timeout")
            raise QueryTimeoutError(f"query timed out in {during}")

    def start_at(self, began: float) -> None:
        """Count the time from an earlier moment of `time.monotonic`."""
        if self._deadline is not None:
            self._deadline -= time.monotonic() - began

    def seconds_left(self) -> float | None:
        """Return the time until the limit; None if there is no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def watch(self, items: Collection[T]) -> Iterable[T]:
        """Iterate over the items and call `check` from time to time."""
        return items if len(items) <= ITEMS_PER_CHECK else self._watched(items)

    def _watched(self, items: Collection[T]) -> Iterator[T]:
        rest = iter(items)
        for _ in range(0, len(items), ITEMS_PER_CHECK):
            self.check()
            yield from islice(rest, ITEMS_PER_CHECK)

    def sort(self, items: Iterable[T], key: Callable[[T], Any] | None = None) -> list[T]:
        """As `sorted`, in portions with checks: sorting a million label sets takes seconds."""
        return sort_in_portions(items, key, partial(self.check, "sorting"))

    def charge(self, samples: int, overhead: int = 0) -> None:
        """Count samples that are or will be in memory; they use up an earlier reservation.

        `overhead` is additional memory, in samples: it is taken from the pool but is not part of the sample
        limit.
        """
        self._check_samples(self.samples + samples)
        self.samples += samples
        self._overhead += overhead
        self._reserved = 0
        if self.samples > self.peak:
            self.peak = self.samples
        self.update_pool()
        self.check()

    def release(self, samples: int, overhead: int = 0) -> None:
        """Release memory that was charged."""
        self.samples -= samples
        self._overhead -= overhead
        self.update_pool()

    def keep_only(self, samples: int) -> None:
        """Release everything except a result of this many samples."""
        self.release(max(0, self.samples - samples), self._overhead)

    def close(self) -> None:
        """Release everything."""
        self.samples = self._label_bytes = self._overhead = self._reserved = 0
        self.update_pool()

    def __del__(self) -> None:
        # If the caller did not call `close`: a failed query must not keep memory of the pool.
        if getattr(self, "_taken", 0):
            self.close()

    def update_pool(self) -> None:
        """Take memory beyond the free samples from the pool, or return it."""
        held = self.samples + self._overhead + self._reserved + self._label_bytes // BYTES_PER_SAMPLE
        if held <= FREE_SAMPLES and not self._taken:
            return
        # In steps, because label text is charged in many small parts.
        wanted = -(-max(0, held - FREE_SAMPLES) // FREE_SAMPLES) * FREE_SAMPLES
        if self._pool is None or wanted == self._taken:
            return
        if wanted > self._taken:
            self._pool.take(wanted - self._taken, self._taken, self.check)
        else:
            self._pool.put_back(self._taken - wanted)
        self._taken = wanted

    def left(self) -> int:
        """Return how many more samples may be held."""
        return self._max_samples - self.samples

    def reserve(self, samples: int) -> None:
        """Reserve memory before it is used; raise if it exceeds the rest of the limit.

        The memory is taken from the pool as well: otherwise many queries could allocate it before counting it.
        """
        self._check_samples(self.samples + samples)
        self._reserved += samples
        self.update_pool()

    def reserve_copy(self, samples: int) -> None:
        """Reserve memory for a copy of values that are charged already: it is taken from the pool, but does not
        count towards the sample limit again."""
        self._reserved += samples * FRAME_BYTES_PER_SAMPLE // BYTES_PER_SAMPLE
        self.update_pool()

    def admit(self, series: int, samples: int) -> None:
        """Reserve memory for series and samples that a store will load; a few series are not counted. A store
        that works without loading anything passes zeros, to be stopped in time."""
        if samples or series > ITEMS_PER_CHECK:
            self.reserve(samples + series * SAMPLES_PER_SERIES)
        self.check()

    def _check_samples(self, samples: int) -> None:
        if samples > self._max_samples:
            LIMITS_REACHED.count("query_max_samples")
            raise ExecutionError("query processing would load too many samples into memory in query execution")

    def charge_labels(self, characters: int, *, is_ascii: bool, sets: int = 1) -> None:
        """Count label sets that will be created, with the number of new characters in them."""
        # Python stores a string with a character beyond Latin-1 with two or four bytes per character.
        size = characters * (1 if is_ascii else 4)
        self._label_bytes += size + sets * LABEL_SET_BYTES
        is_long = sets == 1 and size > self._max_label_bytes // LABELS_PER_LIMIT
        if is_long or self._label_bytes > self._max_label_bytes:
            LIMITS_REACHED.count("query_max_label_bytes")
            raise ExecutionError(
                f"query processing would make more than {self._max_label_bytes} bytes of label text,"
                f" or a label of more than {self._max_label_bytes // LABELS_PER_LIMIT} (query_max_label_bytes)"
            )
        self.update_pool()

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` with this budget as the one that `check_running` uses."""
        token = _RUNNING.set(self)
        try:
            return work()
        finally:
            _RUNNING.reset(token)


_RUNNING: ContextVar[Budget | None] = ContextVar("running", default=None)


def check_running() -> None:
    """Call `check` of the query that this thread evaluates, if any."""
    budget = _RUNNING.get()
    if budget is not None:
        budget.check()


def reserve_running_copy(samples: int) -> None:
    """`reserve_copy` of the query that this thread evaluates, if it does; small copies are free."""
    budget = _RUNNING.get()
    if budget is not None and samples > ITEMS_PER_CHECK:
        budget.reserve_copy(samples)
