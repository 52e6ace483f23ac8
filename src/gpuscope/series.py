"""What a store answers with: series of samples, selected by label matchers.

`Storage` is the border between whoever keeps samples and the PromQL evaluator. Times are integer
milliseconds since the epoch. A staleness marker is an ordinary sample whose value is the NaN with the bit
pattern `STALE_NAN_BITS`; a store keeps the bits, an evaluator looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

STALE_NAN_BITS = 0x7FF0000000000002

Labels = tuple[tuple[str, str], ...]
"""Label pairs sorted by name, `__name__` among them, no empty values."""


class MatchOp(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


class Matcher(NamedTuple):
    """One label condition; a missing label reads as the empty string, a regex must match the whole value.

    A tuple, because selections are looked up by their matchers and a tuple of strings is hashed at once.
    """

    name: str
    op: MatchOp
    value: str


@dataclass(frozen=True, slots=True)
class Series:
    """One series' samples in time order, no two at the same millisecond."""

    labels: Labels
    timestamps: NDArray[np.int64]
    values: NDArray[np.float64]


Admit = Callable[[int, int], None]
"""Told how many series and samples are about to be loaded; raises if that is too much, waits if it is now."""


class Storage(Protocol):
    """Anything that can be asked for samples: the embedded store, or a test's arrays."""

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        """Every series that matches and has a sample in [start_ms, end_ms], those samples only."""
        ...
