"""Label sets of many series as integers: one column per label name, one number per label pair.

Operations on thousands of label sets (group, match, sort, drop a label) are array operations on the columns;
text is read only for the pairs that occur. A `LabelColumns` is also a sequence of `Labels`. Number 0 means that
the label is absent. Numbers of different `PairTable`s are not comparable: `unified` translates them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gpuscope.base.portioned_sort import sort_in_portions
from gpuscope.model.series import Labels

Codes = NDArray[np.int32]
Index = NDArray[np.intp]
Ints = NDArray[np.int64]
Pair = tuple[str, str]
EncodePairs = Callable[[Sequence[Pair]], Sequence[bytes]]

_MAX_DERIVED = 8
"""Kept with the label sets they were derived from: a dashboard groups one selection in a few ways."""
_MAX_ENCODED = 200_000
"""Encoded pairs that a table keeps: about 100 bytes each."""
_MAX_KEY = 1 << 62
_MAX_SPREAD = 16
"""Numbers per label set among which distinct ones are found by marking them."""
_MANY_CODES = 100_000
"""Sorted as an array, without a Python object for each."""

Check = Callable[[], None]


def _never_stop() -> None:
    """For callers without a time limit."""


@dataclass(slots=True)
class PairTable:
    """Numbers label pairs. A number keeps its meaning; new pairs get negative numbers, which no store uses."""

    numbers: dict[Pair, int] = field(default_factory=dict)
    pairs: dict[int, Pair] = field(default_factory=dict)
    base: PairTable | None = None
    """Its numbers are valid here, too, unless this table has the pair itself."""
    lowest: int = 0
    """The lowest number here and in the base."""
    encoded: dict[int, bytes] = field(default_factory=dict)

    @staticmethod
    def over(base: PairTable) -> PairTable:
        return PairTable(base=base, lowest=base.lowest)

    def number(self, pair: Pair) -> int:
        """Return the pair's number; assign one if it is new."""
        # The own pairs first: the base may have got the pair after this table did.
        found = self.numbers.get(pair)
        if found is None and self.base is not None:
            found = self.base.find(pair)
        if found is None:
            self.lowest -= 1
            found = self.numbers[pair] = self.lowest
            self.pairs[found] = pair
        return found

    def find(self, pair: Pair) -> int | None:
        found = self.numbers.get(pair)
        return self.base.find(pair) if found is None and self.base is not None else found

    def encoded_pairs(self, numbers: Sequence[int], encode: EncodePairs) -> dict[int, bytes]:
        """Return at least these pairs' encoded text, b"" for 0. A store's pairs are encoded once."""
        root = self
        while root.base is not None:
            root = root.base
        if len(root.encoded) > _MAX_ENCODED:
            root.encoded = {}
        known = root.encoded
        if root is not self:
            known = {number: known[number] for number in numbers if number in known}
        known[0] = b""
        new = [number for number in numbers if number not in known]
        own = self.pairs
        pairs = [own.get(number) or self.pair(number) for number in new]
        known.update(zip(new, encode(pairs), strict=True))
        return known

    def values(self, numbers: Iterable[int]) -> list[str]:
        """Return the values of pairs, "" for 0."""
        own = self.pairs
        return [(own.get(number) or self.pair(number))[1] for number in numbers]

    def pair(self, number: int) -> Pair:
        found = self.pairs.get(number)
        if found is None and self.base is not None:
            return self.base.pair(number)
        return ("", "") if found is None else found


class PairNames:
    """The label name of each pair of a store, as a number. Only grows."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.codes = np.zeros(1024, np.int32)
        """Index in `names`, by number of the pair."""

    def add(self, pair: int, name: str) -> None:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        if pair >= len(self.codes):
            grown = np.zeros(max(pair + 1, 2 * len(self.codes)), np.int32)
            grown[: len(self.codes)] = self.codes
            self.codes = grown
        self.codes[pair] = number


def _distinct(line: Codes) -> tuple[Codes, Index]:
    """As `np.unique` with the inverse; not sorted if the numbers are close together, as they usually are."""
    low = int(line.min())
    shifted = line - low
    size = int(shifted.max()) + 1
    if size > _MAX_SPREAD * len(line):
        return np.unique(line, return_inverse=True)
    is_used = np.zeros(size, np.bool_)
    is_used[shifted] = True
    used = np.flatnonzero(is_used)
    return (used + low).astype(np.int32), (np.cumsum(is_used) - 1)[shifted]


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows with equal label sets. Groups are numbered by first appearance."""

    member: Index
    """Group of each row."""
    first: Index
    """First row of each group."""


