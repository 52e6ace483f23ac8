"""Reads a number from a reading by its path.

A path is an attribute of `Device`, `MigInstance` or another reading (`power_watts`), or an attribute and a key
of its mapping (`clock_hertz.sm`, `ecc_errors.corrected.volatile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from gpuscope.model.readings import ABSENT, Maybe


def reader(path: str) -> Callable[[object], Maybe[float]]:
    """A function that returns the value at `path` in a reading, or ABSENT."""
    attribute, *keys = path.split(".")
    if not keys:
        return lambda thing: getattr(thing, attribute, ABSENT)
    get = attrgetter(attribute)
    key = keys[0] if len(keys) == 1 else tuple(keys)

    def read(thing: object) -> Maybe[float]:
        if not hasattr(thing, attribute):
            return ABSENT
        by_label: Mapping[object, float] = get(thing)
        return by_label.get(key, ABSENT)

    return read
