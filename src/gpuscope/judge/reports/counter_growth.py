"""How much each counter of a selector grew in a time range, exactly: last value minus first, resets added.

`increase()` extrapolates to the ends of its range and misses a counter that began inside it, so a job of 20 s
would get a guess or nothing. Here a counter that began inside the range grew from 0, and one that was there
before grew from its last value. The range is read in coarse chunks; only a chunk in which a counter went back
is read in fine steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuscope.base.go_quote import quote
from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.reports.gpu_reporters import ALL_REPORTERS, GpuReporters, Turn, uuid_matcher
from gpuscope.model.series import Labels

CHUNKS: Final = 120
MIN_CHUNK_MS: Final = 60_000
FINE_STEP_MS: Final = 5_000
MAX_FINE_POINTS: Final = 10_000
MAX_FINE_SAMPLES: Final = 1_000_000
"""Of one chunk. More series are read in coarser steps: of a reset, at most one such step is not counted."""
LOOK_BEFORE: Final = "1d"
"""A counter that was silent for longer before the range counts as new: an agent that was down for a day."""
MAX_SINGLE_SERIES: Final = 20
"""So many series that went back in a chunk are named in the query; of more, all series are read."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """A range in chunks of equal length: a first chunk with samples from before the range would look like a
    counter that went back. If no number of chunks divides it, it begins up to `count` milliseconds early."""

    start_ms: int
    end_ms: int
    step_ms: int
    count: int

    @classmethod
    def of(cls, start_ms: int, end_ms: int) -> ChunkGrid:
        length_ms = end_ms - start_ms
        most = min(CHUNKS, max(1, length_ms // MIN_CHUNK_MS))
        count = next((one for one in range(most, most // 2, -1) if length_ms % one == 0), most)
        step_ms = -(-length_ms // count)
        return cls(end_ms - count * step_ms, end_ms, step_ms, count)

    async def read(self, engine: QueryEngine, function: str, selector: str) -> Matrix:
        expression = f"{function}({selector}[{duration_text(self.step_ms)}])"
        return await engine.range(expression, self.start_ms + self.step_ms, self.end_ms, self.step_ms)


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    """The counters of a selector. `by_chunk` has a row for each and a column for each chunk."""

    labels: list[Labels]
    by_chunk: Floats
    present: Bools
    chunks: ChunkGrid
    existed_before: Bools

    @property
    def chunk_ends_ms(self) -> Ints:
        return self.chunks.start_ms + self.chunks.step_ms * np.arange(1, self.chunks.count + 1)

    @property
    def totals(self) -> Floats:
        found: Floats = self.by_chunk.sum(axis=1)
        return found


async def counter_growth(
    engine: QueryEngine,
    selector: str,
    start_ms: int,
    end_ms: int,
    reporters: GpuReporters = ALL_REPORTERS,
) -> CounterGrowth:
    """`selector` is an instant selector such as `x_total{kind="user"}`. A reporter counts in its turns only."""
    growth = await _growth_of_all(engine, selector, ChunkGrid.of(start_ms, end_ms))
    if reporters.turns:
        await _keep_turns(engine, selector, growth, reporters)
    return growth


async def _growth_of_all(engine: QueryEngine, selector: str, chunks: ChunkGrid) -> CounterGrowth:
    last = await chunks.read(engine, "last_over_time", selector)
    keys = [without_name(labels) for labels in last.labels]
    low = _in_order(keys, await chunks.read(engine, "min_over_time", selector))
    resets = _in_order(keys, await chunks.read(engine, "resets", selector))
    earlier = await values_before(engine, selector, chunks.start_ms)
    before = _value_before_each_chunk(last, np.array([earlier.get(key, 0.0) for key in keys]))
    # `resets` sees what happened inside a chunk, the lowest value what happened at its beginning.
    went_back = last.present & ((resets > 0) | (low < before * (1 - _ROUNDING)))
    # Where a counter begins, its lowest value says nothing about a reset.
    begins = last.present & (before == 0)
    if begins.any() and await engine.hides_resets():
        went_back |= begins
    grown = np.where(last.present, np.maximum(0.0, last.values - before), 0.0)
    for chunk in np.flatnonzero(went_back.any(axis=0)).tolist():
        rows = np.flatnonzero(went_back[:, chunk]).tolist()
        reader = _FineReader(engine, selector, int(last.times_ms[chunk]), chunks.step_ms)
        values = await reader.read([keys[row] for row in rows], len(keys))
        for row in rows:
            ends = (*values.get(keys[row], ()), float(last.values[row, chunk]))
            grown[row, chunk] = _sum_of_steps(float(before[row, chunk]), ends)
    existed = np.array([key in earlier for key in keys], dtype=np.bool_)
    return CounterGrowth(keys, grown, last.present, chunks, existed)


async def _keep_turns(
    engine: QueryEngine, selector: str, growth: CounterGrowth, reporters: GpuReporters
) -> None:
    """Takes away what a counter grew outside the turns of its reporter. A chunk in which a turn begins or ends,
    and the reporter does not, is read again as far as the turn goes."""
    ends_ms = growth.chunk_ends_ms
    starts_ms = ends_ms - growth.chunks.step_ms
    parts: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row, labels in enumerate(growth.labels):
        turns = reporters.turns_of(labels)
        if turns is None:
            continue
        counted = np.zeros(len(ends_ms), dtype=np.bool_)
        for turn in turns:
            counted |= turn.overlaps(starts_ms, ends_ms)
            for chunk in _cut_chunks(turn, starts_ms, ends_ms):
                start_ms, end_ms = (
                    max(turn.start_ms, int(starts_ms[chunk])),
                    min(turn.end_ms, int(ends_ms[chunk])),
                )
                parts[chunk, start_ms, end_ms].append(row)
        growth.by_chunk[row, ~counted] = 0.0
    for (chunk, _, _), rows in parts.items():
        growth.by_chunk[rows, chunk] = 0.0
    for (chunk, start_ms, end_ms), rows in parts.items():
        uuids = {dict(growth.labels[row]).get("uuid", "") for row in rows}
        # One chunk: a grid of several may begin a little earlier, before the first sample of the turn.
        chunks = ChunkGrid(start_ms, end_ms, end_ms - start_ms, 1)
        part = await _growth_of_all(engine, with_matcher(selector, uuid_matcher(uuids)), chunks)
        totals = dict(zip(part.labels, part.totals.tolist(), strict=True))
        for row in rows:
            growth.by_chunk[row, chunk] += totals.get(growth.labels[row], 0.0)


def _cut_chunks(turn: Turn, starts_ms: Ints, ends_ms: Ints) -> list[int]:
    cut: set[int] = set()
    for at_ms, is_cut in zip((turn.start_ms, turn.end_ms), turn.is_cut, strict=True):
        if is_cut:
            cut.update(np.flatnonzero((starts_ms < at_ms) & (at_ms < ends_ms)).tolist())
    return sorted(cut)


def with_matcher(selector: str, matcher: str) -> str:
    name, _, matchers = selector.partition("{")
    matchers = matchers.removesuffix("}")
    return f"{name}{{{matchers},{matcher}}}" if matchers else f"{name}{{{matcher}}}"


async def values_before(engine: QueryEngine, selector: str, at_ms: int) -> dict[Labels, float]:
    found = await engine.instant(f"last_over_time({selector}[{LOOK_BEFORE}])", at_ms)
    return {
        without_name(labels): value for labels, value in zip(found.labels, found.values.tolist(), strict=True)
    }


def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")


def _fine_ms(step_ms: int) -> int:
    return max(FINE_STEP_MS, step_ms // MAX_FINE_POINTS)


def _in_order(keys: Sequence[Labels], matrix: Matrix) -> Floats:
    """The rows in the order of `keys`; 0 where the matrix has no value."""
    rows = {without_name(labels): row for row, labels in enumerate(matrix.labels)}
    values = np.where(matrix.present, matrix.values, 0.0)
    found = np.zeros((len(keys), len(matrix.times_ms)))
    for number, key in enumerate(keys):
        if key in rows:
            found[number] = values[rows[key]]
    return found


def _value_before_each_chunk(last: Matrix, earlier: Floats) -> Floats:
    """The counter's value when each chunk begins: that of the last chunk before it that has one."""
    rows, columns = last.values.shape
    filled = np.concatenate([earlier.reshape(rows, 1), np.where(last.present, last.values, 0.0)], axis=1)
    known = np.concatenate([np.ones((rows, 1), dtype=np.bool_), last.present], axis=1)
    source = np.maximum.accumulate(np.where(known, np.arange(columns + 1), 0), axis=1)
    found: Floats = np.take_along_axis(filled, source, axis=1)[:, :-1]
    return found