class LabelColumns(Sequence[Labels]):
    """See the module docstring. Never changes, so that queries can share one."""

    def __init__(
        self, table: PairTable, names: tuple[str, ...], codes: Codes, *, known_distinct: bool = False
    ) -> None:
        self.table = table
        self.names = names
        """Ascending."""
        self.codes = codes
        """One line per name, one column per label set."""
        self._known_distinct = known_distinct
        self._derived: dict[tuple[bool, frozenset[str]], LabelColumns] = {}
        self._source: tuple[LabelColumns, Index] | None = None
        self._encoded: list[bytes] | None = None
        self._rank: Index | None = None

    @staticmethod
    def of(every: Sequence[Labels]) -> LabelColumns:
        """Return the columns of label sets; the pairs of each are sorted by name."""
        if isinstance(every, LabelColumns):
            return every
        table = PairTable()
        names = tuple(sorted({pair[0] for labels in every for pair in labels}))
        line = {name: number for number, name in enumerate(names)}
        codes = np.zeros((len(names), len(every)), np.int32)
        for row, labels in enumerate(every):
            for pair in labels:
                codes[line[pair[0]], row] = table.number(pair)
        return LabelColumns(table, names, codes)

    @staticmethod
    def from_numbers(table: PairTable, pair_names: PairNames, flat: Codes, counts: Ints) -> LabelColumns:
        """Return the columns of distinct label sets: the numbers of their pairs one set after the other, and
        how many each set has."""
        of_name = pair_names.codes.take(flat)
        used = np.flatnonzero(np.bincount(of_name)).tolist()
        used.sort(key=pair_names.names.__getitem__)
        line = np.zeros(len(pair_names.names), np.intp)
        line[used] = np.arange(len(used))
        codes = np.zeros((len(used), len(counts)), np.int32)
        codes[line[of_name], np.repeat(np.arange(len(counts)), counts)] = flat
        names = tuple([pair_names.names[code] for code in used])
        # A series that was removed meanwhile has no pairs.
        return LabelColumns(table, names, codes, known_distinct=bool(counts.all()))

    def __len__(self) -> int:
        return int(self.codes.shape[1])

    @overload
    def __getitem__(self, row: int) -> Labels: ...
    @overload
    def __getitem__(self, row: slice) -> LabelColumns: ...
    def __getitem__(self, row: int | slice) -> Labels | LabelColumns:
        if isinstance(row, slice):
            return self._part(self.codes[:, row], np.arange(len(self))[row])
        pair = self.table.pair
        return tuple([pair(number) for number in self.codes[:, row].tolist() if number])

    def __iter__(self) -> Iterator[Labels]:
        if not self.names:
            return iter([()] * len(self))
        text = {number: self.table.pair(number) for number in self._used(self.codes)}
        lines = [[text[number] for number in line] for line in self.codes.tolist()]
        if 0 not in text:
            return zip(*lines, strict=True)
        absent = text[0]
        return (tuple([pair for pair in row if pair is not absent]) for row in zip(*lines, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LabelColumns({list(self)!r})"

    @staticmethod
    def _used(codes: Codes) -> list[int]:
        if codes.size > _MANY_CODES:
            return np.unique(codes).tolist()  # type: ignore[no-any-return]
        return sorted({*codes.ravel().tolist()})

    def column(self, name: str) -> Codes:
        """Return the numbers of one label."""
        if name in self.names:
            line: Codes = self.codes[self.names.index(name)]
            return line
        return np.zeros(len(self), np.int32)

    def values(self, name: str) -> set[str]:
        """Return the distinct values of one label, "" where it is absent."""
        return set(self.table.values(np.unique(self.column(name)).tolist()))

    def used_names(self) -> list[str]:
        """Return the names of labels that any label set has."""
        return [name for name, line in zip(self.names, self.codes, strict=True) if line.any()]

    def take(self, rows: Index) -> LabelColumns:
        """Return the label sets of these rows, each of which occurs at most once."""
        return self._part(self.codes.take(rows, axis=1), rows)

    def _part(self, codes: Codes, rows: Index) -> LabelColumns:
        part = LabelColumns(self.table, self.names, codes, known_distinct=self._known_distinct)
        part._source = self, rows
        return part

    def repeat(self, rows: Index) -> LabelColumns:
        """As `take`; a row may occur several times."""
        return LabelColumns(self.table, self.names, self.codes.take(rows, axis=1))

    def keep(self, names: Collection[str]) -> LabelColumns:
        return self._derive(True, frozenset(names))

    def drop(self, names: Collection[str]) -> LabelColumns:
        return self._derive(False, frozenset(names))

    def _derive(self, keep: bool, names: frozenset[str]) -> LabelColumns:
        chosen = [number for number, name in enumerate(self.names) if (name in names) is keep]
        if len(chosen) == len(self.names):
            return self
        key = keep, names
        found = self._derived.get(key)
        if found is None:
            kept = tuple([self.names[number] for number in chosen])
            dropped = [line for number, line in enumerate(self.codes) if number not in chosen]
            # A label that all label sets share does not distinguish them.
            same = self._known_distinct and all(len(line) == 0 or (line == line[0]).all() for line in dropped)
            found = LabelColumns(self.table, kept, self.codes[chosen], known_distinct=same)
            while len(self._derived) >= _MAX_DERIVED:
                self._derived.pop(next(iter(self._derived)), None)
            self._derived[key] = found
        return found

    def with_table(self, table: PairTable) -> LabelColumns:
        """Return the same columns; `table` is this one's or is based on it."""
        return LabelColumns(table, self.names, self.codes, known_distinct=self._known_distinct)

    def with_column(self, name: str, numbers: Codes) -> LabelColumns:
        """Set one label to pairs of this table; 0 removes it."""
        at = sum(own < name for own in self.names)
        after = at + (name in self.names)
        codes = np.concatenate((self.codes[:at], numbers[None, :], self.codes[after:]))
        names = (*self.names[:at], name, *self.names[after:])
        return LabelColumns(self.table, names, codes, known_distinct=self._known_distinct and after == at)

    @cached_property
    def groups(self) -> RowGroups:
        count = len(self)
        key = np.zeros(count, np.int64)
        size = 1
        for line in self.codes:
            low, high = (int(line.min()), int(line.max())) if count else (0, 0)
            span = high - low + 1
            if span == 1:
                continue
            if size * span > _MAX_KEY:
                distinct, key = np.unique(key, return_inverse=True)
                size = len(distinct)
            key = key * span + (line - low)
            size *= span
        if size == 1:
            return RowGroups(np.zeros(count, np.intp), np.zeros(min(count, 1), np.intp))
        _, first, member = np.unique(key, return_index=True, return_inverse=True)
        by_first = np.argsort(first)
        number = np.empty(len(first), np.intp)
        number[by_first] = np.arange(len(first))
        return RowGroups(number[member], first[by_first])

    @cached_property
    def of_groups(self) -> LabelColumns:
        """The label set of each group: one object for all queries, so that its order and JSON are made once."""
        # Without a reference to these label sets: in a cycle both would stay until a garbage collection.
        codes = self.codes.take(self.groups.first, axis=1)
        return LabelColumns(self.table, self.names, codes, known_distinct=True)

    @property
    def distinct(self) -> bool:
        """Whether no two rows are equal."""
        return self._known_distinct or len(self) < 2 or len(self.groups.first) == len(self)

    def rank(self, check: Check = _never_stop) -> Index:
        """Return the position of each row in the order of the label sets as tuples. `check` is called now and
        then, and may raise: a million values take seconds to sort."""
        if self._rank is None:
            if self._source is not None and len(self) > 1 and self._source[0]._rank is not None:
                source, rows = self._source
                order = np.argsort(source.rank()[rows], kind="stable")
            elif self.names and len(self) > 1:
                order = self._sort(check)
            else:
                order = np.arange(len(self))
            rank = np.empty(len(order), np.intp)
            rank[order] = np.arange(len(order))
            self._rank = rank
        return self._rank

    def _sort(self, check: Check) -> Index:
        """Return the rows in order. Labels are compared from the first one on until they tell all rows apart:
        usually GPU and instance do, and the texts of thousands of UUIDs are not needed."""
        count = len(self)
        key, size = np.zeros(count, np.int64), 1
        present = self.codes != 0
        # By label, whether the label set has a later one; the last line is that of no label.
        more = np.logical_or.accumulate(np.vstack((np.zeros((1, count), np.bool_), present[::-1])))[::-1]
        for number, line in enumerate(self.codes):
            if (line == line[0]).all():
                continue
            if size >= count:
                order = np.argsort(key, kind="stable")
                ordered = key[order]
                if (ordered[1:] != ordered[:-1]).all():
                    return order
            used, where = _distinct(line)
            texts = self.table.values(used.tolist())
            place = np.empty(len(used), np.intp)
            place[sort_in_portions(range(len(used)), texts.__getitem__, check)] = np.arange(1, len(used) + 1)
            part = place[where]
            # A label set that ends here comes first; one that goes on has a name that comes later.
            absent = ~present[number]
            part[absent] = np.where(more[number + 1][absent], len(used) + 1, 0)
            span = len(used) + 2
            if size * span > _MAX_KEY:
                distinct, key = np.unique(key, return_inverse=True)
                size = len(distinct)
            key = key * span + part
            size *= span
        return np.argsort(key, kind="stable")

    def order(self, check: Check = _never_stop) -> Index:
        """Return the rows in the order of their label sets as tuples; `check` is as in `rank`."""
        order = np.empty(len(self), np.intp)
        order[self.rank(check)] = np.arange(len(self))
        return order

    def encoded(self, encode: EncodePairs) -> list[bytes]:
        """Return each label set as `{`, its encoded pairs with commas between them, and `}`. The first result
        is kept, and later calls must pass the same function."""
        if self._encoded is None:
            source = self._source
            if source is not None and (source[0]._encoded is not None or len(self) * 2 > len(source[0])):
                every = source[0].encoded(encode)
                self._encoded = [every[row] for row in source[1].tolist()]
            else:
                self._encoded = self._encode(encode)
        return self._encoded

    def _encode(self, encode: EncodePairs) -> list[bytes]:
        if not self.names or not len(self):
            return [b"{}"] * len(self)
        try:  # mostly other queries have had these pairs: finding the distinct ones would take longer
            return self._join_pairs(self.table.encoded)
        except KeyError:
            return self._join_pairs(self.table.encoded_pairs(self._used(self.codes), encode))

    def _join_pairs(self, text: Mapping[int, bytes]) -> list[bytes]:
        """Return the encoded label sets. Raises KeyError if a pair is not among the texts."""
        if not self.codes.all():
            lines = [[text[number] for number in line] for line in self.codes.tolist()]
            return [b"{%b}" % b",".join(filter(None, row)) for row in zip(*lines, strict=True)]
        # A pair that all label sets have is part of the template.
        varies = (self.codes != self.codes[:, :1]).any(axis=1).tolist()
        parts = [
            b"%b" if several else text[number].replace(b"%", b"%%")
            for several, number in zip(varies, self.codes[:, 0].tolist(), strict=True)
        ]
        template = b"{%b}" % b",".join(parts)
        if not any(varies):
            return [template % ()] * len(self)
        varying = [map(text.__getitem__, line) for line in self.codes[varies].tolist()]
        return [template % row for row in zip(*varying, strict=True)]

    def translated(self, table: PairTable) -> LabelColumns:
        """Return the same label sets with the numbers of another table."""
        used = self._used(self.codes)
        number_of = np.array(
            [table.number(self.table.pair(number)) if number else 0 for number in used], np.int32
        )
        codes = number_of[np.searchsorted(np.array(used, np.int32), self.codes)] if used else self.codes
        return LabelColumns(table, self.names, codes, known_distinct=self._known_distinct)


def unified(left: LabelColumns, right: LabelColumns) -> tuple[LabelColumns, LabelColumns]:
    """Return both with the numbers of one table."""
    if left.table is right.table or not right.codes.size:
        return left, LabelColumns(left.table, right.names, right.codes) if not right.codes.size else right
    if not left.codes.size:
        return LabelColumns(right.table, left.names, left.codes), right
    table = PairTable.over(left.table)
    return left.with_table(table), right.translated(table)


def concatenate(parts: Iterable[LabelColumns]) -> LabelColumns:
    """Return the rows of all parts, one after the other."""
    whole: LabelColumns | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        one, two = unified(whole, part)
        names = tuple(sorted({*one.names, *two.names}))
        lines = [np.concatenate((one.column(name), two.column(name))) for name in names]
        codes = np.array(lines, np.int32) if lines else np.zeros((0, len(one) + len(two)), np.int32)
        whole = LabelColumns(one.table, names, codes)
    return LabelColumns.of([]) if whole is None else whole
