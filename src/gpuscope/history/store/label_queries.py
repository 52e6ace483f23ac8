"""Queries by label matchers: series, labels, samples, and the newest samples of chosen metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from gpuscope.history.store.column_reader import MAX_FEW_SERIES, ColumnReader
from gpuscope.history.store.contents import Contents, StoredTargetState
from gpuscope.history.store.head_view import ABSENT_BITS, Samples
from gpuscope.history.store.index import Index
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.selections import Selections, SeriesSelection
from gpuscope.history.store.tick import Int64s, distinct
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import STALE_NAN_BITS, Admit, Matcher, Series
from gpuscope.model.series_columns import Choose, SeriesColumns

# The newest samples of chosen metrics, target by target; only targets with new samples are read again.
#
# For a reader that returns each second, as the live picture does: of 1,000 targets scraped every 15 s, about
# 67 have changed. What it returns equals an instant query: the newest sample of each series within the
# lookback delta that is not a stale marker. While nothing of a target changes, its list is the same object.

NamedSample = tuple[str, Mapping[str, str], float]
"""Metric name, labels without the name, value."""
IsWanted = Callable[[str, Mapping[str, str]], bool]
"""By metric name and labels."""
IsTarget = Callable[[str], bool]
"""By a target's name."""
_NAME: Final = "__name__"
_Version = tuple[object, ...]


@dataclass(slots=True)
class _Series:
    """The wanted series of one target."""

    known: Int64s
    """Ids, ascending, of all series that were looked at, wanted or not."""
    selection: SeriesSelection
    names: list[str]
    labels: list[Mapping[str, str]]
    """Like `names`, of each row of the selection."""

    def wanted_of(self, ids: Int64s) -> dict[int, tuple[str, Mapping[str, str]]]:
        """Return name and labels of the wanted series among these."""
        rows = np.flatnonzero(np.isin(self.selection.series, ids)).tolist()
        series = self.selection.series.tolist()
        return {series[row]: (self.names[row], self.labels[row]) for row in rows}


@dataclass(slots=True)
class _Target:
    version: _Version
    order: object
    series: _Series
    valid_until: int
    """The time until which no sample becomes older than the lookback delta."""
    samples: list[NamedSample]
    name: str


class NewestSamples:
    """Not thread-safe: one caller at a time."""

    def __init__(
        self,
        index: Index,
        contents: Contents,
        columns: ColumnReader,
        is_wanted: IsWanted,
        lookback_ms: int,
        is_target: IsTarget | None = None,
    ) -> None:
        """`is_target` chooses the targets that are read; None reads all."""
        self._index = index
        self._contents = contents
        self._columns = columns
        self._is_wanted = is_wanted
        self._lookback_ms = lookback_ms
        self._is_target = is_target
        self._targets: dict[int, _Target] = {}

    def read(self, now_ms: int) -> dict[str, list[NamedSample]]:
        """Return the samples of each target that has some, by the target's name; the oldest target first."""
        with self._contents.lock:
            states = self._contents.states()
        if self._is_target is not None:
            states = [state for state in states if self._is_target(state.name)]
        known = self._targets
        self._targets = {state.id: self._of(state, known.get(state.id), now_ms) for state in states}
        return {target.name: target.samples for target in self._targets.values() if target.samples}

    def _of(self, state: StoredTargetState, known: _Target | None, now_ms: int) -> _Target:
        # All of it is read before the samples: a change in between is then seen by the next call.
        head, late = state.head, state.late
        row = head.newest_row(now_ms)
        order = head.order  # a new head has a new one; the head itself is not kept, because it may be sealed
        version = (head.rows, head.samples, row and row[0], state.newest_sealed, self._index.claims)
        is_sealed = state.newest_sealed > now_ms - self._lookback_ms
        is_plain = row is not None and not late and not is_sealed
        if (
            known is not None
            and is_plain
            and known.order is order
            and known.version == version
            and now_ms < known.valid_until
        ):
            return known
        if known is None or known.order is not order or not is_plain:
            others = [self._index.series_of(state.id)] if is_sealed else []
            others += [late_head.head.order[0] for late_head in late]
            ids = distinct(np.concatenate([order[0], *others])) if others else order[0]
            series = self._series(ids, None if known is None else known.series)
        else:
            series = known.series
        samples, valid_until = self._read(series, now_ms)
        is_kept = is_plain and not series.selection.is_shared
        # Samples that are not all in the newest row of one target are read again each time.
        return _Target(version, order, series, valid_until if is_kept else -1, samples, state.name)

    def _series(self, ids: Int64s, before: _Series | None) -> _Series:
        wanted = {} if before is None else before.wanted_of(ids)
        shared = {frozenset(labels.items()): labels for _, labels in wanted.values()}
        new = ids if before is None else ids[~np.isin(ids, before.known)]
        for sid in new.tolist():
            name, labels = self._describe(sid)
            if name and self._is_wanted(name, labels):
                # Series of one subject have equal labels but for the name: they share one dictionary, which
                # takes a sixth of the memory.
                wanted[sid] = name, shared.setdefault(frozenset(labels.items()), labels)
        selection = SeriesSelection(self._index, np.array(sorted(wanted), np.int64))
        rows = [wanted[sid] for sid in selection.series.tolist()]
        return _Series(ids, selection, [name for name, _ in rows], [labels for _, labels in rows])

    def _describe(self, sid: int) -> tuple[str, Mapping[str, str]]:
        labels = dict(self._index.pairs(sid))
        return labels.pop(_NAME, ""), labels

    def _read(self, series: _Series, now_ms: int) -> tuple[list[NamedSample], int]:
        start = now_ms - self._lookback_ms + 1
        times, values = self._columns.newest(series.selection, start, now_ms)
        bits = values.view(np.int64)
        rows = np.flatnonzero((bits != ABSENT_BITS) & (bits != STALE_NAN_BITS) & (times >= start))
        valid_until = int(times[rows].min(initial=now_ms)) + self._lookback_ms
        names, labels = series.names, series.labels
        chosen = zip(rows.tolist(), values[rows].tolist(), strict=True)
        return [(names[row], labels[row], value) for row, value in chosen], valid_until


