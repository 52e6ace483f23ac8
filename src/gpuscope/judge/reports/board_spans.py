"""From when to when each GPU counts in the range of a report, and with which reporter.

A GPU counts from its first sample, or from the start of the range if it was there within the day before, until
the end of the range: one that stops answering is lost, not gone. One that sent nothing in the last seven days
of the range has left, and counts until its last sample. One whose slot has a new card was replaced, and counts
until that one begins. Of several reporters each counts in its turns only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import EngineBadQuery, EngineQueryError, QueryEngine, labelled_values
from gpuscope.history.promql.frame import Bools, Ints
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.reports.counter_growth import CHUNKS, FINE_STEP_MS, LOOK_BEFORE, ChunkGrid, without_name
from gpuscope.judge.reports.gpu_identities import GpuIdentities, is_pci_address
from gpuscope.judge.reports.gpu_reporters import (
    SILENT_MS,
    GpuReporters,
    ReportedSpan,
    Reporter,
    Turn,
    reporter_of,
    take_turns,
    uuid_matcher,
)
from gpuscope.judge.reports.report_range import DAY_MS, HOUR_MS, MINUTE_MS, RangePiece
from gpuscope.judge.reports.usage.usage_history import halves
from gpuscope.judge.rules.shipped.rule_files import RolledUpCounter
from gpuscope.model.series import Labels

OBSERVED: Final = RolledUpCounter("gpu_observed_seconds", is_by_owner=False)
GONE_AFTER_MS: Final = 7 * DAY_MS
READ_EARLY_SECONDS: Final = 60.0
"""A board's first reading of a range may lie so much before it."""
MAX_EDGE_POINTS: Final = 1_000
"""In which the chunk is read where a reporter begins or ends."""

GpuOfReporter = tuple[Reporter, str]
"""A reporter, and the UUID of one of its GPUs."""


@dataclass(slots=True)
class BoardSpan:
    begin_ms: int
    last_ms: int
    """Its last sample, or a little later."""
    existed_before: bool
    has_left: bool = False
    counted: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it counts."""


async def board_spans(
    engine: QueryEngine, pieces: Sequence[RangePiece], parents: Mapping[str, str], matchers: str = ""
) -> tuple[dict[Labels, BoardSpan], GpuReporters]:
    """By the labels of the board's counter; empty without pieces. `parents` are those of MIG instances."""
    reader = _BoardReader(engine, matchers)
    for number, piece in enumerate(pieces):
        await reader.add_piece(piece, look_before=number == 0)
    end_ms = pieces[-1].end_ms if pieces else 0
    for span in reader.spans.values():
        span.has_left = end_ms - span.last_ms > GONE_AFTER_MS
        span.counted = [(span.begin_ms, span.last_ms if span.has_left else end_ms)]
    repeated = _repeated(reader.spans)
    if not repeated:
        return reader.spans, GpuReporters()
    reporters = GpuReporters(await reader.turns(repeated, end_ms), parents)
    for boards in repeated.values():
        _divide([labels for found in boards.values() for labels in found], reader.spans, reporters)
    return {labels: span for labels, span in reader.spans.items() if span.counted}, reporters


def end_replaced(
    spans: Mapping[Labels, BoardSpan], gpus: GpuIdentities, observed: Mapping[Labels, float]
) -> None:
    """Ends the time of each card when another one begins in its slot. `observed` are the seconds that each was
    read in the range: a card that was read for longer than that had come back, and stays as it is."""
    cards: dict[tuple[str, str], list[Labels]] = defaultdict(list)
    begins: dict[str, int] = {}
    """By UUID of cards that were read. One that got another index has two series, and began with the first."""
    for labels, span in spans.items():
        values = dict(labels)
        if (slot := gpus.slot(values)) is not None:
            cards[slot].append(labels)
        if observed.get(labels, 0.0) > 0:
            uuid = values.get("uuid", "")
            begins[uuid] = min(span.begin_ms, begins.get(uuid, span.begin_ms))
    for (_, slot_name), boards in cards.items():
        uuids = {dict(labels).get("uuid", "") for labels in boards}
        for labels in boards:
            span, uuid = spans[labels], dict(labels).get("uuid", "")
            # Agents of older versions report a replaced card as lost for as long as they run: it may have been
            # replaced before the range. An index says nothing then: GPUs behind a lost one move up.
            was_before = uuid not in begins and is_pci_address(slot_name)
            others = [begins[other] for other in uuids - {uuid} if other in begins]
            later = [at_ms for at_ms in others if at_ms > span.begin_ms or was_before]
            if not later:
                continue
            end_ms = max(span.begin_ms, min(later))
            counted = [(begin, min(end, end_ms)) for begin, end in span.counted if begin < end_ms]
            counted_seconds = sum(end - begin for begin, end in counted) / 1000
            if observed.get(labels, 0.0) <= counted_seconds + READ_EARLY_SECONDS:
                span.counted, span.last_ms = counted, min(span.last_ms, end_ms)


