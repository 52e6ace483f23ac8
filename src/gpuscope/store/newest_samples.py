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

from gpuscope.series import STALE_NAN_BITS
from gpuscope.store.column_reader import ColumnReader
from gpuscope.store.contents import Contents, StoredTargetState
from gpuscope.store.head_view import ABSENT_BITS
from gpuscope.store.index import Index
from gpuscope.store.selections import SeriesSelection
from gpuscope.store.tick import Int64s

NamedSample = tuple[str, Mapping[str, str], float]
"""Metric name, labels without the name, value."""
IsWanted = Callable[[str, Mapping[str, str]], bool]
"""By metric name and labels."""
_NAME: Final = "__name__"
_Version = tuple[object, ...]


@dataclass(slots=True)
class _Series:
    """The wanted series of one target."""

    selection: SeriesSelection
    names: list[str]
    labels: list[Mapping[str, str]]
    known_names: dict[int, str]
    """By series id; empty for a series that is not wanted. Two dictionaries instead of a tuple per series: the
    garbage collector visits every tuple that has a dictionary in it."""
    known_labels: dict[int, Mapping[str, str]]


@dataclass(slots=True)
class _Target:
    version: _Version
    order: object
    series: _Series
    valid_until: int
    """The time until which no sample becomes older than the lookback delta."""
    samples: list[NamedSample]


class NewestSamples:
    """Not thread-safe: one caller at a time."""

    def __init__(
        self, index: Index, contents: Contents, columns: ColumnReader, is_wanted: IsWanted, lookback_ms: int
    ) -> None:
        self._index = index
        self._contents = contents
        self._columns = columns
        self._is_wanted = is_wanted
        self._lookback_ms = lookback_ms
        self._targets: dict[int, _Target] = {}

    def read(self, now_ms: int) -> list[list[NamedSample]]:
        """Return the samples of each target that has some."""
        with self._contents.lock:
            states = self._contents.states()
        known = self._targets
        self._targets = {state.id: self._of(state, known.get(state.id), now_ms) for state in states}
        return [one.samples for one in self._targets.values() if one.samples]

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
            sealed = [self._index.series_of(state.id)] if is_sealed else []
            ids = np.unique(np.concatenate([order[0], *sealed, *(one.head.order[0] for one in late)]))
            series = self._series(ids, None if known is None else known.series)
        else:
            series = known.series
        samples, valid_until = self._read(series, now_ms)
        is_kept = is_plain and not series.selection.is_shared
        # Samples that are not all in the newest row of one target are read again each time.
        return _Target(version, order, series, valid_until if is_kept else -1, samples)

    def _series(self, ids: Int64s, before: _Series | None) -> _Series:
        names: dict[int, str] = {}
        every: dict[int, Mapping[str, str]] = {}
        shared: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}
        if before is not None:
            for labels in before.known_labels.values():
                shared.setdefault(frozenset(labels.items()), labels)
        for sid in ids.tolist():
            if before is not None and sid in before.known_names:
                names[sid] = before.known_names[sid]
                if names[sid]:
                    every[sid] = before.known_labels[sid]
                continue
            names[sid] = self._describe(sid, every, shared)
        selection = SeriesSelection(self._index, np.array(list(every), np.int64))
        rows = [sid for sid in selection.series.tolist() if sid in every]
        return _Series(selection, [names[sid] for sid in rows], [every[sid] for sid in rows], names, every)

    def _describe(
        self,
        sid: int,
        every: dict[int, Mapping[str, str]],
        shared: dict[frozenset[tuple[str, str]], Mapping[str, str]],
    ) -> str:
        """Return the name of a series and add its labels; the name is empty if the series is not wanted. Series
        of one subject have equal labels but for the name: they share one dictionary, which takes a sixth of the
        memory."""
        pairs = self._index.pairs(sid)
        name = dict(pairs).get(_NAME, "")
        labels = {key: value for key, value in pairs if key != _NAME}
        if not name or not self._is_wanted(name, labels):
            return ""
        every[sid] = shared.setdefault(frozenset(labels.items()), labels)
        return name

    def _read(self, series: _Series, now_ms: int) -> tuple[list[NamedSample], int]:
        start = now_ms - self._lookback_ms + 1
        times, values = self._columns.newest(series.selection, start, now_ms)
        bits = values.view(np.int64)
        rows = np.flatnonzero((bits != ABSENT_BITS) & (bits != STALE_NAN_BITS) & (times >= start))
        valid_until = int(times[rows].min(initial=now_ms)) + self._lookback_ms
        names, labels = series.names, series.labels
        chosen = zip(rows.tolist(), values[rows].tolist(), strict=True)
        return [(names[row], labels[row], value) for row, value in chosen], valid_until
