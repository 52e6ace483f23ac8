"""Series, samples and label matchers: the types between a store and the PromQL evaluator.

Times are integer milliseconds since the epoch. A stale marker is a sample whose value is the NaN with the bit
pattern `STALE_NAN_BITS`; a store keeps the bits, the evaluator interprets them.
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
    """A label matcher; a missing label has the value "", and a regex must match the whole value.

    A tuple, because matchers are dictionary keys and hashing a tuple of strings is fast.
    """

    name: str
    op: MatchOp
    value: str


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one series in time order, with distinct times."""

    labels: Labels
    timestamps: NDArray[np.int64]
    values: NDArray[np.float64]


Admit = Callable[[int, int], None]
"""Called with the number of series and samples to load; raises if a limit is exceeded or the query was
cancelled, or waits for memory."""


class Storage(Protocol):
    """A source of samples: the embedded store, or a list of series in tests."""

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        """Return every matching series that has samples in [start_ms, end_ms], with those samples only."""
        ...
