"""ABSENT, the value of every number that could not be read.

A GPU without the sensor, a failed call and a refused field are ABSENT, never 0. ABSENT has no truth value,
because `if reading:` and `reading or 0` would treat a real 0 as missing, the most common error in GPU
monitoring. Write `reading is ABSENT`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias, TypeVar


class Absent(Enum):
    ABSENT = "absent"

    def __bool__(self) -> bool:
        raise TypeError("an absent reading has no truth value: compare with `is ABSENT`")

    def __repr__(self) -> str:
        return "ABSENT"

    __hash__ = object.__hash__  # faster than Enum's: owners with absent attributes are hashed every cycle


ABSENT: Final[Literal[Absent.ABSENT]] = Absent.ABSENT

T = TypeVar("T")
Maybe: TypeAlias = T | Absent
"""A reading that may be absent: `Maybe[float]`."""
