"""An engine that is asked the same expressions at many moments: a range query answers all of them at once.

A range query has at each step what an instant query has at that time, in every engine; only the order of the
series differs, which is that of their labels here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.history.engines.query_engine import EngineError, QueryEngine, or_why_not
from gpuscope.history.promql.result import Matrix, Vector


class Answers:
    """Of an engine that does not change, at moments that are equally far apart."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._times_ms = [int(moment * 1000) for moment in moments]
        self._step_ms = self._times_ms[1] - self._times_ms[0] if len(moments) > 1 else 1000
        self._matrices: dict[str, Matrix] = {}

    async def at(self, engine: QueryEngine, expression: str, at_ms: int) -> Vector:
        matrix = self._matrices.get(expression)
        if matrix is None:
            matrix = await engine.range(expression, self._times_ms[0], self._times_ms[-1], self._step_ms)
            self._matrices[expression] = matrix
        return vector_at(matrix, at_ms)

    def has(self, at_ms: int | None) -> bool:
        return at_ms in self._times_ms


def vector_at(matrix: Matrix, at_ms: int) -> Vector:
    column = int(matrix.times_ms.searchsorted(at_ms))
    assert matrix.times_ms[column] == at_ms
    rows = matrix.present[:, column].nonzero()[0].tolist()
    return Vector(at_ms, [matrix.labels[row] for row in rows], matrix.values[rows, column])


class ReplayedEngine:
    """Answers instant queries at these moments from range queries, and everything else itself."""

    name = "engine"

    def __init__(self, engine: QueryEngine, answers: Answers) -> None:
        self._engine = engine
        self._answers = answers

    async def instant(self, expression: str, at_ms: int | None = None, **options: Any) -> Vector:
        if at_ms is None or not self._answers.has(at_ms):
            return await self._engine.instant(expression, at_ms, **options)
        return await self._answers.at(self._engine, expression, at_ms)

    async def instants(
        self, expressions: Sequence[str], at_ms: int, **options: Any
    ) -> list[Vector | EngineError]:
        return [await or_why_not(self.instant(expression, at_ms, **options)) for expression in expressions]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
