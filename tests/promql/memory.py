"""A store for tests: series in a list, matchers tried one by one with the plainest code there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import re2

from gpuscope.store.series import STALE_NAN_BITS, Labels, Matcher, MatchOp, Series

STALE = float(np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0])


def to_labels(pairs: Mapping[str, str]) -> Labels:
    return tuple(sorted((k, v) for k, v in pairs.items() if v))


class MemoryStorage:
    """Holds what it is given; `select` is a loop."""

    def __init__(self) -> None:
        self._series: dict[Labels, dict[int, float]] = {}

    def add(self, labels: Mapping[str, str], samples: Iterable[tuple[int, float]]) -> None:
        self._series.setdefault(to_labels(labels), {}).update(samples)

    @property
    def series(self) -> list[Series]:
        return [
            Series(labels, np.array(sorted(kept), dtype=np.int64), _floats(kept[t] for t in sorted(kept)))
            for labels, kept in sorted(self._series.items())
        ]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        chosen = []
        for one in self.series:
            if all(_matches(matcher, dict(one.labels)) for matcher in matchers):
                inside = (one.timestamps >= start_ms) & (one.timestamps <= end_ms)
                if inside.any():
                    chosen.append(Series(one.labels, one.timestamps[inside], one.values[inside]))
        return chosen


def _floats(values: Iterable[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(list(values), dtype=np.float64)


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