def _sum_of_steps(value: float, values: Sequence[float]) -> float:
    total = 0.0
    for now in values:
        total += now - value if now >= value else now
        value = now
    return total


@dataclass(frozen=True, slots=True)
class _FineReader:
    """Reads counters over one chunk in fine steps."""

    engine: QueryEngine
    selector: str
    chunk_end_ms: int
    chunk_ms: int

    async def read(self, series: Sequence[Labels], all_series: int) -> dict[Labels, list[float]]:
        if len(series) <= MAX_SINGLE_SERIES:
            name = self.selector.partition("{")[0]
            selectors = [f"{name}{{{_matchers(labels)}}}" for labels in series]
        else:
            selectors = [self.selector]
        count = min(all_series, len(series)) if len(selectors) > 1 else all_series
        fine_ms = max(_fine_ms(self.chunk_ms), self.chunk_ms * count // MAX_FINE_SAMPLES)
        expression = " or ".join(
            f"last_over_time({selector}[{duration_text(fine_ms)}])" for selector in selectors
        )
        start_ms = self.chunk_end_ms - self.chunk_ms + fine_ms
        matrix = await self.engine.range(expression, start_ms, self.chunk_end_ms, fine_ms)
        return {
            without_name(labels): values[present].tolist()
            for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True)
        }


def _matchers(labels: Labels) -> str:
    return ",".join(f"{name}={quote(value)}" for name, value in labels)
