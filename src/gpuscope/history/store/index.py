"""The series index: maps label sets and matchers to series ids.

Each distinct label pair has a number; a series is the array of its pairs' numbers. Postings (pair → series) are
a sorted array, and an unsorted tail for series added since the array was built. So adding a series is cheap,
and a query over 60,000 series takes a few array operations. Ids are never reused in the life of a process. All
methods are thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuscope.history.store.options import SeriesLimit, count_series
from gpuscope.history.store.series_pairs import (
    Postings,
    RegexCache,
    SeriesKeys,
    SeriesPairs,
    literals,
    predicate,
)
from gpuscope.history.store.tick import Bools, Int64s, distinct
from gpuscope.model.label_columns import LabelColumns, PairNames, PairTable
from gpuscope.model.series import Admit, Labels, Matcher, MatchOp

_MAX_CACHED_LABELS = 200_000
_VALUES_PER_CHECK = 1024
"""Tested against a regular expression between two calls of `admit`: a few milliseconds."""
_MAX_SORTED_NAMES = 64
_MAX_SORTED_VALUES = 20_000
"""Of one label, whose sorted values are kept."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of new series that the writer has not committed yet."""

    pairs: list[tuple[int, str, str]]
    series: list[tuple[int, int, bytes]]
    shared: list[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.pairs or self.series or self.shared)


