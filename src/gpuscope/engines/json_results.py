"""Prometheus' JSON results as arrays. Anything else that an engine sends is a ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuscope.engines.engine_errors import EngineBadQuery
from gpuscope.engines.query_engine import check_matrix_size, check_size
from gpuscope.promql.frame import Ints, Steps
from gpuscope.promql.result import Matrix, Vector
from gpuscope.series import Labels

_MALFORMED = (KeyError, IndexError, TypeError, AttributeError, OverflowError)


def read_vector(answer: Mapping[str, Any], max_series: int | None = None) -> Vector:
    """The result of `/api/v1/query`; a scalar is one series without labels."""
    try:
        data, notes = answer["data"], _notes(answer)
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return Vector(_to_ms(result[0]), [()], np.array([float(result[1])]), *notes)
        if kind != "vector":
            name = {"matrix": "range vector"}.get(kind, kind)
            raise EngineBadQuery(f"the expression gives a {name}, not an instant vector or scalar")
        check_size(len(result), max_series, "series")
        time_ms = _to_ms(result[0]["value"][0]) if result else 0
        values = np.array([float(one["value"][1]) for one in result], dtype=np.float64)
        return Vector(time_ms, [read_labels(one["metric"]) for one in result], values, *notes)
    except _MALFORMED as error:
        raise ValueError(f"not an instant vector: {error!r}") from None


def read_matrix(
    answer: Mapping[str, Any], steps: Steps, *, max_series: int | None = None, max_samples: int
) -> Matrix:
    """The result of `/api/v1/query_range`, on the requested time axis; series sorted by labels."""
    try:
        result = answer["data"]["result"]
        if answer["data"]["resultType"] != "matrix":
            raise ValueError(f"not a matrix but a {answer['data']['resultType']}")
        check_size(len(result), max_series, "series")
        check_matrix_size(len(result), steps.count, max_samples)
        rows = sorted(((read_labels(one["metric"]), one["values"]) for one in result), key=lambda row: row[0])
        values = np.full((len(rows), steps.count), np.nan)
        present = np.zeros((len(rows), steps.count), dtype=np.bool_)
        for number, (_, points) in enumerate(rows):
            columns = _columns(points, steps)
            values[number, columns] = np.fromiter(
                (float(point[1]) for point in points), np.float64, len(points)
            )
            present[number, columns] = True
        return Matrix(steps.times, [labels for labels, _ in rows], values, present, *_notes(answer))
    except _MALFORMED as error:
        raise ValueError(f"not a matrix: {error!r}") from None


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
