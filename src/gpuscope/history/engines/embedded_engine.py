"""`QueryEngine` over the store of this process: the PromQL evaluator, run in worker threads.

A caller that is cancelled stops its query. The executor is the caller's, so that rules, reports and clients
can have separate threads; None is the event loop's own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import numpy as np

from gpuscope import __version__
from gpuscope.history.engines.query_engine import (
    EngineBadQuery,
    EngineError,
    EngineFailed,
    EngineInfo,
    EngineQueryError,
    EngineQueryTimeout,
    check_size,
    or_why_not,
)
from gpuscope.history.promql import BadQueryError, Engine, PromQLError, QueryTimeoutError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.evaluate import Frames
from gpuscope.history.promql.result import Matrix, Result, Scalar, Vector
from gpuscope.history.store import Store, StoreError
from gpuscope.model.series import Labels, Matcher

T = TypeVar("T")


class EmbeddedEngine:
    """For several event loops: it keeps nothing between calls."""

    name = "store"

    def __init__(self, store: Store, evaluator: Engine, executor: Executor | None = None) -> None:
        self._store = store
        self._evaluator = evaluator
        self._executor = executor

    async def instant(
        self,
        expression: str,
        at_ms: int | None = None,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Vector:
        time_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        result = await self._run(
            lambda cancelled: self._evaluator.instant(
                expression, time_ms, timeout_seconds=timeout_seconds, cancelled=cancelled
            )
        )
        vector = _to_vector(result)
        check_size(len(vector.labels), max_series, "series")
        return vector

    async def instants(
        self,
        expressions: Sequence[str],
        at_ms: int,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Vector | EngineError]:
        """Several at one time, which share the parts that they have in common."""
        shared: Frames = {}

        async def query(expression: str) -> Vector:
            evaluate = partial(self._instant_sharing, expression, at_ms, timeout_seconds, shared)
            vector = _to_vector(await self._run(evaluate))
            check_size(len(vector.labels), max_series, "series")
            return vector

        return [await or_why_not(query(expression)) for expression in expressions]

    def _instant_sharing(
        self,
        expression: str,
        at_ms: int,
        timeout_seconds: float | None,
        shared: Frames,
        cancelled: threading.Event,
    ) -> Result:
        return self._evaluator.instant(
            expression, at_ms, timeout_seconds=timeout_seconds, cancelled=cancelled, shared=shared
        )

    async def range(
        self,
        expression: str,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Matrix:
        matrix = await self._run(
            lambda cancelled: self._evaluator.range(
                expression, start_ms, end_ms, step_ms, timeout_seconds=timeout_seconds, cancelled=cancelled
            )
        )
        check_size(len(matrix.labels), max_series, "series")
        return matrix

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        label_sets = await self._run(
            lambda _: sorted(self._store.any_series(_parse_selectors(selectors), start_ms, end_ms))
        )
        check_size(len(label_sets), max_series, "series")
        return label_sets

    async def label_values(
        self,
        label: str,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_values: int | None = None,
    ) -> list[str]:
        def find(_: threading.Event) -> list[str]:
            if not selectors:
                return sorted(self._store.label_values(label, (), start_ms, end_ms))
            label_sets = self._store.any_series(_parse_selectors(selectors), start_ms, end_ms)
            return sorted(label_sets.values(label) - {""})

        values = await self._run(find)
        check_size(len(values), max_values, "values")
        return values

    async def describe(self) -> EngineInfo:
        options = self._store.options
        return EngineInfo(
            "gpuscope",
            __version__,
            options.retention_ms,
            max(options.retention_ms, options.rollup_retention_ms),
            self._store.filled_until_ms,
        )

    async def hides_resets(self) -> bool:
        return False

    async def close(self) -> None:
        """Store and executor belong to the caller."""

    async def _run(self, work: Callable[[threading.Event], T]) -> T:
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except PromQLError as error:
            raise _to_engine_error(error) from error
        except StoreError as error:
            raise EngineFailed(str(error)) from error


def _to_engine_error(error: PromQLError) -> EngineError:
    match error:
        case BadQueryError():
            return EngineBadQuery(str(error))
        case QueryTimeoutError():
            return EngineQueryTimeout(str(error))
        case _:
            return EngineQueryError(str(error))


def _to_vector(result: Result) -> Vector:
    match result:
        case Vector():
            return result
        case Scalar():
            return Vector(result.time_ms, [()], np.array([result.value]), result.warnings, result.infos)
        case _:
            kind = {"matrix": "range vector"}.get(result.result_type, result.result_type)
            raise EngineBadQuery(f"the expression gives a {kind}, not an instant vector or scalar")


def _parse_selectors(texts: Sequence[str]) -> list[list[Matcher]]:
    return [parse_selector(text) for text in texts]
