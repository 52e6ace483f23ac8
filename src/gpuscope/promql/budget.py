"""How much one query may use: samples, label text, time, and whether its client still waits.

Memory is counted before it is taken: samples in `charge`, label text that functions make in `charge_labels`.
`check` is called between operations and, through `watch`, inside loops over series: a numpy call is short, so a
query stops soon after its time is up or its client has gone. Encoding the answer uses the same budget.
Functions of bare numbers, which know nothing of queries, call `check_running` in their loops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeVar

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.promql.query_errors import ExecutionError, QueryCanceledError, QueryTimeoutError
from gpuscope.promql.sample_pool import SamplePool

T = TypeVar("T")

ITEMS_PER_CHECK = 1024
"""Series in a Python loop between two looks at the clock: a few milliseconds."""
LABEL_SET_BYTES = 128
"""What a label set takes beside its text: its tuple, its new pair, its place in lists and dictionaries."""
BYTES_PER_SAMPLE = 16
FRAME_BYTES_PER_SAMPLE = 9
"""Of a frame: the value and whether it is present."""
SAMPLES_PER_SERIES = 32
"""What a loaded series takes beside its samples, in samples: its object, two arrays, places in dictionaries."""
SAMPLES_PER_LABEL_SET = 8
"""What a label set takes that has no new text, in samples."""
FREE_SAMPLES = 100_000
"""Of each query, not from the pool: small queries never wait for large ones."""
LABELS_PER_LIMIT = 64
"""One value may have this part of the limit: matching, joining and copying 100 MB holds up every thread."""
ROWS_PER_SORT = 65_536
"""Sorted without a look at the clock: some 100 ms."""

_DEFAULTS = Limits()


class Budget:
    """Counts what a query loads and makes; raises once it is too much."""

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

    def seconds_left(self) -> float | None:
        """Until the time limit; None where there is none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def watch(self, items: Collection[T]) -> Iterable[T]:
        """The items, with a `check` now and then where there are many."""
        return items if len(items) <= ITEMS_PER_CHECK else self._watched(items)

    def _watched(self, items: Collection[T]) -> Iterator[T]:
        rest = iter(items)
        for _ in range(0, len(items), ITEMS_PER_CHECK):
            self.check()
            yield from islice(rest, ITEMS_PER_CHECK)

    def sort(self, items: Iterable[T], key: Callable[[T], Any] | None = None) -> list[T]:
        """As `sorted`, in portions: the sort of a million label sets takes seconds."""
        every = list(items)
        if len(every) <= ROWS_PER_SORT:
            self.check("sorting")
            every.sort(key=key)
            return every
        runs = [every[at : at + ROWS_PER_SORT] for at in range(0, len(every), ROWS_PER_SORT)]
        for run in runs:
            self.check("sorting")
            run.sort(key=key)
        while len(runs) > 1:
            pairs = [runs[at : at + 2] for at in range(0, len(runs), 2)]
            runs = []
            for pair in pairs:
                self.check("sorting")
                # Two sorted runs one after the other: Python's sort finds them and only merges.
                merged = [one for run in pair for one in run]
                merged.sort(key=key)
                runs.append(merged)
        return runs[0]

    def charge(self, samples: int, overhead: int = 0) -> None:
        """Count samples that are, or are about to be, held in memory; what was set aside for them is theirs.

        `overhead` is memory beside them, in samples: taken from the pool, but no samples of the query's.
        """
        self._refuse_beyond(self.samples + samples)
        self.samples += samples
        self._overhead += overhead
        self._reserved = 0
        if self.samples > self.peak:
            self.peak = self.samples
        self._settle_with_pool()
        self.check()

    def release(self, samples: int, overhead: int = 0) -> None:
        """What was charged and is held no longer."""
        self.samples -= samples
        self._overhead -= overhead
        self._settle_with_pool()

    def keep(self, samples: int) -> None:
        """Of all that was charged only a result of so many samples is left."""
        self.release(max(0, self.samples - samples), self._overhead)

    def close(self) -> None:
        """All that was held is held no longer."""
        self.samples = self._label_bytes = self._overhead = self._reserved = 0
        self._settle_with_pool()

    def __del__(self) -> None:
        # For whoever does not close: a query that fails must not take from the others for good.
        if getattr(self, "_taken", 0):
            self.close()

    def _settle_with_pool(self) -> None:
        """Take from the pool what is held beyond what every query may, or give it back."""
        held = self.samples + self._overhead + self._reserved + self._label_bytes // BYTES_PER_SAMPLE
        if held <= FREE_SAMPLES and not self._taken:
            return
        # In steps: label text comes in many small parts.
        wanted = -(-max(0, held - FREE_SAMPLES) // FREE_SAMPLES) * FREE_SAMPLES
        if self._pool is None or wanted == self._taken:
            return
        if wanted > self._taken:
            self._pool.take(wanted - self._taken, self._taken, self.check)
        else:
            self._pool.give_back(self._taken - wanted)
        self._taken = wanted

    def left(self) -> int:
        """How many more samples may be held."""
        return self._max_samples - self.samples

    def afford(self, samples: int) -> None:
        """Set memory aside for a step before it takes it; refuse one that needs more than is left.

        From the pool, too: else twenty queries at once would all have taken it before they count it.
        """
        self._refuse_beyond(self.samples + samples)
        self._reserved += samples
        self._settle_with_pool()

    def reserve_copy(self, samples: int) -> None:
        """Set memory aside for a copy of values that are charged already: they do not count as samples of the
        query again, but take memory from the pool."""
        self._reserved += samples * FRAME_BYTES_PER_SAMPLE // BYTES_PER_SAMPLE
        self._settle_with_pool()

    def admit(self, series: int, samples: int) -> None:
        """`afford` for a store that is about to load so many; few series are not worth asking for."""
        if samples or series > ITEMS_PER_CHECK:
            self.afford(samples + series * SAMPLES_PER_SERIES)
            self.check()

    def _refuse_beyond(self, samples: int) -> None:
        if samples > self._max_samples:
            LIMITS_REACHED.count("query_max_samples")
            raise ExecutionError("query processing would load too many samples into memory in query execution")

    def charge_labels(self, characters: int, *, is_ascii: bool, sets: int = 1) -> None:
        """Count label sets that are about to be made, with the characters that are new in them."""
        # Python keeps a text with one character beyond Latin-1 at two or four bytes each.
        size = characters * (1 if is_ascii else 4)
        self._label_bytes += size + sets * LABEL_SET_BYTES
        is_long = sets == 1 and size > self._max_label_bytes // LABELS_PER_LIMIT
        if is_long or self._label_bytes > self._max_label_bytes:
            LIMITS_REACHED.count("query_max_label_bytes")
            raise ExecutionError(
                f"query processing would make more than {self._max_label_bytes} bytes of label text,"
                f" or a label of more than {self._max_label_bytes // LABELS_PER_LIMIT} (query_max_label_bytes)"
            )
        self._settle_with_pool()

    def run(self, work: Callable[[], T]) -> T:
        """`work`, with this as the budget that `check_running` looks at."""
        token = _RUNNING.set(self)
        try:
            return work()
        finally:
            _RUNNING.reset(token)


_RUNNING: ContextVar[Budget | None] = ContextVar("running", default=None)


def check_running() -> None:
    """`check` of the query that this thread evaluates, if it does."""
    budget = _RUNNING.get()
    if budget is not None:
        budget.check()


def reserve_running_copy(samples: int) -> None:
    """`reserve_copy` of the query that this thread evaluates, if it does; small copies are free."""
    budget = _RUNNING.get()
    if budget is not None and samples > ITEMS_PER_CHECK:
        budget.reserve_copy(samples)
