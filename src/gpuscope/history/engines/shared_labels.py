"""Label sets as dictionaries that stay the same objects from one answer to the next.

Input: the label sets of a `Vector`. Output: one dictionary per series, which callers must not change. A label
set is not decoded again while its series is in one of the last answers, and later steps can recognise a series
by the identity of its dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, overload

import numpy as np

from gpuscope.model.label_columns import LabelColumns, PairTable
from gpuscope.model.series import Labels

LabelDict = dict[str, str]

ANSWERS_PER_GENERATION: Final = 64
"""A live picture takes two to four answers: a series stays known for twenty seconds after its last sample."""
LABEL_SET_BYTES: Final = 400
"""Of a dictionary of labels and its key without their text."""
_MAX_LAYOUTS: Final = 8
"""Queries of the live picture select different label names; each selection has its own keys."""


class RecentLabels:
    """Label sets by their encoded form. Those that no recent answer had are forgotten, and sooner if all take
    more than `enough_bytes`."""

    def __init__(self, decode: Callable[[bytes], LabelDict], enough_bytes: int | None = None) -> None:
        self._decode = decode
        self._enough_bytes = enough_bytes
        self._young: dict[bytes, LabelDict] = {}
        self._old: dict[bytes, LabelDict] = {}
        self._young_bytes = 0
        self._old_bytes = 0
        self._answers = 0
        self.decoded = 0
        """Label sets decoded so far."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def memory_bytes(self) -> int:
        return self._young_bytes + self._old_bytes

    def begin_answer(self) -> None:
        self._answers += 1
        if self._has_enough(self._young_bytes) or self._answers % ANSWERS_PER_GENERATION == 0:
            self._old, self._young = self._young, {}
            self._old_bytes, self._young_bytes = self._young_bytes, 0

    def find(self, keys: Sequence[bytes]) -> list[LabelDict]:
        """The label sets of an answer, or of a part of it."""
        known, look = self._young.get, self._look
        found = [known(key) or look(key) for key in keys]
        if self._has_enough(self.memory_bytes):
            self._old, self._old_bytes = {}, 0
        return found

    def clear(self) -> None:
        self._young, self._old = {}, {}
        self._young_bytes = self._old_bytes = 0

    def _look(self, key: bytes) -> LabelDict:
        size = LABEL_SET_BYTES + 2 * len(key)
        labels = self._old.pop(key, None)
        if labels is None:
            labels = self._decode(key)
            self.decoded += 1
        else:
            self._old_bytes -= size
        if key not in self._young:  # an empty set is looked up each time
            self._young[key] = labels
            self._young_bytes += size
        return labels

    def _has_enough(self, count: int) -> bool:
        return self._enough_bytes is not None and count > self._enough_bytes


class SharedLabels(Sequence[Labels]):
    """The label sets of an answer that was read with `RecentLabels`."""

    def __init__(self, dicts: list[LabelDict]) -> None:
        self.dicts = dicts

    def __len__(self) -> int:
        return len(self.dicts)

    @overload
    def __getitem__(self, row: int) -> Labels: ...
    @overload
    def __getitem__(self, row: slice) -> SharedLabels: ...
    def __getitem__(self, row: int | slice) -> Labels | SharedLabels:
        if isinstance(row, slice):
            return SharedLabels(self.dicts[row])
        return tuple(sorted(self.dicts[row].items()))

    def __iter__(self) -> Iterator[Labels]:
        return (tuple(sorted(one.items())) for one in self.dicts)


class LabelDicts:
    """Gives the dictionaries of a vector's label sets; those of the embedded store by their pairs' numbers."""

    def __init__(self) -> None:
        self._table: PairTable | None = None
        self._by_names: dict[tuple[str, ...], RecentLabels] = {}

    @property
    def decoded(self) -> int:
        """Label sets of the embedded store that were decoded since its pairs were last numbered."""
        return sum(one.decoded for one in self._by_names.values())

    def of(self, labels: Sequence[Labels]) -> Sequence[Mapping[str, str]]:
        if isinstance(labels, SharedLabels):
            return labels.dicts
        if isinstance(labels, LabelColumns) and labels.table.base is None and labels.names:
            return self._of_columns(labels)
        return list(map(dict, labels))

    def _of_columns(self, labels: LabelColumns) -> list[LabelDict]:
        table = labels.table
        if table is not self._table or len(self._by_names) > _MAX_LAYOUTS:
            self._table, self._by_names = table, {}  # a new table may give a number to another pair
        recent = self._by_names.get(labels.names)
        if recent is None:
            recent = self._by_names[labels.names] = RecentLabels(lambda key: _to_dict(table, key))
        recent.begin_answer()
        codes = np.ascontiguousarray(labels.codes.T, dtype=np.int32)
        return recent.find(codes.view(f"V{codes.itemsize * codes.shape[1]}").ravel().tolist())


def _to_dict(table: PairTable, key: bytes) -> LabelDict:
    return dict([table.pair(number) for number in np.frombuffer(key, np.int32).tolist() if number])
