"""PromQL as in Prometheus 3.x, over any `gpuscope.model.series.Storage`.

    Engine(storage).instant(text, time_ms) -> Scalar | Text | Vector | RangeVector
    Engine(storage).range(text, start_ms, end_ms, step_ms) -> Matrix
    format_query(text) -> str

Every failure is a `PromQLError`; its `error_type` is that of Prometheus' HTTP API.
"""

from __future__ import annotations

from gpuscope.history.promql.engine import MAX_POINTS_PER_SERIES, Engine
from gpuscope.history.promql.formatting import format_query
from gpuscope.history.promql.parse import parse
from gpuscope.history.promql.result import Matrix, RangeVector, Result, Scalar, Text, Vector
from gpuscope.history.promql.statistics import Statistics
from gpuscope.history.promql.syntax import (
    BadQueryError,
    ExecutionError,
    PromQLError,
    QueryCanceledError,
    QueryTimeoutError,
    UnsupportedError,
)

__all__ = [
    "MAX_POINTS_PER_SERIES",
    "BadQueryError",
    "Engine",
    "ExecutionError",
    "Matrix",
    "PromQLError",
    "QueryCanceledError",
    "QueryTimeoutError",
    "RangeVector",
    "Result",
    "Scalar",
    "Statistics",
    "Text",
    "UnsupportedError",
    "Vector",
    "format_query",
    "parse",
]