_BoardsOfGpus = Mapping[str, Mapping[Reporter, Sequence[Labels]]]
"""By UUID and reporter."""


def _repeated(spans: Mapping[Labels, BoardSpan]) -> _BoardsOfGpus:
    """The boards of GPUs that have several reporters."""
    boards: dict[str, dict[Reporter, list[Labels]]] = defaultdict(lambda: defaultdict(list))
    for labels in spans:
        values = dict(labels)
        boards[values.get("uuid", "")][reporter_of(values)].append(labels)
    return {uuid: found for uuid, found in boards.items() if uuid and len(found) > 1}


def _divide(boards: Sequence[Labels], spans: Mapping[Labels, BoardSpan], reporters: GpuReporters) -> None:
    """Divides the time of one GPU between its boards."""
    existed_before = any(spans[labels].existed_before for labels in boards)
    has_left = all(spans[labels].has_left for labels in boards)
    last_ms = max(spans[labels].last_ms for labels in boards)
    divided: set[Reporter] = set()
    # A reporter that gave the GPU another index has two series of it: its last one has the turns.
    for labels in sorted(boards, key=lambda one: spans[one].last_ms, reverse=True):
        span, reporter = spans[labels], reporter_of(dict(labels))
        span.existed_before, span.has_left = existed_before, has_left
        turns = (reporters.turns_of(labels) or ()) if reporter not in divided else ()
        span.counted = [
            (turn.start_ms, min(turn.end_ms, last_ms) if has_left else turn.end_ms) for turn in turns
        ]
        divided.add(reporter)


@dataclass(frozen=True, slots=True)
class _BoardReader:
    engine: QueryEngine
    matchers: str
    spans: dict[Labels, BoardSpan] = field(default_factory=dict)
    pieces: list[_PieceBoards] = field(default_factory=list)
    present: list[dict[Labels, Bools]] = field(default_factory=list)
    """By piece: in which of its chunks a board has samples."""

    async def add_piece(self, piece: RangePiece, *, look_before: bool) -> None:
        """What the engine refuses is read in halves."""
        boards = _PieceBoards(self.engine, piece, self.matchers)
        try:
            spans, present = await boards.read(self.spans, look_before=look_before)
        except EngineBadQuery:
            raise
        except EngineQueryError as error:
            first, second = halves(piece, error)
            await self.add_piece(first, look_before=look_before)
            await self.add_piece(second, look_before=False)
            return
        self.spans.update(spans)
        self.pieces.append(boards)
        self.present.append(present)

    async def turns(self, repeated: _BoardsOfGpus, end_ms: int) -> dict[str, list[Turn]]:
        chunks = [(piece, number) for piece in self.pieces for number in range(piece.grid.count)]
        times_ms = np.array([piece.chunk_ms(number) for piece, number in chunks])
        last, start_ms = len(chunks) - 1, self.pieces[0].piece.start_ms
        runs = {
            (reporter, uuid): _runs(times_ms, self._present(labels))
            for uuid, boards in repeated.items()
            for reporter, labels in boards.items()
        }
        was_here = {
            (reporter, uuid)
            for uuid, boards in repeated.items()
            for reporter, labels in boards.items()
            if any(self.spans[label_set].existed_before for label_set in labels)
        }
        is_here = await self.pieces[-1].reported_at_end(repeated)
        # Where a reporter begins or ends inside the range is read in fine steps.
        unsure: dict[int, set[str]] = defaultdict(set)
        for gpu, found in runs.items():
            for begin, end in found:
                if begin > 0 or gpu not in was_here:
                    unsure[begin].add(gpu[1])
                if end < last or gpu not in is_here:
                    unsure[end].add(gpu[1])
        edges: dict[int, dict[GpuOfReporter, _ReportedEdge]] = {}
        for number, uuids in unsure.items():
            piece, chunk = chunks[number]
            edges[number] = await piece.reported_edges(chunk, uuids)
        spans: dict[str, list[ReportedSpan]] = defaultdict(list)
        for gpu, found in runs.items():
            paused_ms = None
            for begin, end in found:
                span = ReportedSpan(gpu[0], start_ms, end_ms, start_ms)
                if begin > 0 or gpu not in was_here:
                    edge = edges[begin].get(gpu) or _ReportedEdge.of_chunk(times_ms[begin])
                    began_ms = edge.began_ms if paused_ms is None else paused_ms
                    span = replace(span, start_ms=edge.first_ms, began_ms=began_ms)
                if end < last or gpu not in is_here:
                    edge = edges[end].get(gpu) or _ReportedEdge.of_chunk(times_ms[end])
                    is_alone = begin == end and edge.is_alone
                    span = replace(span, end_ms=edge.first_ms if is_alone else edge.last_ms)
                spans[gpu[1]].append(span)
                paused_ms = span.end_ms
        edges_ms = np.concatenate([piece.edges_ms for piece in self.pieces])
        return {uuid: take_turns(found, start_ms, end_ms, edges_ms) for uuid, found in spans.items()}

    def _present(self, boards: Sequence[Labels]) -> Bools:
        """In which chunks of all pieces any of the boards has samples."""
        parts = []
        for piece, present in zip(self.pieces, self.present, strict=True):
            rows = [present[labels] for labels in boards if labels in present]
            parts.append(np.any(rows, axis=0) if rows else np.zeros(piece.grid.count, dtype=np.bool_))
        found: Bools = np.concatenate(parts)
        return found


