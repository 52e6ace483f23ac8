"""The time range of a report: the buckets of its plot, and the pieces it is read in.

A piece is read from samples, from hourly or from daily roll-ups. Pieces are in order and do not overlap; a hole
between two of them is a part of the range that the engine refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from gpuscope.errors import UsageError
from gpuscope.promql.frame import Floats, Ints

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MAX_RANGE_MS: Final = 3_660 * DAY_MS
"""Ten years: a longer range is a slip, and takes a query for each of its years."""
MAX_BUCKETS: Final = 60
_BUCKET_WIDTHS: Final = (
    5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 7 * DAY_MS,
    30 * DAY_MS,
)  # fmt: skip

PieceSource = Literal["samples", "hourly", "daily"]


def check_range(start_ms: int, end_ms: int) -> None:
    if end_ms - start_ms > MAX_RANGE_MS:
        days, most = (end_ms - start_ms) / DAY_MS, MAX_RANGE_MS // DAY_MS
        raise UsageError(f"the range is {days:,.0f} days long; at most {most:,} days are read")


@dataclass(frozen=True, slots=True)
class RangePiece:
    """After `start_ms`, up to and including `end_ms`."""

    start_ms: int
    end_ms: int
    source: PieceSource

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Buckets:
    """Equal parts of a range, the last one shorter."""

    start_ms: int
    end_ms: int
    width_ms: int

    @classmethod
    def of(cls, start_ms: int, end_ms: int) -> Buckets:
        wanted = (end_ms - start_ms) / MAX_BUCKETS
        width_ms = next((one for one in _BUCKET_WIDTHS if one >= wanted), -(-int(wanted) // DAY_MS) * DAY_MS)
        return cls(start_ms, end_ms, width_ms)

    @property
    def count(self) -> int:
        return max(1, -(-(self.end_ms - self.start_ms) // self.width_ms))

    def edges(self, number: int) -> tuple[int, int]:
        start_ms = self.start_ms + number * self.width_ms
        return start_ms, min(start_ms + self.width_ms, self.end_ms)

    def spread(self, start_ms: int, ends_ms: Ints, amounts: Floats) -> Floats:
        """Amounts of consecutive steps from `start_ms` on; a step over two buckets is divided between them."""
        times = np.concatenate([[start_ms], ends_ms]).astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(amounts)])
        edges = self.start_ms + self.width_ms * np.arange(self.count + 1, dtype=np.float64)
        found: Floats = np.diff(np.interp(edges, times, sums))
        return found

    def zeros(self) -> Floats:
        return np.zeros(self.count)

    def overlap_ms(self, start_ms: int, end_ms: int) -> Floats:
        """How much of each bucket is between the two times."""
        starts = self.start_ms + self.width_ms * np.arange(self.count, dtype=np.float64)
        ends = np.minimum(starts + self.width_ms, self.end_ms)
        overlap: Floats = np.clip(np.minimum(ends, end_ms) - np.maximum(starts, start_ms), 0, None)
        return overlap