MAX_UNCHECKED_SERIES_MS = 100 * 3_600_000
"""A hundred series over an hour, or one over four days: smaller selections are loaded without calling
`admit`."""
MIN_TIME_MS, MAX_TIME_MS = -(2**62), 2**62


class LabelQueries:
    """Everything that a store is asked."""

    def __init__(self, index: Index, contents: Contents, reader: Reader) -> None:
        self._index = index
        self.contents = contents
        self.reader = reader
        self.selections = Selections(index)
        self._columns = ColumnReader(reader, contents)

    @property
    def kept_rows_bytes(self) -> int:
        """Memory of the rows kept between queries."""
        return self._columns.kept_rows_bytes

    def select(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> list[Series]:
        """Return every matching series that has samples in [start_ms, end_ms], with those samples only."""
        chosen, admit = self._choose(matchers, start_ms, end_ms, admit)
        if len(chosen.series) > MAX_FEW_SERIES:
            return self._columns.read(chosen, start_ms, end_ms, admit).series()
        return self._named(self.reader.read(chosen.groups, start_ms, end_ms, admit))

    def latest(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> list[Series]:
        """As `select`, but with only the newest sample of each series, for instant queries."""
        return self.latest_columns(matchers, start_ms, end_ms, admit).series()

    def select_columns(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
        choose: Choose | None = None,
    ) -> SeriesColumns:
        """As `select`, in flat arrays; with `choose` at least the chosen ones of the series that match."""
        chosen, admit = self._choose(matchers, start_ms, end_ms, admit, choose)
        return self._columns.read(chosen, start_ms, end_ms, admit)

    def _choose(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit | None,
        choose: Choose | None = None,
    ) -> tuple[SeriesSelection, Admit | None]:
        """Return the selection, and what its samples need: None for few."""
        chosen = self._find(matchers, admit, choose)
        if admit is not None:
            count = len(chosen.series)
            if count * (end_ms - start_ms) <= MAX_UNCHECKED_SERIES_MS:
                admit = None
            else:
                admit(count, 0)
        return chosen, admit

    def latest_columns(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
        choose: Choose | None = None,
    ) -> SeriesColumns:
        """As `latest`, in flat arrays; `choose` is as in `select_columns`."""
        chosen = self._find(matchers, admit, choose)
        if admit is not None:
            admit(len(chosen.series), 0)
        return self._columns.latest(chosen, start_ms, end_ms)

    def _find(self, matchers: Sequence[Matcher], admit: Admit | None, choose: Choose | None) -> SeriesSelection:
        chosen = self.selections.find(matchers, admit)
        return chosen if choose is None else chosen.part(choose(chosen.labels))

    def newest_samples(
        self, is_wanted: IsWanted, lookback_ms: int, is_target: IsTarget | None = None
    ) -> NewestSamples:
        return NewestSamples(self._index, self.contents, self._columns, is_wanted, lookback_ms, is_target)

    def any_latest(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
    ) -> list[Series]:
        """As `latest`, for series that match any of the selectors; each is read once."""
        sids = self._any(selectors, admit)
        if admit is not None:
            admit(len(sids), 0)
        return self._named(self.reader.latest(self._index.by_target(sids), start_ms, end_ms))

    def count_in_memory(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int
    ) -> tuple[int, int] | None:
        """Return the number of series and, at most, of samples that a repeated query would load, if all of them
        are in memory; else None. Never waits."""
        known = self.selections.known(matchers)
        if known is None:
            return None
        samples = self.reader.count_in_memory(known.groups, start_ms, end_ms)
        return None if samples is None else (len(known.series), samples)

    def _named(self, by_series: dict[int, Samples]) -> list[Series]:
        labels = self._index.labels
        return [Series(labels(sid), times, values) for sid, (times, values) in by_series.items()]

    def _rows_with_data(
        self, chosen: SeriesSelection, start_ms: int | None, end_ms: int | None
    ) -> LabelColumns:
        """Return the label sets of the series; with a time range only of those in a head or block that
        overlaps it."""
        labels = chosen.labels
        if start_ms is not None or end_ms is not None:
            start = MIN_TIME_MS if start_ms is None else start_ms
            end = MAX_TIME_MS if end_ms is None else end_ms
            rows = self._columns.rows_with_data(chosen, start, end)
            if len(rows) < len(labels):
                labels = labels.take(rows)
        # A series that was removed meanwhile has no labels.
        known = labels.codes.any(axis=0)
        return labels if known.all() else labels.take(np.flatnonzero(known))

    def series(
        self,
        matchers: Sequence[Matcher],
        start_ms: int | None = None,
        end_ms: int | None = None,
        admit: Admit | None = None,
    ) -> LabelColumns:
        """Return the label sets of matching series that have data in blocks overlapping the time range."""
        return self._rows_with_data(self.selections.find(matchers, admit), start_ms, end_ms)

    def any_series(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int | None = None,
        end_ms: int | None = None,
        admit: Admit | None = None,
    ) -> LabelColumns:
        """As `series`, for series that match any of the selectors, each once. Duplicates are removed by id:
        that is a hundred times faster than comparing the label sets that 900 selectors may find."""
        every = iter(selectors)
        first, second = next(every, None), next(every, None)
        if first is None:
            return LabelColumns.of(())
        if second is None:
            return self.series(first, start_ms, end_ms, admit)
        chosen = SeriesSelection(self._index, self._any(chain((first, second), every), admit))
        return self._rows_with_data(chosen, start_ms, end_ms)

    def _any(self, selectors: Iterable[Sequence[Matcher]], admit: Admit | None) -> Int64s:
        chosen = np.zeros(0, np.bool_)
        for matchers in selectors:
            sids = self._index.select(matchers, admit)
            if len(sids) and sids[-1] >= len(chosen):  # ids are ascending: the last is the largest
                chosen = np.append(chosen, np.zeros(int(sids[-1]) + 1 - len(chosen), np.bool_))
            chosen[sids] = True
        return np.flatnonzero(chosen)

    def label_names(
        self, matchers: Sequence[Matcher] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> list[str]:
        if not matchers and start_ms is None and end_ms is None:
            return self._index.label_names()
        return self.series(matchers, start_ms, end_ms).used_names()

    def label_values(
        self,
        name: str,
        matchers: Sequence[Matcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[str]:
        if not matchers and start_ms is None and end_ms is None:
            return list(self._index.label_values(name))
        return sorted(self.series(matchers, start_ms, end_ms).values(name) - {""})

    def known_label_values(self, name: str) -> list[str] | None:
        """Return all values of a label if they are sorted already, else None. Never waits. Callers share the
        list."""
        return self._index.known_label_values(name)