def _runs(times_ms: Ints, present: Bools) -> list[tuple[int, int]]:
    """First and last chunk of each stretch without a long pause; `times_ms` are their starts and ends."""
    chunks = np.flatnonzero(present)
    pauses = np.flatnonzero(times_ms[chunks[1:], 0] - times_ms[chunks[:-1], 1] > SILENT_MS)
    firsts, lasts = np.concatenate([[0], pauses + 1]), np.concatenate([pauses, [len(chunks) - 1]])
    return list(zip(chunks[firsts].tolist(), chunks[lasts].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _ReportedEdge:
    """What one chunk says about a reporter that begins or ends in it."""

    first_ms: int
    last_ms: int
    began_ms: int
    is_alone: bool = False
    """A single hour's roll-up: in which part of the hour its samples were is not known."""

    @classmethod
    def of_chunk(cls, times_ms: Ints) -> _ReportedEdge:
        """Of samples that no fine step saw, as one before a stale marker."""
        start_ms, end_ms = (int(at_ms) for at_ms in times_ms)
        return cls(start_ms, end_ms, start_ms)


@dataclass(frozen=True, slots=True)
class _PieceBoards:
    engine: QueryEngine
    piece: RangePiece
    matchers: str

    @property
    def _is_samples(self) -> bool:
        return self.piece.source == "samples"

    @property
    def _selector(self) -> str:
        return f"{self._metric}{{{self.matchers}}}"

    @property
    def _metric(self) -> str:
        return OBSERVED.raw if self._is_samples else OBSERVED.growth_by_hour

    @property
    def _late_ms(self) -> int:
        """An hour is evaluated within the minute after its end."""
        return 0 if self._is_samples else MINUTE_MS

    @property
    def grid(self) -> ChunkGrid:
        """Of an hourly piece no chunk is shorter than an hour: it would be one without samples."""
        start_ms, end_ms = self.piece.start_ms + self._late_ms, self.piece.end_ms + self._late_ms
        hours = self.piece.length_ms // HOUR_MS
        if self._is_samples or hours > CHUNKS:
            return ChunkGrid.of(start_ms, end_ms)
        return ChunkGrid(start_ms, end_ms, HOUR_MS, hours)

    def chunk_ms(self, chunk: int) -> tuple[int, int]:
        """Its start and end."""
        grid = self.grid
        start_ms = grid.start_ms - self._late_ms + chunk * grid.step_ms
        return start_ms, start_ms + grid.step_ms

    @property
    def edges_ms(self) -> Ints:
        """Times at which the growth of a counter can be divided without another query."""
        if self._is_samples:
            return self.grid.start_ms + self.grid.step_ms * np.arange(self.grid.count + 1)
        return np.arange(self.piece.start_ms, self.piece.end_ms + 1, HOUR_MS)

    async def read(
        self, known: Mapping[Labels, BoardSpan], *, look_before: bool
    ) -> tuple[dict[Labels, BoardSpan], dict[Labels, Bools]]:
        """The boards of the piece, and in which chunks they have samples; `known` are those of earlier ones."""
        piece, late_ms = self.piece, self._late_ms
        spans: dict[Labels, BoardSpan] = {}
        counts = await self.grid.read(self.engine, "count_over_time", self._selector)
        before = await self._seen_before() if look_before else set()
        late: dict[int, list[Labels]] = {}
        keys = [without_name(labels) for labels in counts.labels]
        for labels, present in zip(keys, counts.present, strict=True):
            chunks = np.flatnonzero(present)
            last_ms = int(counts.times_ms[chunks[-1]]) - late_ms
            if labels in known:
                spans[labels] = replace(known[labels], last_ms=last_ms)
                continue
            spans[labels] = BoardSpan(piece.start_ms, last_ms, labels in before)
            if labels not in before:
                late.setdefault(int(counts.times_ms[chunks[0]]), []).append(labels)
        for chunk_end_ms, boards in late.items():
            begins = await self._begins(chunk_end_ms, self.grid.step_ms)
            for labels in boards:
                spans[labels].begin_ms = max(piece.start_ms, begins.get(labels, chunk_end_ms))
        return spans, dict(zip(keys, counts.present, strict=True))

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

    async def reported_at_end(self, uuids: Collection[str]) -> set[GpuOfReporter]:
        """Which reporters have samples of these GPUs when the piece ends."""
        window = duration_text(SILENT_MS if self._is_samples else HOUR_MS)
        expression = f"count_over_time({self._metric}{{{uuid_matcher(uuids)}}}[{window}])"
        found = await self.engine.instant(expression, self.piece.end_ms + self._late_ms)
        return {_gpu_of_reporter(labels) for labels, _ in labelled_values(found)}

    async def reported_edges(self, chunk: int, uuids: Collection[str]) -> dict[GpuOfReporter, _ReportedEdge]:
        selector = f"{self._metric}{{{uuid_matcher(uuids)}}}"
        if self._is_samples:
            return await self._edges_of_samples(selector, *self.chunk_ms(chunk))
        return await self._edges_of_hours(selector, *self.chunk_ms(chunk))

    async def _edges_of_samples(
        self, selector: str, start_ms: int, end_ms: int
    ) -> dict[GpuOfReporter, _ReportedEdge]:
        length_ms = end_ms - start_ms
        step_ms = max(FINE_STEP_MS, length_ms // MAX_EDGE_POINTS)
        steps = f"[{duration_text(length_ms)}:{duration_text(step_ms)}]"

        async def times(function: str, value: str) -> dict[GpuOfReporter, int]:
            found = labelled_values(await self.engine.instant(f"{function}(({value}){steps})", end_ms))
            read: dict[GpuOfReporter, int] = {}
            for labels, seconds in found:
                gpu, at_ms = _gpu_of_reporter(labels), round(seconds * 1000)
                # A reporter may have given the GPU another index: it has two series then.
                read[gpu] = (max if function == "max_over_time" else min)(at_ms, read.get(gpu, at_ms))
            return read

        first = await times("min_over_time", f"timestamp({selector})")
        last = await times("max_over_time", f"timestamp({selector})")
        began = await times("min_over_time", f"timestamp({selector}) - {selector}")
        return {gpu: _ReportedEdge(first[gpu], last[gpu], began[gpu]) for gpu in first}

    async def _edges_of_hours(
        self, selector: str, start_ms: int, end_ms: int
    ) -> dict[GpuOfReporter, _ReportedEdge]:
        # The hours that end in the chunk, and one before and after: a chunk need not end with an hour.
        first = max(1, (start_ms - self.piece.start_ms) // HOUR_MS)
        last = min(self.piece.length_ms, end_ms - self.piece.start_ms + HOUR_MS) // HOUR_MS
        start_ms, end_ms = (self.piece.start_ms + hour * HOUR_MS + self._late_ms for hour in (first, last))
        matrix = await self.engine.range(f"sum_over_time({selector}[1h])", start_ms, end_ms, HOUR_MS)
        edges: dict[GpuOfReporter, _ReportedEdge] = {}
        for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True):
            hours = np.flatnonzero(present)
            if not len(hours):
                continue
            ends_ms = matrix.times_ms[hours] - self._late_ms
            first_ms, last_ms = int(ends_ms[0]), int(ends_ms[-1]) - HOUR_MS
            edges[_gpu_of_reporter(dict(labels))] = _ReportedEdge(
                first_ms,
                last_ms + min(HOUR_MS, round(1000 * float(values[hours[-1]]))),
                first_ms - round(1000 * float(values[hours[0]])),
                is_alone=len(hours) == 1,
            )
        return edges


def _gpu_of_reporter(labels: Mapping[str, str]) -> GpuOfReporter:
    return reporter_of(labels), labels.get("uuid", "")
