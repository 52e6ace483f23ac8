"""The agent's own CPU time and memory, from the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpuscope.model.readings import AgentCost

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class CostMeter:
    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._snapshots = 0

    def read(self) -> AgentCost:
        """Call it once per snapshot: it counts the calls."""
        self._snapshots += 1
        return AgentCost(
            started_at=self._started_at,
            snapshots=self._snapshots,
            cpu_seconds=time.process_time(),
            memory_bytes=int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES,
        )
