"""Prometheus' JSON results as arrays. Anything else that an engine sends is a ValueError.

`VectorRows` and `MatrixRows` take a result in batches of its text and return the memory that each batch takes;
`read_vector` and `read_matrix` take a whole result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from gpuscope.history.engines.engine_errors import EngineBadQuery
from gpuscope.history.engines.query_engine import check_matrix_size, check_size
from gpuscope.history.promql.frame import Floats, Ints, Steps
from gpuscope.history.promql.result import Matrix, Vector
from gpuscope.model.series import Labels

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
                columns, found = self._points[row]
                values[number, columns] = found
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
