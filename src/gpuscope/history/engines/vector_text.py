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

from gpuscope.history.engines.answer_text import ELEMENT_START, AnswerMemory, MemoryShare
from gpuscope.history.engines.query_engine import EngineBadQuery, check_matrix_size, check_size
from gpuscope.history.promql.frame import Floats, Ints, Steps
from gpuscope.history.promql.result import Matrix, Vector
from gpuscope.model.label_columns import LabelColumns, PairTable
from gpuscope.model.series import Labels

# Prometheus' JSON results as arrays. Anything else that an engine sends is a ValueError.
#
# `VectorRows` and `MatrixRows` take a result in batches of its text and return the memory that each batch
# takes; `read_vector` and `read_matrix` take a whole result.

_MALFORMED = (KeyError, IndexError, TypeError, AttributeError, OverflowError)
SERIES_BYTES: Final = 250
"""Of a series without its labels: tuple, dictionary, value, places in lists."""
LABEL_BYTES: Final = 170
"""Of a label without its text: a tuple and two strings."""
POINT_BYTES: Final = 9
"""Of a matrix: a float and whether it is there."""


def read_vector(answer: Mapping[str, Any], max_series: int | None = None) -> Vector:
    """The result of `/api/v1/query`; a scalar is one series without labels."""
    try:
        data, notes = answer["data"], _notes(answer)
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return Vector(_to_ms(result[0]), [()], np.array([float(result[1])]), *notes)
        if kind != "vector":
            raise _not_instant({"matrix": "range vector"}.get(kind, kind))
        check_size(len(result), max_series, "series")
        time_ms = _to_ms(result[0]["value"][0]) if result else 0
        values = np.array([float(element["value"][1]) for element in result], dtype=np.float64)
        return Vector(time_ms, [read_labels(element["metric"]) for element in result], values, *notes)
    except _MALFORMED as error:
        raise ValueError(f"not an instant vector: {error!r}") from None


def read_matrix(
    answer: Mapping[str, Any], steps: Steps, *, max_series: int | None = None, max_samples: int
) -> Matrix:
    """The result of `/api/v1/query_range`, on the requested time axis; series sorted by labels."""
    rows = MatrixRows(steps, max_series, max_samples)
    try:
        rows.add_elements(answer["data"]["result"])
    except _MALFORMED as error:
        raise ValueError(f"not a matrix: {error!r}") from None
    return rows.to_matrix(answer)


def _not_instant(kind: str) -> EngineBadQuery:
    return EngineBadQuery(f"the expression gives a {kind}, not an instant vector or scalar")


class VectorRows:
    def __init__(self, max_series: int | None = None) -> None:
        self._max_series = max_series
        self._labels: list[Labels] = []
        self._values: list[float] = []
        self._time_ms: int | None = None

    def add(self, batch: bytes) -> int:
        try:
            elements = orjson.loads(b"[" + batch + b"]")
            check_size(len(self._labels) + len(elements), self._max_series, "series")
            if "values" in elements[0]:
                raise _not_instant("range vector")
            if self._time_ms is None:
                self._time_ms = _to_ms(elements[0]["value"][0])
            self._values += [float(element["value"][1]) for element in elements]
            labels = [read_labels(element["metric"]) for element in elements]
        except _MALFORMED as error:
            raise ValueError(f"not an instant vector: {error!r}") from None
        self._labels += labels
        return labels_bytes(labels)

    def to_vector(self, frame: Mapping[str, Any]) -> Vector:
        if self._time_ms is None:  # a scalar, an empty vector, or another form of JSON
            return read_vector(frame, self._max_series)
        empty = read_vector(frame)
        values = np.array(self._values, dtype=np.float64)
        return Vector(self._time_ms, self._labels, values, empty.warnings, empty.infos)


