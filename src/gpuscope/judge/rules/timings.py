"""Durations of many events as Prometheus shows them: a count, a sum, quantiles and four buckets.

Prometheus' quantiles cover ten minutes. Here they cover the newest MAX_RECENT events of that time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample

BUCKETS = (0.01, 0.1, 1.0, 10.0)
MAX_RECENT = 1000
RECENT_SECONDS = 600.0


class Timings:
    """Any thread may observe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=MAX_RECENT)
        self.bucket_counts = [0] * len(BUCKETS)
        self.count = 0
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._recent.append((self._clock(), seconds))
            self.count += 1
            self.sum_seconds += seconds
            for index, bound in enumerate(BUCKETS):
                if seconds <= bound:
                    self.bucket_counts[index] += 1

    def quantile(self, share: float) -> float:
        """NaN if nothing was observed in the last ten minutes."""
        since = self._clock() - RECENT_SECONDS
        recent = sorted(seconds for at, seconds in self._recent.copy() if at >= since)
        return recent[min(len(recent) - 1, int(share * len(recent)))] if recent else float("nan")


def timing_families(
    name: str,
    histogram: str,
    help_text: str,
    quantiles: Sequence[float],
    timings: Sequence[tuple[LabelSet, Timings]],
) -> Iterator[MetricFamily]:
    """The summary `name` and the histogram `histogram`, with a series for each of `timings`."""
    shares = [
        Sample(labels.plus(("quantile",), str(share)), timing.quantile(share))
        for labels, timing in timings
        for share in quantiles
    ]
    yield MetricFamily(name, "summary", help_text, shares)
    buckets = [
        Sample(labels.plus(("le",), bound), count)
        for labels, timing in timings
        for bound, count in zip(
            (*(f"{bound:g}" for bound in BUCKETS), "+Inf"), (*timing.bucket_counts, timing.count), strict=True
        )
    ]
    yield MetricFamily(f"{histogram}_bucket", "untyped", help_text, buckets)
    for family in (name, histogram):
        sums = [Sample(labels, timing.sum_seconds) for labels, timing in timings]
        yield MetricFamily(f"{family}_sum", "untyped", help_text, sums)
        counts = [Sample(labels, timing.count) for labels, timing in timings]
        yield MetricFamily(f"{family}_count", "untyped", help_text, counts)


def unlabelled(timings: Timings) -> list[tuple[LabelSet, Timings]]:
    return [(NO_LABELS, timings)]
