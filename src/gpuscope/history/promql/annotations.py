"""Annotations of a query's result: warnings and infos, without duplicates, at most ten of each kind."""

from __future__ import annotations

from gpuscope.history.promql.frame import Bools, Floats
from gpuscope.history.promql.labels import truncate
from gpuscope.history.promql.numeric import number_text

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
