"""The state of a GPU in one word: the first of these that holds, worst first.

A check that is true of a GPU gives it a state (STATE_OF_KIND). Without one its use does: `held`, `allocated`,
`busy` or `idle`. `held` needs proof: a GPU with processes whose activity is not known counts as busy. `idle`
needs proof too: a GPU whose process list could not be read is `stale`, and one that a scheduler has given away
is never `idle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuscope.health.facts import GpuFacts
from gpuscope.health.thresholds import WORKING_RATIO
from gpuscope.readings import ABSENT


class State(StrEnum):
    LOST = "lost"
    GONE = "gone"
    STALE = "stale"
    SICK = "sick"
    THROTTLED = "throttled"
    HELD = "held"
    ALLOCATED = "allocated"
    BUSY = "busy"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StateRow:
    state: State
    letter: str
    meaning: str
    wants_action: bool


_TABLE: Final = (
    StateRow(State.LOST, "X", "the driver does not reach the GPU", True),
    StateRow(State.GONE, "0", "its node sends nothing", True),
    StateRow(State.STALE, "?", "no fresh numbers from its node, or not known whether somebody has it", True),
    StateRow(State.SICK, "!", "hardware, link or driver is at fault", True),
    StateRow(State.THROTTLED, "T", "something holds its clocks back", True),
    StateRow(State.HELD, "H", "a process holds it and does nothing", True),
    StateRow(State.ALLOCATED, "A", "Slurm or Kubernetes gave it to somebody, and no process is on it", False),
    StateRow(State.BUSY, "B", "it works, or a process holds it and its activity is not known", False),
    StateRow(State.IDLE, "-", "free: no process is on it, and no scheduler gave it away", False),
)

STATES: Final[dict[State, StateRow]] = {row.state: row for row in _TABLE}
WORST_FIRST: Final = tuple(row.state for row in _TABLE)

STATE_OF_KIND: Final[dict[str, State]] = {
    "gpu_lost": State.LOST,
    "recovery_action": State.SICK,
    "xid_hardware": State.SICK,
    "xid_nvlink": State.SICK,
    "xid_driver": State.SICK,
    "ecc_uncorrected": State.SICK,
    "ecc_sram_threshold": State.SICK,
    "row_remap_failed": State.SICK,
    "row_remap_pending": State.SICK,
    "pages_retiring": State.SICK,
    "pcie_degraded": State.SICK,
    "fan_stopped": State.SICK,
    "fabric_not_ready": State.SICK,
    "throttled": State.THROTTLED,
}
"""Worst first. Kinds that are not here leave the GPU's state as it is."""


PROCESSES_UNKNOWN: Final = "processes_unknown"
ALLOCATION_UNKNOWN: Final = "allocation_unknown"
UNKNOWN_USES: Final = {
    PROCESSES_UNKNOWN: "processes unknown",
    ALLOCATION_UNKNOWN: "allocation unknown",
}
"""Why a GPU is stale that answers: nobody knows whether it is free."""


def state_of_use(gpu: GpuFacts) -> State:
    """Held, allocated, busy or idle; stale if its process list could not be read and nothing else tells."""
    working = gpu.busy_ratio
    if working is not ABSENT and working >= WORKING_RATIO:
        return State.BUSY
    if not gpu.processes:
        count = gpu.process_count
        if count is not ABSENT and count > 0:
            return State.BUSY
        if gpu.allocations:
            return State.ALLOCATED
        return State.STALE if count is ABSENT else State.IDLE
    if any(process.is_active for process in gpu.processes):
        return State.BUSY
    known = working is not ABSENT or all(process.is_active is False for process in gpu.processes)
    return State.HELD if known else State.BUSY


USES: Final = (State.IDLE, State.STALE, State.ALLOCATED, State.HELD, State.BUSY)
"""States that say only whether a GPU is used, least used first. A board that is split is as much in use as its
most used instance, and not free as long as that is not known of one of them."""
IN_USE: Final = frozenset({State.ALLOCATED, State.HELD, State.BUSY})
