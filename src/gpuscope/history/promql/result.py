"""Query results, as arrays instead of an object per sample, so that the HTTP layer can encode them fast.

`result_type` is the type in the HTTP API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.model.series import Labels


@dataclass(frozen=True, slots=True)
class Scalar:
    result_type: ClassVar[str] = "scalar"
    time_ms: int
    value: float
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal; Prometheus calls its type "string"."""

    result_type: ClassVar[str] = "string"
    time_ms: int
    value: str
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """The result of an instant query: one value per series, in the order of the query."""

    result_type: ClassVar[str] = "vector"
    time_ms: int
    labels: Sequence[Labels]
    values: Floats
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """The result of a range query: series sorted by labels, on one time axis; `present` marks the values."""

    result_type: ClassVar[str] = "matrix"
    times_ms: Ints
    labels: Sequence[Labels]
    values: Floats
    present: Bools
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeVector:
    """The result of an instant query for a range (`x[5m]`): each series has its own times."""

    result_type: ClassVar[str] = "matrix"
    labels: Sequence[Labels]
    timestamps: list[Ints]
    values: list[Floats]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


Result = Scalar | Text | Vector | Matrix | RangeVector


def first_series(result: Vector | Matrix | RangeVector, count: int) -> Vector | Matrix | RangeVector:
    """Return the result with only its first series."""
    labels = result.labels[:count]
    match result:
        case Vector():
            return replace(result, labels=labels, values=result.values[:count])
        case Matrix():
            return replace(result, labels=labels, values=result.values[:count], present=result.present[:count])
        case RangeVector():
            times = result.timestamps[:count]
            return replace(result, labels=labels, timestamps=times, values=result.values[:count])


def result_size(result: Result) -> int:
    """Return the number of samples."""
    match result:
        case Vector() | Matrix():
            return result.values.size
        case RangeVector():
            return sum(map(len, result.values))
        case _:
            return 1
