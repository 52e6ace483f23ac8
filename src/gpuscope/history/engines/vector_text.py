"""Reads the JSON of an instant vector by its text, so that label sets seen before are not decoded again.

Input: the answer of `/api/v1/query` in batches. Output: a `Vector` with `SharedLabels`. A batch whose text has
another form than Prometheus and VictoriaMetrics write is read as JSON. A live picture repeats the same series
every few seconds, and decoding their labels is most of the work of reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import orjson

from gpuscope.history.engines.answer_memory import AnswerMemory, MemoryShare
from gpuscope.history.engines.answer_text import ELEMENT_START
from gpuscope.history.engines.json_results import VectorRows, read_vector
from gpuscope.history.engines.query_engine import check_size
from gpuscope.history.promql.result import Vector
from gpuscope.model.label_columns import LabelColumns, PairTable
from gpuscope.model.series import Labels

# Label sets as dictionaries that stay the same objects from one answer to the next.
#
# Input: the label sets of a `Vector`. Output: one dictionary per series, which callers must not change. A
# label set is not decoded again while its series is in one of the last answers, and later steps can recognise
# a series by the identity of its dictionary.

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
        return (tuple(sorted(labels.items())) for labels in self.dicts)


class LabelDicts:
    """Gives the dictionaries of a vector's label sets; those of the embedded store by their pairs' numbers."""

    def __init__(self) -> None:
        self._table: PairTable | None = None
        self._by_names: dict[tuple[str, ...], RecentLabels] = {}

    @property
    def decoded(self) -> int:
        """Label sets of the embedded store that were decoded since its pairs were last numbered."""
        return sum(names.decoded for names in self._by_names.values())

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


# In valid JSON these cannot be inside a string: a quote there has a backslash before it.
_BETWEEN: Final = b'"]},' + ELEMENT_START
_BEFORE_TIME: Final = b',"value":['
_END: Final = b'"]}'
ROW_BYTES: Final = 125
"""A sample of the live picture, without its labels."""


class VectorText:
    """Keeps the label sets of one caller's answers. `share` counts them, and the rows of the current answer."""

    def __init__(self, memory: AnswerMemory | None = None) -> None:
        memory = memory or AnswerMemory()
        self.share = memory.share()
        self.labels = RecentLabels(self._decode, memory.max_bytes // 2)
        self._values: dict[str, str] = {}

    def begin(self, max_series: int | None = None) -> TextRows:
        """For the batches of one answer."""
        self.labels.begin_answer()
        return TextRows(self.labels, max_series, self.share)

    def end(self, *, is_read: bool) -> None:
        """After an answer that could not be read nothing is known, so that a smaller one can be read."""
        if not is_read:
            self.labels.clear()
            self._values = {}
        self.share.resize(self.labels.memory_bytes)

    def _decode(self, text: bytes) -> LabelDict:
        decoded = orjson.loads(text)
        if not isinstance(decoded, dict) or not all(isinstance(value, str) for value in decoded.values()):
            raise ValueError("not a label set")
        if len(self._values) > 2 * len(self.labels) + 1024:  # processes come and go
            self._values = {}
        share = self._values.setdefault  # a UUID is in twenty series
        return {name: share(value, value) for name, value in decoded.items()}


class TextRows:
    def __init__(self, labels: RecentLabels, max_series: int | None, share: MemoryShare) -> None:
        self._recent = labels
        self._share = share
        self._max_series = max_series
        self._dicts: list[LabelDict] = []
        self._values: list[float] = []
        self._time_ms: int | None = None
        self.batches_read_as_json = 0

    def add(self, batch: bytes) -> int:
        """The memory that the share does not have yet: of the rows, and of label sets that are kept."""
        try:
            dicts, values, time_ms = self._split(batch)
        except (ValueError, OverflowError):
            dicts, values, time_ms = self._read_json(batch)
        check_size(len(self._dicts) + len(dicts), self._max_series, "series")
        if self._time_ms is None:
            self._time_ms = time_ms
        self._dicts += dicts
        self._values += values
        return self._recent.memory_bytes + ROW_BYTES * len(self._dicts) - self._share.held_bytes

    def to_vector(self, frame: Mapping[str, Any]) -> Vector:
        if self._time_ms is None:  # a scalar, an empty vector, or another form of JSON
            return read_vector(frame, self._max_series)
        empty, values = read_vector(frame), np.array(self._values, dtype=np.float64)
        return Vector(self._time_ms, SharedLabels(self._dicts), values, empty.warnings, empty.infos)

    def _split(self, batch: bytes) -> tuple[list[LabelDict], list[float], int]:
        if not batch.startswith(ELEMENT_START) or not batch.endswith(_END):
            raise ValueError("another form")
        pieces = batch[len(ELEMENT_START) : -len(_END)].split(_BETWEEN)
        time_text = pieces[0].rpartition(_BEFORE_TIME)[2].partition(b",")[0]
        # All samples of an instant vector have the same time, so the text before each value is the same.
        before_value = _BEFORE_TIME + time_text + b',"'
        rows = [piece.rpartition(before_value) for piece in pieces]
        values = [float(row[2]) for row in rows]
        return self._recent.find([row[0] for row in rows]), values, round(float(time_text) * 1000)

    def _read_json(self, batch: bytes) -> tuple[list[LabelDict], list[float], int]:
        self.batches_read_as_json += 1
        rows = VectorRows()
        rows.add(batch)
        vector = rows.to_vector({"data": {"resultType": "vector", "result": []}})
        # By another text, so that these are bounded and kept as the others are.
        dicts = self._recent.find([orjson.dumps(dict(labels)) for labels in vector.labels])
        return dicts, vector.values.tolist(), vector.time_ms
