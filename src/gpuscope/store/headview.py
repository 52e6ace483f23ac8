"""What a reader sees of a head: arrays that do not change under it (see `head`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuscope.store.tick import Float64s, Int64s

ABSENT_BITS = 0x7FF4_6162_7365_6E74
"""The NaN that marks a cell without a sample. Senders cannot store it: it is taken as an ordinary NaN."""
ABSENT = np.int64(ABSENT_BITS).view(np.float64)

Samples = tuple[Int64s, Float64s]
_NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class HeadView:
    """A head at one moment."""

    sorted_series: Int64s
    columns: Int64s
    segments: tuple[Samples, ...]
    ascending: bool
    """Whether the rows, segment after segment, are in time order: they are unless some came late."""
    side: tuple[Int64s, Int64s, Float64s]

    def has(self, series: Int64s) -> Int64s:
        """Those of the series that the head knows."""
        return self._known(series)[0]

    def _known(self, series: Int64s) -> tuple[Int64s, Int64s]:
        """Those of the series that the head knows, and their columns."""
        if not len(self.sorted_series):
            return series[:0], series[:0]
        at = np.minimum(self.sorted_series.searchsorted(series), len(self.sorted_series) - 1)
        hit = self.sorted_series[at] == series
        return (series, self.columns[at]) if hit.all() else (series[hit], self.columns[at[hit]])

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any sample lies in [start, end]."""
        runs = [times for times, _ in self.segments] + [self.side[0]]
        return any(bool(((times >= start) & (times <= end)).any()) for times in runs)

    def read(self, series: Int64s, start: int, end: int) -> dict[int, Samples]:
        """Samples of each series in [start, end], in time order; series with equal times share the array."""
        found: dict[int, Samples] = {}
        known, columns = self._known(series)
        if not len(known):
            return found
        times, cells = self.dense(columns, start, end)
        if len(times):
            present = cells.view(np.int64) != ABSENT_BITS
            full = present.all(axis=1).tolist()
            shared: dict[bytes, Int64s] = {}
            for i, sid in enumerate(known.tolist()):
                if full[i]:
                    found[sid] = times, cells[i]
                    continue
                mask = present[i]
                key = mask.tobytes()
                if key not in shared:
                    shared[key] = times[mask]
                if len(shared[key]):
                    found[sid] = shared[key], cells[i][mask]
        if len(self.side[0]):
            self._add_side(known, times, start, end, found)
        return found

    def dense(self, columns: Int64s, start: int, end: int) -> tuple[Int64s, Float64s]:
        """Times of the rows in [start, end], ascending, and a matrix of one line for each column."""
        picked = [
            (times[run], cells[run]) for times, cells in self.segments for run in self._runs(times, start, end)
        ]
        if not picked:
            return _NO_TIMES, np.empty((len(columns), 0))
        moments = np.concatenate([times for times, _ in picked])
        matrix = np.empty((len(columns), len(moments)))
        width = int(columns.max()) + 1 if len(columns) else 0
        at = 0
        for times, cells in picked:
            part = matrix[:, at : at + len(times)]
            if width <= cells.shape[1]:
                part[:] = cells[:, columns].T
            else:
                inside = columns < cells.shape[1]
                part[:] = ABSENT
                part[inside] = cells[:, columns[inside]].T
            at += len(times)
        if not self.ascending:
            order = np.argsort(moments, kind="stable")
            moments, matrix = moments[order], np.ascontiguousarray(matrix[:, order])
        return moments, matrix

    def _runs(self, times: Int64s, start: int, end: int) -> list[slice]:
        """Where a segment's rows in [start, end] lie: slices, so that no whole row is copied only to pick a
        few columns of it."""
        if self.ascending:
            low, high = times.searchsorted((start, end + 1)).tolist()
            return [slice(low, high)] if low < high else []
        rows = np.flatnonzero((times >= start) & (times <= end))
        if not len(rows):
            return []
        breaks = np.flatnonzero(np.diff(rows) > 1) + 1
        return [slice(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, breaks)]

    def latest(self, series: Int64s, start: int, end: int) -> tuple[Int64s, Int64s, Float64s]:
        """The newest sample in [start, end] of each series: ids, times and values; others are left out."""
        known, columns = self._known(series)
        times = np.full(len(known), -1, np.int64)
        values = np.empty(len(known))
        missing = np.arange(len(known))
        for moment, cells in self._rows_newest_first(start, end):
            wanted = columns[missing]
            inside = wanted < len(cells)
            picked = cells[np.where(inside, wanted, 0)]
            hit = inside & (picked.view(np.int64) != ABSENT_BITS)
            at = missing[hit]
            times[at], values[at] = moment, picked[hit]
            missing = missing[~hit]
            if not len(missing):
                break
        if len(self.side[0]):
            self._latest_side(known, start, end, times, values)
        found = times >= 0
        return known[found], times[found], values[found]

    def _rows_newest_first(self, start: int, end: int) -> Iterator[tuple[int, Float64s]]:
        if self.ascending:
            for times, cells in reversed(self.segments):
                for run in self._runs(times, start, end):
                    for row in range(run.stop - 1, run.start - 1, -1):
                        yield int(times[row]), cells[row]
            return
        rows = []
        for times, cells in self.segments:
            inside = np.flatnonzero((times >= start) & (times <= end)).tolist()
            rows += [(int(times[row]), cells, row) for row in inside]
        rows.sort(key=lambda row: row[0], reverse=True)
        for moment, cells, row in rows:
            yield moment, cells[row]

    def _latest_side(self, known: Int64s, start: int, end: int, times: Int64s, values: Float64s) -> None:
        side_times, series, side_values = self.side
        inside = np.flatnonzero((side_times >= start) & (side_times <= end) & np.isin(series, known))
        order = inside[np.argsort(side_times[inside], kind="stable")]
        at = np.searchsorted(known, series[order])
        newer = side_times[order] >= times[at]
        # Ascending by time, so that of several samples of one series the last assignment is the newest.
        times[at[newer]] = side_times[order][newer]
        values[at[newer]] = side_values[order][newer]

    def _add_side(self, known: Int64s, rows: Int64s, start: int, end: int, found: dict[int, Samples]) -> None:
        times, series, values = self.side
        inside = np.flatnonzero((times >= start) & (times <= end) & np.isin(series, known))
        if not len(inside):
            return
        order = inside[np.lexsort((times[inside], series[inside]))]
        sids, starts = np.unique(series[order], return_index=True)
        shared = {rows.tobytes(): rows}
        for sid, at in zip(sids.tolist(), np.split(order, starts[1:]), strict=True):
            own_times, own_values = times[at], values[at]
            if sid in found:
                own_times, own_values = merge_samples([found[sid], (own_times, own_values)])
            own_times = shared.setdefault(own_times.tobytes(), own_times)
            found[sid] = own_times, own_values


def merge_samples(parts: list[Samples]) -> Samples:
    """Several runs as one in time order; of two samples at one millisecond the earlier part's stays."""
    times = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    first = np.ones(len(times), np.bool_)
    np.not_equal(times[1:], times[:-1], out=first[1:])
    return (times, values) if first.all() else (times[first], values[first])
