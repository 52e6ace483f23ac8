"""A simple store for tests: a list of series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import re2

from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp, Series

STALE = float(np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0])


def to_labels(pairs: Mapping[str, str]) -> Labels:
    return tuple(sorted((k, v) for k, v in pairs.items() if v))


class MemoryStorage:
    """`select` tests each series with each matcher."""

    def __init__(self) -> None:
        self._series: dict[Labels, dict[int, float]] = {}
        self._sorted: list[Series] | None = None

    def add(self, labels: Mapping[str, str], samples: Iterable[tuple[int, float]]) -> None:
        self._series.setdefault(to_labels(labels), {}).update(samples)
        self._sorted = None

    @property
    def series(self) -> list[Series]:
        if self._sorted is None:
            self._sorted = [_to_series(labels, kept) for labels, kept in sorted(self._series.items())]
        return self._sorted

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        chosen = []
        for one in self.series:
            if all(_matches(matcher, dict(one.labels)) for matcher in matchers):
                inside = (one.timestamps >= start_ms) & (one.timestamps <= end_ms)
                if inside.any():
                    chosen.append(Series(one.labels, one.timestamps[inside], one.values[inside]))
        return chosen


def _to_series(labels: Labels, kept: dict[int, float]) -> Series:
    times = sorted(kept)
    return Series(labels, np.array(times, dtype=np.int64), np.array([kept[t] for t in times], dtype=np.float64))


def _matches(matcher: Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.op:
        case MatchOp.EQUAL:
            return value == matcher.value
        case MatchOp.NOT_EQUAL:
            return value != matcher.value
        case MatchOp.REGEX:
            return re2.fullmatch(f"(?s:{matcher.value})", value) is not None
        case MatchOp.NOT_REGEX:
            return re2.fullmatch(f"(?s:{matcher.value})", value) is None
