"""What a query answers with. Arrays, not objects per sample: the HTTP layer writes JSON from them at speed.

`result_type` is what the HTTP API calls the kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gpuscope.promql.frame import Bools, Floats, Ints
from gpuscope.series import Labels


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
    """An instant query's series with one value each, in the order the query gave them."""

    result_type: ClassVar[str] = "vector"
    time_ms: int
    labels: list[Labels]
    values: Floats
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """A range query's series, sorted by labels, on one time axis; `present` says where a row has a value."""

    result_type: ClassVar[str] = "matrix"
    times_ms: Ints
    labels: list[Labels]
    values: Floats
    present: Bools
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Samples:
    """An instant query for a range (`x[5m]`): each series with its own times. Its type is "matrix" too."""

    result_type: ClassVar[str] = "matrix"
    labels: list[Labels]
    timestamps: list[Ints]
    values: list[Floats]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


Result = Scalar | Text | Vector | Matrix | Samples


def first_series(result: Vector | Matrix | Samples, count: int) -> Vector | Matrix | Samples:
    """The same with only its first series."""
    labels = result.labels[:count]
    match result:
        case Vector():
            return replace(result, labels=labels, values=result.values[:count])
        case Matrix():
            return replace(result, labels=labels, values=result.values[:count], present=result.present[:count])
        case Samples():
            times = result.timestamps[:count]
            return replace(result, labels=labels, timestamps=times, values=result.values[:count])


def result_size(result: Result) -> int:
    """How many samples it holds."""
    match result:
        case Vector() | Matrix():
            return result.values.size
        case Samples():
            return sum(map(len, result.values))
        case _:
            return 1
