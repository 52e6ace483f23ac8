"""The one word for what a GPU does: the first of these that holds, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    LOST = "lost"
    STALE = "stale"
    SICK = "sick"
    THROTTLED = "throttled"
    HELD = "held"
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
    StateRow(State.STALE, "?", "no fresh numbers from its node", True),
    StateRow(State.SICK, "!", "hardware, link or driver is at fault", True),
    StateRow(State.THROTTLED, "T", "something holds its clocks back", True),
    StateRow(State.HELD, "H", "somebody has it and it does nothing", True),
    StateRow(State.BUSY, "B", "it works", False),
    StateRow(State.IDLE, "-", "nobody has it", False),
)

STATES: Final[dict[State, StateRow]] = {row.state: row for row in _TABLE}
WORST_FIRST: Final = tuple(row.state for row in _TABLE)
