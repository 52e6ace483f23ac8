"""From when to when each GPU counts in the range of a report.

A GPU counts from its first sample, or from the start of the range if it was there within the day before, until
the end of the range: one that stops answering is lost, not gone. One that sent nothing in the last seven days
of the range has left, and counts until its last sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpuscope.engines.engine_errors import EngineBadQuery, EngineQueryError
from gpuscope.engines.query_engine import QueryEngine
from gpuscope.prometheus_duration import duration_text
from gpuscope.promql.result import Matrix
from gpuscope.reports.counter_growth import FINE_STEP_MS, LOOK_BEFORE, ChunkGrid, without_name
from gpuscope.reports.report_range import DAY_MS, HOUR_MS, MINUTE_MS, RangePiece
from gpuscope.reports.usage_history import halves
from gpuscope.rules.shipped.rollup_rules import RolledUpCounter
from gpuscope.series import Labels

OBSERVED: Final = RolledUpCounter("gpu_observed_seconds", is_by_owner=False)
GONE_AFTER_MS: Final = 7 * DAY_MS


@dataclass(slots=True)
class BoardSpan:
    begin_ms: int
    last_ms: int
    """Its last sample, or a little later."""
    existed_before: bool
    has_left: bool = False


async def board_spans(engine: QueryEngine, pieces: Sequence[RangePiece]) -> dict[Labels, BoardSpan]:
    """By the labels of the board's counter; empty without pieces."""
    spans: dict[Labels, BoardSpan] = {}
    for number, piece in enumerate(pieces):
        await _add_piece(engine, spans, piece, look_before=number == 0)
    end_ms = pieces[-1].end_ms if pieces else 0
    for span in spans.values():
        span.has_left = end_ms - span.last_ms > GONE_AFTER_MS
    return spans


async def _add_piece(
    engine: QueryEngine, spans: dict[Labels, BoardSpan], piece: RangePiece, *, look_before: bool
) -> None:
    """What the engine refuses is read in halves."""
    try:
        spans.update(await _PieceBoards(engine, piece).read(spans, look_before=look_before))
    except EngineBadQuery:
        raise
    except EngineQueryError as error:
        first, second = halves(piece, error)
        await _add_piece(engine, spans, first, look_before=look_before)
        await _add_piece(engine, spans, second, look_before=False)


@dataclass(frozen=True, slots=True)
class _PieceBoards:
    engine: QueryEngine
    piece: RangePiece

    @property
    def _is_samples(self) -> bool:
        return self.piece.source == "samples"

    @property
    def _selector(self) -> str:
        return OBSERVED.raw if self._is_samples else OBSERVED.growth_by_hour

    @property
    def _late_ms(self) -> int:
        """An hour is evaluated within the minute after its end."""
        return 0 if self._is_samples else MINUTE_MS

    async def read(self, known: Mapping[Labels, BoardSpan], *, look_before: bool) -> dict[Labels, BoardSpan]:
        """The boards of the piece; `known` are those of earlier ones."""
        piece, late_ms = self.piece, self._late_ms
        spans: dict[Labels, BoardSpan] = {}
        grid = ChunkGrid.of(piece.start_ms + late_ms, piece.end_ms + late_ms)
        counts = await grid.read(self.engine, "count_over_time", self._selector)
        before = await self._seen_before() if look_before else set()
        late: dict[int, list[Labels]] = {}
        for labels, present in zip(map(without_name, counts.labels), counts.present, strict=True):
            chunks = np.flatnonzero(present)
            last_ms = int(counts.times_ms[chunks[-1]]) - late_ms
            if labels in known:
                spans[labels] = replace(known[labels], last_ms=last_ms)
                continue
            spans[labels] = BoardSpan(piece.start_ms, last_ms, labels in before)
            if labels not in before:
                late.setdefault(int(counts.times_ms[chunks[0]]), []).append(labels)
        for chunk_end_ms, boards in late.items():
            begins = await self._begins(chunk_end_ms, grid.step_ms)
            for labels in boards:
                spans[labels].begin_ms = max(piece.start_ms, begins.get(labels, chunk_end_ms))
        return spans

    async def _seen_before(self) -> set[Labels]:
        at_ms = self.piece.start_ms + self._late_ms
        found = await self.engine.instant(f"count_over_time({self._selector}[{LOOK_BEFORE}])", at_ms)
        return {without_name(labels) for labels in found.labels}

    async def _begins(self, chunk_end_ms: int, chunk_ms: int) -> dict[Labels, int]:
        """The first value of a counter is for how long the agent had read the GPU then."""
        step_ms = FINE_STEP_MS if self._is_samples else HOUR_MS
        step_ms = min(max(step_ms, chunk_ms // 10_000), chunk_ms)
        expression = f"last_over_time({self._selector}[{duration_text(step_ms)}])"
        start_ms = chunk_end_ms - chunk_ms + step_ms
        matrix: Matrix = await self.engine.range(expression, start_ms, chunk_end_ms, step_ms)
        found = {}
        for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True):
            first = int(np.argmax(present))
            at_ms = int(matrix.times_ms[first]) - self._late_ms
            found[without_name(labels)] = at_ms - round(float(values[first]) * 1000)
        return found
