"""The newest samples of chosen metrics, target by target; only targets with new samples are read again.

For a reader that returns each second, as the live picture does: of 1,000 targets scraped every 15 s,
about 67 have changed. What it returns equals an instant query: the newest sample of each series within the
lookback delta that is not a stale marker. While nothing of a target changes, its list is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuscope.history.store.column_reader import ColumnReader
from gpuscope.history.store.contents import Contents, StoredTargetState
from gpuscope.history.store.head_view import ABSENT_BITS
from gpuscope.history.store.index import Index
from gpuscope.history.store.selections import SeriesSelection
from gpuscope.history.store.tick import Int64s, distinct
from gpuscope.model.series import STALE_NAN_BITS

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
