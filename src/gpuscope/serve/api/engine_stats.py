"""Requests to the engine of `--store`: counted for /metrics; a log line when it stops or resumes answering.

Requests are counted by endpoint and HTTP status. A failure is an answer that no client can use, or none. Before
the first answer the engine is neither up nor down.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from gpuscope.base.limits import Limits
from gpuscope.history.engines.query_engine import FAILURE_REASONS
from gpuscope.serve.http.client_log import ClientLog

log = logging.getLogger("gpuscope.api")


@dataclass(slots=True)
class EngineStats:
    """A server's `EngineObserver`. Belongs to its event loop; only the check at the start runs in another."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAILURE_REASONS, 0)))
    up: bool | None = None
    lines: ClientLog = field(default_factory=lambda: ClientLog(log, Limits().max_client_log_lines))
    """Bounded: a client can alternate between a query that works and one that times out."""

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[endpoint, status] += 1
        self.seconds[endpoint] = self.seconds.get(endpoint, 0.0) + seconds

    def succeeded(self, url: str) -> None:
        if self.up is False:
            self.lines.info("changes of the engine", "%s answers again", url)
        self.up = True

    def failed(self, reason: str, message: str) -> None:
        self.failures[reason] += 1
        if self.up is not False:
            self.lines.error("changes of the engine", "%s", message)
        self.up = False
