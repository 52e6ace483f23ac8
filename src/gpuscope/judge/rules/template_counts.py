"""How many templates were expanded and how many failed, for `prometheus_template_text_expansion*_total`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class TemplateCounts:
    """Any thread may count."""

    expansions: int = 0
    failures: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_expansion(self) -> None:
        with self._lock:
            self.expansions += 1

    def count_failure(self) -> None:
        with self._lock:
            self.failures += 1


TEMPLATE_COUNTS = TemplateCounts()
"""One per process, like its /metrics."""
