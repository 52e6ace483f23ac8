"""What numpy does not have, or has only with something large behind it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.integer[Any])


def distinct(numbers: NDArray[T]) -> NDArray[T]:
    """Each number once, ascending: `np.unique`, which would import `numpy.ma` for it, 20 ms of somebody's first
    query."""
    ordered = np.sort(numbers)
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
