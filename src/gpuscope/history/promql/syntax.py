"""The syntax tree of a query: produced by `parse`, evaluated by the evaluator; and the errors of queries.

It has no parentheses, durations are integer milliseconds, and every node is supported by the evaluator. A
selector's metric name is one of its matchers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from gpuscope.model.series import Matcher


class PromQLError(Exception):
    """Query errors, with the error types of Prometheus' HTTP API.

    PromQLError                 error_type
    ├── BadQueryError           bad_data     invalid PromQL, or wrong types
    │   └── UnsupportedError    bad_data     valid in another engine; the message names the feature
    ├── ExecutionError          execution    the data or a limit prevents it (many-to-many, duplicate series)
    ├── QueryTimeoutError       timeout
    └── QueryCanceledError      canceled

    `parse` and `Engine` raise no other exceptions for any text, except those of the store.
    """

    error_type = "internal"


class BadQueryError(PromQLError):
    error_type = "bad_data"


class UnsupportedError(BadQueryError):
    pass


class ExecutionError(PromQLError):
    error_type = "execution"


class QueryTimeoutError(PromQLError):
    error_type = "timeout"


class QueryCanceledError(PromQLError):
    error_type = "canceled"


class ValueType(Enum):
    SCALAR = "scalar"
    STRING = "string"
    VECTOR = "vector"
    MATRIX = "matrix"


At = int | Literal["start", "end"]
"""The @ modifier: a time in milliseconds, or the start or end of the whole query."""

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
SET_OPERATORS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class String:
    value: str


@dataclass(frozen=True, slots=True)
class VectorSelector:
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    at: At | None = None


@dataclass(frozen=True, slots=True)
class MatrixSelector:
    vector: VectorSelector
    range_ms: int


@dataclass(frozen=True, slots=True)
class Subquery:
    expr: Expr
    range_ms: int
    step_ms: int | None
    offset_ms: int = 0
    at: At | None = None


@dataclass(frozen=True, slots=True)
class Negation:
    expr: Expr
    returns: ValueType


@dataclass(frozen=True, slots=True)
class Matching:
    """Vector matching; `many` is the side that may have several series per match."""

    on: bool
    labels: tuple[str, ...]
    many: Literal["left", "right"] | None = None
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Expr
    right: Expr
    returns_bool: bool
    matching: Matching
    returns: ValueType


@dataclass(frozen=True, slots=True)
class Aggregate:
    op: str
    expr: Expr
    param: Expr | None
    grouping: tuple[str, ...]
    without: bool


@dataclass(frozen=True, slots=True)
class FunctionCall:
    name: str
    args: tuple[Expr, ...]
    returns: ValueType


Expr = (
    Number | String | VectorSelector | MatrixSelector | Subquery | Negation | Binary | Aggregate | FunctionCall
)


def value_type(expr: Expr) -> ValueType:
    match expr:
        case Number():
            return ValueType.SCALAR
        case String():
            return ValueType.STRING
        case MatrixSelector() | Subquery():
            return ValueType.MATRIX
        case FunctionCall() | Negation() | Binary():
            return expr.returns
        case _:
            return ValueType.VECTOR
