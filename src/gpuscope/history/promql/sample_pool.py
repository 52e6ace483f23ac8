"""The memory that all queries share.

Each query has its own limit, but twenty queries at once, or results that slow clients do not read, could use
twenty times as much. A query that does not get enough memory waits for the others, but only for a short time,
because two queries could wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql.query_errors import ExecutionError, QueryTimeoutError

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
