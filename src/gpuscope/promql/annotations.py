"""Annotations of a query's result: warnings and infos, each distinct text once, at most ten of a kind."""

from __future__ import annotations

from gpuscope.promql.frame import Bools, Floats
from gpuscope.promql.labels import cut
from gpuscope.promql.numeric import number_text

MAX_SHOWN = 10
"""Of each kind, as Prometheus' API: every series may have a text of its own."""


class _Texts:
    """The first distinct texts; of the others only how many there were."""

    __slots__ = ("_hashes", "_kind", "_shown")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._shown: dict[str, None] = {}
        self._hashes: set[int] = set()

    def add(self, text: str) -> None:
        text = f"PromQL {self._kind}: {cut(text)}"
        if len(self._shown) < MAX_SHOWN:
            self._shown[text] = None
        elif text not in self._shown:
            self._hashes.add(hash(text))

    def all(self) -> tuple[str, ...]:
        if not self._hashes:
            return tuple(self._shown)
        return (*self._shown, f"{len(self._hashes)} more {self._kind} annotations omitted")


class Notes:
    """Collects annotations in the order they first came up."""

    __slots__ = ("_infos", "_warnings")

    def __init__(self) -> None:
        self._warnings = _Texts("warning")
        self._infos = _Texts("info")

    def warn(self, text: str) -> None:
        self._warnings.add(text)

    def warn_of_quantiles(self, ranks: Floats, where: Bools | None = None) -> None:
        """A quantile outside [0, 1] has an answer, but hardly the one that was meant. Of the steps `where`."""
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