class Index:
    """Labels ↔ series ids, and the targets that write a series."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._table = PairTable()
        self._pairs_by_name: dict[str, list[int]] = {}
        self._names = PairNames()
        self._next_pair = 1
        self._pairs_of = SeriesPairs()
        self._keys = SeriesKeys(self._pairs_of)
        self._labels: dict[int, Labels] = {}
        self._next_series = 1
        self._target = np.zeros(1024, np.int64)
        """First target of each series id; 0 if there is no such series."""
        self._shared: dict[int, set[int]] = {}
        self._postings = Postings(self._pairs_of)
        self._regexes = RegexCache()
        self._sorted_values: dict[str, tuple[int, list[str]]] = {}
        """With the epoch."""
        self._new = NewRows([], [], [])
        self._text_bytes = 0
        self._ended = 0
        self._counted_until = 0
        """Series with lower ids were there when `count_ended` was last called."""
        self.limit: SeriesLimit | None = None
        self.epoch = 0
        """Incremented when series are removed: ids that a caller cached may be invalid."""
        self.claims = 0
        """Incremented when a target writes series of another one: groups of `by_target` may have changed."""
        self.version = 0
        """Incremented by every change that can affect the result of `select`."""

    def load(
        self,
        pairs: Iterable[tuple[int, str, str]],
        series: Iterable[tuple[int, int, bytes]],
        shared: Iterable[tuple[int, int]],
    ) -> None:
        """Fill an empty index from rows of the file."""
        for number, name, value in pairs:
            self._add_pair(number, name, value)
        rows = list(series)
        sids = np.array([sid for sid, _, _ in rows], np.int64)
        keys = [packed for _, _, packed in rows]
        self._pairs_of.extend(sids, keys)
        self._keys.extend(keys, sids)
        last = int(sids.max(initial=0))
        self._grow(last)
        self._target[sids] = [target for _, target, _ in rows]
        self._next_series = self._counted_until = last + 1
        for sid, target in shared:
            self._shared.setdefault(sid, set()).add(target)
        self._postings = Postings(self._pairs_of)

    def __len__(self) -> int:
        return len(self._pairs_of)

    def resolve(self, target: int, labels: Labels, *, reserved: bool = False, origin: Hashable = None) -> int:
        """Return the id of a label set; assign one if it is new. Returns 0 if a limit refuses a new series,
        which never happens to a `reserved` one. `origin` says whose allowance of new series is used; the
        default is the target. Empty values mean "absent" and are dropped."""
        with self._lock:
            pairs = [pair for pair in sorted(labels) if pair[1]]
            numbers = list(map(self._table.numbers.get, pairs))
            sid = self._find(numbers)
            if sid is None:
                if not reserved and not self._has_room(pairs, numbers, target if origin is None else origin):
                    return 0
                key = self._key(pairs, numbers)
                sid = self._next_series
                self._next_series += 1
                self._keys.add(key, sid)
                self._pairs_of.add(sid, key)
                if sid >= len(self._target):
                    self._grow(sid)
                self._target[sid] = target
                self._postings.add(sid, key)
                self._new.series.append((sid, target, key))
                self.version += 1
            return sid

    def _has_room(self, pairs: list[tuple[str, str]], numbers: list[int | None], origin: Hashable) -> bool:
        if self.limit is None:
            return True
        new_text = 0
        for pair, number in zip(pairs, numbers, strict=True):
            if number is None:
                new_text += len(pair[0]) + len(pair[1])
        return self.limit.allows(self.counted_series, self._text_bytes, new_text, origin)

    @property
    def counted_series(self) -> int:
        """How many series count towards `max_series`."""
        return count_series(len(self._pairs_of) - self._ended, self._ended, len(self._table.pairs))

    def count_ended(self, living: Iterable[Int64s]) -> None:
        """Count the series that are not among these. Those added since the last call may not have their first
        sample yet: they have not ended."""
        with self._lock:
            is_ended = np.zeros(self._next_series, np.bool_)
            ids = self._pairs_of.ids()
            is_ended[ids[: ids.searchsorted(self._counted_until)]] = True
            for some in living:
                is_ended[some[some < self._next_series]] = False
            self._ended = int(np.count_nonzero(is_ended))
            self._counted_until = self._next_series

    def find(self, labels: Labels) -> int | None:
        """Return the id of a label set; None if there is none."""
        with self._lock:
            return self._find([self._table.numbers.get(pair) for pair in sorted(labels) if pair[1]])

    def _find(self, numbers: list[int | None]) -> int | None:
        """Return the series with these pair numbers; None in the list is a pair that does not exist."""
        return None if None in numbers else self._keys.find(np.array(numbers, "<i4").tobytes())

    def _key(self, pairs: list[tuple[str, str]], numbers: list[int | None]) -> bytes:
        """Return the numbers as one key; assign missing ones. The caller holds the lock."""
        for at, number in enumerate(numbers):
            if number is None:
                name, value = pairs[at]
                (name + value).encode()  # a lone surrogate cannot be stored: fail here, not in the writer
                # Looked up again, because the label set may contain the same pair twice.
                made = self._table.numbers.get(pairs[at])
                if made is None:
                    made = self._next_pair
                    self._add_pair(made, name, value)
                    self._new.pairs.append((made, name, value))
                numbers[at] = made
        return np.array(numbers, "<i4").tobytes()

    def _add_pair(self, number: int, name: str, value: str) -> None:
        pair = (name, value)
        self._table.numbers[pair] = number
        self._table.pairs[number] = pair
        self._pairs_by_name.setdefault(name, []).append(number)
        self._names.add(number, name)
        self._text_bytes += len(name) + len(value)
        self._next_pair = max(self._next_pair, number + 1)

    def _grow(self, sid: int) -> None:
        grown = np.zeros(max(sid + 1, len(self._target) * 2), np.int64)
        grown[: len(self._target)] = self._target
        self._target = grown

    def take_new(self) -> NewRows:
        """Take the rows to commit; the caller returns them with `put_back` if the commit fails."""
        with self._lock:
            new, self._new = self._new, NewRows([], [], [])
            return new

    def put_back(self, rows: NewRows) -> None:
        with self._lock:
            newer = self._new
            self._new = NewRows(
                rows.pairs + newer.pairs, rows.series + newer.series, rows.shared + newer.shared
            )

    def unknown(self, sids: Int64s) -> Int64s:
        """Return the ids that are not a series (any more)."""
        inside = (sids > 0) & (sids < len(self._target))
        known = inside & (self._target[np.where(inside, sids, 0)] != 0)
        missing: Int64s = sids[~known]
        return missing

    def claim(self, target: int, sids: Int64s) -> None:
        """Record that a target writes series that another target wrote first."""
        with self._lock:
            for sid in sids[self._target[sids] != target].tolist():
                others = self._shared.setdefault(sid, set())
                if target not in others:
                    others.add(target)
                    self._new.shared.append((sid, target))
                    self.claims += 1
                    self.version += 1

    def only_targets(self, sids: Int64s) -> Int64s | None:
        """Return the target of each series; None if any of them was removed or is written by several."""
        with self._lock:
            homes: Int64s = self._target[sids]
            shared = np.fromiter(self._shared, np.int64, len(self._shared))
        return homes if homes.all() and not (len(shared) and np.isin(sids, shared).any()) else None

    def by_target(self, sids: Int64s) -> dict[int, Int64s]:
        """Group series by the targets that write them, ascending; a shared series is in several groups."""
        if not sids.size:
            return {}
        with self._lock:
            homes = self._target[sids]
            groups: dict[int, Int64s] = {}
            order = np.argsort(homes, kind="stable")
            ordered = sids[order]
            targets, starts = np.unique(homes[order], return_index=True)
            for target, (begin, end) in zip(
                targets.tolist(), pairwise((*starts.tolist(), len(sids))), strict=True
            ):
                groups[target] = ordered[begin:end]
            if self._shared:
                wanted = set(sids.tolist())
                more: dict[int, list[int]] = {}
                for sid, others in self._shared.items():
                    for target in others if sid in wanted else ():
                        more.setdefault(target, []).append(sid)
                for target, shared in more.items():
                    own = groups.get(target, np.empty(0, np.int64))
                    # Readers of a head search in the ids: they ascend.
                    groups[target] = np.sort(np.concatenate((own, shared)))
            groups.pop(0, None)
            return groups

    def series_of(self, target: int) -> Int64s:
        """Return the series that the target wrote first."""
        with self._lock:
            return np.flatnonzero(self._target[: self._next_series] == target)

    def labels(self, sid: int) -> Labels:
        """Return the label pairs of a series, sorted by name; () if it has been removed."""
        labels = self._labels.get(sid)
        if labels is None:
            with self._lock:
                labels = tuple([self._table.pairs[number] for number in self._pairs_of.get(sid).tolist()])
                if len(self._labels) > _MAX_CACHED_LABELS:
                    self._labels.clear()
                self._labels[sid] = labels
        return labels

    def pairs(self, sid: int) -> Labels:
        """As `labels`, for a caller that keeps them itself."""
        with self._lock:
            return tuple([self._table.pairs[number] for number in self._pairs_of.get(sid).tolist()])

    def label_columns(self, sids: Int64s) -> LabelColumns:
        """As `labels`, of many series."""
        with self._lock:
            return LabelColumns.from_numbers(self._table, self._names, *self._pairs_of.numbers_of(sids))

    def select(self, matchers: Sequence[Matcher], admit: Admit | None = None) -> Int64s:
        """Return the ids, ascending, of the series that satisfy all matchers; all series if there are none.
        Calls `admit` now and then, which may raise: a regular expression is tested on every value of its
        label."""
        include: list[list[int]] = []
        exclude: list[int] = []
        for matcher in matchers:
            if predicate(matcher)(""):
                exclude += self._matching(_inverse(matcher), admit)
            else:
                include.append(self._matching(matcher, admit))
        with self._lock:
            include.sort(key=self._postings.estimate)
            series = self._postings.union(include[0]) if include else self._pairs_of.ids()
            for numbers in include[1:]:
                series = series[self._mask(numbers)[series]]
            if exclude:
                series = series[~self._mask(exclude)[series]]
            return series

    def _mask(self, numbers: list[int]) -> Bools:
        mask = np.zeros(self._next_series, np.bool_)
        mask[self._postings.union(numbers)] = True
        return mask

    def _matching(self, matcher: Matcher, admit: Admit | None) -> list[int]:
        """Return the pairs of the matcher's label with a (non-empty) value that it matches. Values are tested
        without the lock: a hostile regular expression must not stop the scrapes."""
        if matcher.op is MatchOp.EQUAL:
            number = self._table.numbers.get((matcher.name, matcher.value))
            return [] if number is None else [number]
        if matcher.op is MatchOp.REGEX:
            words = literals(matcher.value)
            if words is not None:
                known = (self._table.numbers.get((matcher.name, word)) for word in words)
                return [number for number in known if number is not None]
        key = (matcher.name, matcher.op, matcher.value)
        with self._lock:
            epoch, pairs = self.epoch, self._table.pairs
            seen, numbers = self._regexes.get(key)
            fresh = self._pairs_by_name.get(matcher.name, [])[seen:]
        if not fresh:
            return numbers
        test = predicate(matcher)
        numbers = list(numbers)
        for begin in range(0, len(fresh), _VALUES_PER_CHECK):
            if admit is not None:
                admit(0, 0)
            part = fresh[begin : begin + _VALUES_PER_CHECK]
            numbers += [number for number in part if test(pairs[number][1])]
        with self._lock:
            if epoch == self.epoch:
                self._regexes.keep(key, seen + len(fresh), numbers)
        return numbers

    def cached_regexes(self) -> tuple[int, int]:
        """How many, and how many label pairs they hold."""
        return self._regexes.sizes()

    def label_names(self) -> list[str]:
        """Return all label names, sorted."""
        with self._lock:
            return sorted(self._pairs_by_name)

    def label_values(self, name: str) -> list[str]:
        """Return all values of one label, sorted."""
        known = self.known_label_values(name)
        if known is not None:
            return known
        with self._lock:
            numbers = self._pairs_by_name.get(name, ())
            values = sorted([self._table.pairs[number][1] for number in numbers])
            if len(values) <= _MAX_SORTED_VALUES and values:
                if len(self._sorted_values) >= _MAX_SORTED_NAMES:
                    self._sorted_values.clear()
                self._sorted_values[name] = self.epoch, values
        return values

    def known_label_values(self, name: str) -> list[str] | None:
        """As `label_values` if they are sorted already, else None. Never waits. Callers share the list."""
        epoch, values = self._sorted_values.get(name, (-1, []))
        is_current = epoch == self.epoch and len(values) == len(self._pairs_by_name.get(name, ()))
        return values if is_current else None

    def counts(self) -> list[tuple[str, str, int]]:
        """Return (name, value, number of series) for every pair."""
        with self._lock:
            sizes = self._postings.sizes()
            return [(*self._table.pairs[number], count) for number, count in sizes.items()]

    def targets(self) -> set[int]:
        """Return all targets that have series."""
        with self._lock:
            homes = set(distinct(self._target).tolist()) - {0}
            return homes.union(*self._shared.values())

    @contextmanager
    def removing(self, sids: Iterable[int]) -> Iterator[list[int]]:
        """Remove series when the block exits without an exception. Yields the numbers of the label pairs that
        no other series has. The lock is held meanwhile, so that a pair cannot come back into use."""
        with self._lock:
            going = [sid for sid in sids if sid in self._pairs_of]
            rest = Counter(self._postings.sizes())
            rest.subtract(self._pairs_of.numbers_of(np.array(going, np.int64))[0].tolist())
            orphans = sorted(number for number in self._table.pairs if rest[number] <= 0)
            yield orphans
            self._keys.remove(np.array(going, np.int64))
            for sid in going:
                self._labels.pop(sid, None)
                self._shared.pop(sid, None)
                self._target[sid] = 0
            self._pairs_of.remove(np.array(going, np.int64))
            # Some of them may have had samples in a head: the next `count_ended` counts exactly.
            self._ended = max(0, self._ended - len(going))
            self._postings = Postings(self._pairs_of)
            # A copy: queries in progress still need the text of these pairs.
            self._table = PairTable(dict(self._table.numbers), dict(self._table.pairs))
            for number in orphans:
                name, value = self._table.pairs.pop(number)
                del self._table.numbers[name, value]
                self._text_bytes -= len(name) + len(value)
                self._pairs_by_name[name].remove(number)
                if not self._pairs_by_name[name]:
                    del self._pairs_by_name[name]
            self._regexes.clear()
            self._sorted_values.clear()
            self.epoch += 1
            self.version += 1


def _inverse(matcher: Matcher) -> Matcher:
    flipped = {
        MatchOp.EQUAL: MatchOp.NOT_EQUAL,
        MatchOp.NOT_EQUAL: MatchOp.EQUAL,
        MatchOp.REGEX: MatchOp.NOT_REGEX,
        MatchOp.NOT_REGEX: MatchOp.REGEX,
    }
    return Matcher(matcher.name, flipped[matcher.op], matcher.value)