class MatrixRows:
    def __init__(self, steps: Steps, max_series: int | None, max_samples: int) -> None:
        self._steps = steps
        self._max_series = max_series
        self._max_samples = max_samples
        self._labels: list[Labels] = []
        self._points: list[tuple[Ints, Floats]] = []  # columns and values of each series

    def add(self, batch: bytes) -> int:
        return self.add_elements(orjson.loads(b"[" + batch + b"]"))

    def add_elements(self, elements: list[Any]) -> int:
        count = len(self._labels) + len(elements)
        check_size(count, self._max_series, "series")
        check_matrix_size(count, self._steps.count, self._max_samples)
        try:
            labels = [read_labels(element["metric"]) for element in elements]
            points = [self._read_points(element["values"]) for element in elements]
        except _MALFORMED as error:
            raise ValueError(f"not a matrix: {error!r}") from None
        self._labels += labels
        self._points += points
        points_bytes = 2 * sum(values.nbytes for _, values in points)
        return labels_bytes(labels) + points_bytes + len(labels) * self._steps.count * POINT_BYTES

    def to_matrix(self, frame: Mapping[str, Any]) -> Matrix:
        try:
            if frame["data"]["resultType"] != "matrix":
                raise ValueError(f"not a matrix but a {frame['data']['resultType']}")
            if not self._points and frame["data"]["result"]:
                return read_matrix(
                    frame, self._steps, max_series=self._max_series, max_samples=self._max_samples
                )
            order = sorted(range(len(self._labels)), key=self._labels.__getitem__)
            values = np.full((len(order), self._steps.count), np.nan)
            present = np.zeros((len(order), self._steps.count), dtype=np.bool_)
            for number, row in enumerate(order):
                columns, numbers = self._points[row]
                values[number, columns] = numbers
                present[number, columns] = True
            labels = [self._labels[row] for row in order]
            return Matrix(self._steps.times, labels, values, present, *_notes(frame))
        except _MALFORMED as error:
            raise ValueError(f"not a matrix: {error!r}") from None

    def _read_points(self, points: list[Any]) -> tuple[Ints, Floats]:
        values = np.fromiter((float(point[1]) for point in points), np.float64, len(points))
        return _columns(points, self._steps), values


def labels_bytes(labels: list[Labels]) -> int:
    """The memory that label sets take."""
    pairs = [pair for label_set in labels for pair in label_set]
    text = sum(text_bytes(name) + text_bytes(value) for name, value in pairs)
    return SERIES_BYTES * len(labels) + LABEL_BYTES * len(pairs) + text


def text_bytes(text: str) -> int:
    """One character above 16 bits makes a string of four bytes per character."""
    return len(text) if text.isascii() else 4 * len(text)


def _columns(points: list[Any], steps: Steps) -> Ints:
    """Where the points are on the axis; an engine may print times with fewer digits than milliseconds need."""
    times_ms = np.fromiter((float(point[0]) * 1000 for point in points), np.float64, len(points))
    columns = np.rint((times_ms - steps.start_ms) / steps.step_ms)
    if len(columns) and not (
        (np.abs(times_ms - steps.start_ms - columns * steps.step_ms) <= 1).all()
        and columns.min() >= 0
        and columns.max() < steps.count
    ):
        raise ValueError("a point that is not at start + n * step")
    return columns.astype(np.int64)


def read_labels(metric: object) -> Labels:
    if not isinstance(metric, dict) or not all(isinstance(value, str) for value in metric.values()):
        raise TypeError(f"labels {str(metric)[:100]}")
    return tuple(sorted(metric.items()))


def _notes(answer: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    warnings, infos = (tuple(map(str, answer.get(key) or ())) for key in ("warnings", "infos"))
    return warnings, infos


def _to_ms(seconds: object) -> int:
    if not isinstance(seconds, int | float):
        raise TypeError(f"a time {str(seconds)[:100]}")
    return round(seconds * 1000)


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
        label_sets = [known(key) or look(key) for key in keys]
        if self._has_enough(self.memory_bytes):
            self._old, self._old_bytes = {}, 0
        return label_sets

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
