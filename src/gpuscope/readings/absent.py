"""The one value that means "this number was not given".

A card without a sensor, a call that failed, a field the driver refuses: all read as ABSENT, never as 0. Its
truth value is an error on purpose: `if reading:` or `reading or 0` would treat a real 0 as missing, the
commonest wrong number in this field. Ask `reading is ABSENT`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias, TypeVar


class Absent(Enum):
    ABSENT = "absent"

    def __bool__(self) -> bool:
        raise TypeError("an absent reading is neither true nor false: compare with `is ABSENT`")

    def __repr__(self) -> str:
        return "ABSENT"

    __hash__ = object.__hash__  # Enum's own is Python, and owners with absent parts are hashed every cycle


ABSENT: Final[Literal[Absent.ABSENT]] = Absent.ABSENT

T = TypeVar("T")
Maybe: TypeAlias = T | Absent
"""A reading that may be absent: `Maybe[float]`."""
