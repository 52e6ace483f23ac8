"""`RuleQueries` over the embedded evaluator, and over an engine behind HTTP.

Both run in the thread of an evaluation and wait for the result; threads may share one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from gpuscope.history.engines.engine_errors import EngineError
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.promql import Engine, PromQLError, Scalar, Vector
from gpuscope.history.store import StoreError
from gpuscope.judge.rules.interfaces import RuleQueryError


class EvaluatorQueries:
    """Over the evaluator of this process. `stopping` ends every query: a slow one must not delay the exit.

    Expressions of `checks` are evaluated as the checks are, reading only what is needed (`skips_unneeded`).
    Rules of others are evaluated whole: an error in any part of them is theirs to see."""

    def __init__(
        self, evaluator: Engine, stopping: threading.Event | None = None, checks: Iterable[str] = ()
    ) -> None:
        self._evaluator = evaluator
        self._stopping = stopping
        self._of_checks = replace(evaluator, skips_unneeded=True)
        self._checks = frozenset(map(_one_line, checks))

    def instant(self, expression: str, at_ms: int) -> Vector:
        try:
            evaluator = self._of_checks if _one_line(expression) in self._checks else self._evaluator
            result = evaluator.instant(expression, at_ms, cancelled=self._stopping)
        except (PromQLError, StoreError) as error:
            raise RuleQueryError(str(error)) from error
        if isinstance(result, Scalar):
            return Vector(result.time_ms, [()], np.array([result.value]))
        if not isinstance(result, Vector):
            raise RuleQueryError("rule result is not a vector or scalar")
        return result


def _one_line(expression: str) -> str:
    """Return an expression without the line breaks of a rule file."""
    return " ".join(expression.split())


class EngineQueries:
    """Over any `QueryEngine`. Each thread has its own, because its connections belong to one event loop, which
    runs only during a query."""

    def __init__(self, new_engine: Callable[[], QueryEngine], timeout_seconds: float) -> None:
        self._new_engine = new_engine
        self._timeout_seconds = timeout_seconds
        self._of_thread = threading.local()

    def instant(self, expression: str, at_ms: int) -> Vector:
        engine, loop = self._own()
        query = engine.instant(expression, at_ms, timeout_seconds=self._timeout_seconds)
        try:
            return loop.run_until_complete(asyncio.wait_for(query, self._timeout_seconds))
        except EngineError as error:
            raise RuleQueryError(str(error)) from error
        except TimeoutError:
            raise RuleQueryError(f"no answer within {self._timeout_seconds:g} s") from None

    def _own(self) -> tuple[QueryEngine, asyncio.AbstractEventLoop]:
        own: tuple[QueryEngine, asyncio.AbstractEventLoop] | None = getattr(self._of_thread, "own", None)
        if own is None:
            own = self._of_thread.own = (self._new_engine(), asyncio.new_event_loop())
        return own

    def close(self) -> None:
        """Close the connections of the calling thread."""
        own: tuple[QueryEngine, asyncio.AbstractEventLoop] | None = getattr(self._of_thread, "own", None)
        if own is not None:
            engine, loop = own
            loop.run_until_complete(engine.close())
            loop.close()
            del self._of_thread.own
