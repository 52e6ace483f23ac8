"""Series, label matchers, and `Storage`, the interface between a store and the PromQL evaluator.

Times are integer milliseconds since the epoch. A staleness marker is a sample whose value is the NaN with the
bit pattern `STALE_NAN_BITS`; a store must preserve the bits.
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
"""Label pairs sorted by name, including `__name__`, without empty values."""


class MatchOp(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


class Matcher(NamedTuple):
    """One label condition. A missing label equals the empty string; a regex must match the whole value.

    A NamedTuple, because matchers are dictionary keys and tuples hash quickly.
    """

    name: str
    op: MatchOp
    value: str


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one series in time order, at most one per millisecond."""

    labels: Labels
    timestamps: NDArray[np.int64]
    values: NDArray[np.float64]


Admit = Callable[[int, int], None]
"""Called with the number of series and samples to load; raises above a limit, or waits for capacity."""


class Storage(Protocol):
    """A source of samples for queries: the embedded store, or arrays in a test."""

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        """Every matching series with samples in [start_ms, end_ms], with those samples only."""
        ...
