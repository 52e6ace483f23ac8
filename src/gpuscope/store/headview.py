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
    side: tuple[Int64s, Int64s, Float64s]

    def has(self, series: Int64s) -> Int64s:
        """Those of the series (ascending ids) that the head knows."""
        return series[np.isin(series, self.sorted_series)]

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any sample lies in [start, end]."""
        runs = [times for times, _ in self.segments] + [self.side[0]]
        return any(bool(((times >= start) & (times <= end)).any()) for times in runs)

    def read(self, series: Int64s, start: int, end: int) -> dict[int, Samples]:
        """Samples of each series in [start, end], in time order; series with equal times share the array."""
        found: dict[int, Samples] = {}
        known = self.has(series)
        if not len(known):
            return found
        columns = self.columns[np.searchsorted(self.sorted_series, known)]
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
        picked: list[tuple[Int64s, Float64s, slice]] = []
        for times, cells in self.segments:
            rows = np.flatnonzero((times >= start) & (times <= end))
            if len(rows):
                # A run of rows as a slice: no copy of whole rows only to pick a few columns of them.
                breaks = np.flatnonzero(np.diff(rows) > 1) + 1
                for part in np.split(rows, breaks):
                    picked.append((times, cells, slice(int(part[0]), int(part[-1]) + 1)))
        if not picked:
            return _NO_TIMES, np.empty((len(columns), 0))
        moments = np.concatenate([times[run] for times, _, run in picked])
        matrix = np.empty((len(columns), len(moments)))
        at = 0
        for _, cells, run in picked:
            stop = at + run.stop - run.start
            inside = columns < cells.shape[1]
            if inside.all():
                matrix[:, at:stop] = cells[run][:, columns].T
            else:
                matrix[:, at:stop] = ABSENT
                matrix[inside, at:stop] = cells[run][:, columns[inside]].T
            at = stop
        if (np.diff(moments) < 0).any():
            order = np.argsort(moments, kind="stable")
            moments, matrix = moments[order], np.ascontiguousarray(matrix[:, order])
        return moments, matrix

    def latest(self, series: Int64s, start: int, end: int) -> tuple[Int64s, Int64s, Float64s]:
        """The newest sample in [start, end] of each series: ids, times and values; others are left out."""
        known = self.has(series)
        columns = self.columns[np.searchsorted(self.sorted_series, known)]
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
