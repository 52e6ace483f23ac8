"""How much each counter of a selector grew in a time range, exactly: last value minus first, resets added.

`increase()` extrapolates to the ends of its range and misses a counter that began inside it, so a job of 20 s
would get a guess or nothing. Here a counter that began inside the range grew from 0, and one that was there
before grew from its last value. The range is read in coarse chunks; only a chunk in which a counter went back
is read in fine steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuscope.engines.query_engine import QueryEngine
from gpuscope.go_quote import quote
from gpuscope.promql.frame import Floats
from gpuscope.promql.result import Matrix
from gpuscope.series import Labels

CHUNKS: Final = 120
MIN_CHUNK_MS: Final = 60_000
FINE_STEP_MS: Final = 5_000
MAX_FINE_POINTS: Final = 10_000
LOOK_BEFORE: Final = "1d"
"""A counter that was silent for longer before the range counts as new: an agent that was down for a day."""
MAX_REFINED: Final = 2_000
"""Chunks read in fine steps. Of further ones only the value after the reset counts: too little, never more."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Growth:
    """One counter."""

    labels: Mapping[str, str]
    total: float
    first_chunk_ms: int
    """The end of the first chunk in which it has a value."""
    existed_before: bool


async def counter_growth(engine: QueryEngine, selector: str, start_ms: int, end_ms: int) -> list[Growth]:
    """`selector` is an instant selector such as `x_total{kind="user"}`."""
    step_ms = chunk_ms(start_ms, end_ms)
    last = await _chunks(engine, "last_over_time", selector, start_ms, end_ms, step_ms)
    low = _by_labels(await _chunks(engine, "min_over_time", selector, start_ms, end_ms, step_ms))
    resets = _by_labels(await _chunks(engine, "resets", selector, start_ms, end_ms, step_ms))
    before = await engine.instant(f"last_over_time({selector}[{LOOK_BEFORE}])", start_ms)
    earlier = {_key(labels): float(value) for labels, value in zip(before.labels, before.values, strict=True)}
    refine = _Refiner(engine, selector, step_ms)
    found = []
    for row, labels in enumerate(last.labels):
        key = _key(labels)
        chunks = np.flatnonzero(last.present[row])
        value, total = earlier.get(key, 0.0), 0.0
        for chunk in chunks.tolist():
            now, at_ms = float(last.values[row, chunk]), int(last.times_ms[chunk])
            # `resets` sees what happened inside a chunk, the lowest value what happened at its beginning.
            went_back = resets[key][chunk] > 0 or low[key][chunk] < value * (1 - _ROUNDING)
            total += await refine.growth(labels, at_ms, value, now) if went_back else max(0.0, now - value)
            value = now
        if len(chunks):
            found.append(Growth(dict(key), total, int(last.times_ms[chunks[0]]), key in earlier))
    return found


async def first_samples(
    engine: QueryEngine, selector: str, chunk_end_ms: int, start_ms: int, end_ms: int
) -> dict[Labels, tuple[int, float]]:
    """Time and value of each counter's first sample in one chunk of a range."""
    step_ms = chunk_ms(start_ms, end_ms)
    fine_ms = _fine_ms(step_ms)
    matrix = await engine.range(
        f"last_over_time({selector}[{fine_ms}ms])", chunk_end_ms - step_ms + fine_ms, chunk_end_ms, fine_ms
    )
    found = {}
    for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True):
        first = int(np.argmax(present))
        found[_key(labels)] = (int(matrix.times_ms[first]), float(values[first]))
    return found


def chunk_ms(start_ms: int, end_ms: int) -> int:
    return max(MIN_CHUNK_MS, -(-(end_ms - start_ms) // CHUNKS))


def _fine_ms(step_ms: int) -> int:
    return max(FINE_STEP_MS, step_ms // MAX_FINE_POINTS)


async def _chunks(
    engine: QueryEngine, function: str, selector: str, start_ms: int, end_ms: int, step_ms: int
) -> Matrix:
    first_ms = end_ms - (-(-(end_ms - start_ms) // step_ms) - 1) * step_ms
    return await engine.range(f"{function}({selector}[{step_ms}ms])", first_ms, end_ms, step_ms)


class _Refiner:
    """Reads one counter over one chunk in fine steps."""

    def __init__(self, engine: QueryEngine, selector: str, step_ms: int) -> None:
        self._engine = engine
        self._name = selector.partition("{")[0]
        self._step_ms = step_ms
        self._fine_ms = _fine_ms(step_ms)
        self._left = MAX_REFINED

    async def growth(self, labels: Labels, end_ms: int, value: float, last: float) -> float:
        """From `value` before the chunk until `last` at its end."""
        if self._left <= 0:
            return last
        self._left -= 1
        one = f"{self._name}{{{_matchers(labels)}}}"
        expression = f"last_over_time({one}[{self._fine_ms}ms])"
        start_ms = end_ms - self._step_ms + self._fine_ms
        matrix = await self._engine.range(expression, start_ms, end_ms, self._fine_ms)
        values = matrix.values[0][matrix.present[0]].tolist() if matrix.labels else []
        total = 0.0
        for now in (*values, last):  # the fine steps may end shortly before the chunk
            total += now - value if now >= value else now
            value = now
        return total


def _matchers(labels: Labels) -> str:
    return ",".join(f"{name}={quote(value)}" for name, value in labels if name != "__name__")


def _key(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")


def _by_labels(matrix: Matrix) -> dict[Labels, Floats]:
    return {_key(labels): values for labels, values in zip(matrix.labels, matrix.values, strict=True)}
