"""Queries by label matchers: series, labels and samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from gpuscope.history.store.column_reader import MAX_FEW_SERIES, ColumnReader
from gpuscope.history.store.contents import Contents
from gpuscope.history.store.head_view import Samples
from gpuscope.history.store.index import Index
from gpuscope.history.store.newest_samples import IsTarget, IsWanted, NewestSamples
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.selections import Selections, SeriesSelection
from gpuscope.history.store.tick import Int64s
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Admit, Matcher, Series
from gpuscope.model.series_columns import Choose, SeriesColumns

MAX_UNCHECKED_SERIES_MS = 100 * 3_600_000
"""A hundred series over an hour, or one over four days: smaller selections are loaded without calling
`admit`."""
MIN_TIME_MS, MAX_TIME_MS = -(2**62), 2**62


class LabelQueries:
    """Combines index and reader."""

    def __init__(self, index: Index, contents: Contents, reader: Reader) -> None:
        self._index = index
        self._contents = contents
        self._reader = reader
        self.selections = Selections(index)
        self._columns = ColumnReader(reader, contents)

    @property
    def kept_rows_bytes(self) -> int:
        """Memory of the rows kept between queries."""
        return self._columns.kept_rows_bytes

    def select(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> list[Series]:
        chosen, admit = self._choose(matchers, start_ms, end_ms, admit)
        if len(chosen.series) > MAX_FEW_SERIES:
            return self._columns.read(chosen, start_ms, end_ms, admit).series()
        return self._named(self._reader.read(chosen.groups, start_ms, end_ms, admit))

    def latest(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> list[Series]:
        return self.latest_columns(matchers, start_ms, end_ms, admit).series()

    def select_columns(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
        choose: Choose | None = None,
    ) -> SeriesColumns:
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
        return NewestSamples(self._index, self._contents, self._columns, is_wanted, lookback_ms, is_target)

    def any_latest(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
    ) -> list[Series]:
        """As `latest`, for series that match any of the selectors; each is read once."""
        found = self._any(selectors, admit)
        if admit is not None:
            admit(len(found), 0)
        return self._named(self._reader.latest(self._index.by_target(found), start_ms, end_ms))

    def count_in_memory(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int
    ) -> tuple[int, int] | None:
        """Return the number of series and at most of samples; None if unknown or not all in memory."""
        known = self.selections.known(matchers)
        if known is None:
            return None
        samples = self._reader.count_in_memory(known.groups, start_ms, end_ms)
        return None if samples is None else (len(known.series), samples)

    def _named(self, found: dict[int, Samples]) -> list[Series]:
        labels = self._index.labels
        return [Series(labels(sid), times, values) for sid, (times, values) in found.items()]

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
        start_ms: int | None,
        end_ms: int | None,
        admit: Admit | None = None,
    ) -> LabelColumns:
        return self._rows_with_data(self.selections.find(matchers, admit), start_ms, end_ms)

    def any_series(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int | None,
        end_ms: int | None,
        admit: Admit | None = None,
    ) -> LabelColumns:
        """Return the label sets of series that match any of the selectors, each once. Duplicates are removed by
        id: that is a hundred times faster than comparing the label sets that 900 selectors may find."""
        every = iter(selectors)
        first, second = next(every, None), next(every, None)
        if first is None:
            return LabelColumns.of(())
        if second is None:
            return self.series(first, start_ms, end_ms, admit)
        found = SeriesSelection(self._index, self._any(chain((first, second), every), admit))
        return self._rows_with_data(found, start_ms, end_ms)

    def _any(self, selectors: Iterable[Sequence[Matcher]], admit: Admit | None) -> Int64s:
        chosen = np.zeros(0, np.bool_)
        for matchers in selectors:
            sids = self._index.select(matchers, admit)
            if len(sids) and sids[-1] >= len(chosen):  # ids are ascending: the last is the largest
                chosen = np.append(chosen, np.zeros(int(sids[-1]) + 1 - len(chosen), np.bool_))
            chosen[sids] = True
        return np.flatnonzero(chosen)

    def label_names(self, matchers: Sequence[Matcher], start_ms: int | None, end_ms: int | None) -> list[str]:
        if not matchers and start_ms is None and end_ms is None:
            return self._index.label_names()
        return self.series(matchers, start_ms, end_ms).used_names()

    def label_values(
        self, name: str, matchers: Sequence[Matcher], start_ms: int | None, end_ms: int | None
    ) -> list[str]:
        if not matchers and start_ms is None and end_ms is None:
            return list(self._index.label_values(name))
        return sorted(self.series(matchers, start_ms, end_ms).values(name) - {""})

    def known_label_values(self, name: str) -> list[str] | None:
        return self._index.known_label_values(name)
