"""Array functions that numpy lacks, or that are slow to import."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.integer[Any])


def distinct(numbers: NDArray[T]) -> NDArray[T]:
    """Return the distinct numbers, ascending. `np.unique` would import `numpy.ma` for this, which takes 20
    ms."""
    ordered = np.sort(numbers)
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
