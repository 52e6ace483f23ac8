"""What went to the engine behind `--store`, and how it went: counted for /metrics, told once per episode.

Requests are counted by endpoint and status, whatever the status means; a failure is an answer no client could
use, or none at all. Before the first answer the engine is neither up nor down.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from gpuscope.limits import Limits
from gpuscope.server.http.client_log import ClientLog

log = logging.getLogger("gpuscope.api")

REASONS = ("broken_off", "failed", "not_prometheus", "refused", "timeout", "unreachable")


@dataclass(slots=True)
class Traffic:
    """Belongs to the event loop that asks; one request at the start comes from a thread of its own."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    up: bool | None = None
    lines: ClientLog = field(default_factory=lambda: ClientLog(log, Limits().max_client_log_lines))
    """Bounded: a client can ask by turns what the engine answers and what takes it too long."""

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[endpoint, status] += 1
        self.seconds[endpoint] = self.seconds.get(endpoint, 0.0) + seconds

    def went_well(self, url: str) -> None:
        if self.up is False:
            self.lines.info("changes of the engine", "%s answers again", url)
        self.up = True

    def went_wrong(self, reason: str, sentence: str) -> None:
        self.failures[reason] += 1
        if self.up is not False:
            self.lines.error("changes of the engine", "%s", sentence)
        self.up = False
