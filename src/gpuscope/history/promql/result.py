"""Query results, as arrays instead of an object per sample, so that the HTTP layer can encode them fast.

`result_type` is the type in the HTTP API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.labels import truncate
from gpuscope.history.promql.numeric import number_text
from gpuscope.model.series import Labels

# Annotations of a query's result: warnings and infos, without duplicates, at most ten of each kind.

MAX_ANNOTATIONS = 10
"""Per kind, as in Prometheus' API; each series can cause a different text."""


class _AnnotationTexts:
    """The first distinct texts, and the number of further ones."""

    __slots__ = ("_hashes", "_kind", "_shown")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._shown: dict[str, None] = {}
        self._hashes: set[int] = set()

    def add(self, text: str) -> None:
        text = f"PromQL {self._kind}: {truncate(text)}"
        if len(self._shown) < MAX_ANNOTATIONS:
            self._shown[text] = None
        elif text not in self._shown:
            self._hashes.add(hash(text))

    def all(self) -> tuple[str, ...]:
        if not self._hashes:
            return tuple(self._shown)
        return (*self._shown, f"{len(self._hashes)} more {self._kind} annotations omitted")


class Annotations:
    """Collects annotations in order of first occurrence."""

    __slots__ = ("_infos", "_warnings")

    def __init__(self) -> None:
        self._warnings = _AnnotationTexts("warning")
        self._infos = _AnnotationTexts("info")

    def warn(self, text: str) -> None:
        self._warnings.add(text)

    def warn_of_quantile(self, ranks: Floats, where: Bools | None = None) -> None:
        """Warn if a quantile is outside [0, 1] at a step; `where` limits the steps."""
        outside = ~((ranks >= 0) & (ranks <= 1))
        wrong = ranks[outside if where is None else outside & where]
        if wrong.size:
            self.warn(f"quantile value should be between 0 and 1, got {number_text(float(wrong[0]))}")

    def info(self, text: str) -> None:
        self._infos.add(text)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._warnings.all()

    @property
    def infos(self) -> tuple[str, ...]:
        return self._infos.all()


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
