"""`RuleQueries` over the embedded evaluator, and over an engine behind HTTP.

Both run in the evaluation thread and wait for the result.
"""

from __future__ import annotations

import asyncio

import numpy as np

from gpuscope.engines.engine_errors import EngineError
from gpuscope.engines.query_engine import QueryEngine
from gpuscope.promql import Engine, PromQLError, Scalar, Vector
from gpuscope.rules.interfaces import RuleQueryError
from gpuscope.store import StoreError


class EvaluatorQueries:
    """Over the evaluator of this process."""

    def __init__(self, evaluator: Engine) -> None:
        self._evaluator = evaluator

    def instant(self, expression: str, at_ms: int) -> Vector:
        try:
            result = self._evaluator.instant(expression, at_ms)
        except (PromQLError, StoreError) as error:
            raise RuleQueryError(str(error)) from error
        if isinstance(result, Scalar):
            return Vector(result.time_ms, [()], np.array([result.value]))
        if not isinstance(result, Vector):
            raise RuleQueryError("rule result is not a vector or scalar")
        return result


class EngineQueries:
    """Over any `QueryEngine`. The event loop belongs to the evaluation thread and runs only during a query."""

    def __init__(self, engine: QueryEngine, loop: asyncio.AbstractEventLoop, timeout_seconds: float) -> None:
        self._engine = engine
        self._loop = loop
        self._timeout_seconds = timeout_seconds

    def instant(self, expression: str, at_ms: int) -> Vector:
        query = self._engine.instant(expression, at_ms, timeout_seconds=self._timeout_seconds)
        try:
            return self._loop.run_until_complete(asyncio.wait_for(query, self._timeout_seconds))
        except EngineError as error:
            raise RuleQueryError(str(error)) from error
        except TimeoutError:
            raise RuleQueryError(f"no answer within {self._timeout_seconds:g} s") from None

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()
