"""Parses query text to a syntax tree; every error is a `BadQueryError`.

Grammar and type rules are those of the library `promql-parser`, which also accepts Prometheus' newest
experiments and one extension of VictoriaMetrics. Everything that is not stable in Prometheus 3.x is refused
here by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

import promql_parser

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.history.promql.durations import (
    INSTANT,
    QueryTimes,
    check_literals,
    evaluate_durations,
    shift_times,
    unshift_ms,
)
from gpuscope.history.promql.lexical import check_size, describe_error, normalise, read_spelling, restore_bytes
from gpuscope.history.promql.syntax import (
    Aggregate,
    At,
    BadQueryError,
    Binary,
    Expr,
    FunctionCall,
    Matching,
    MatrixSelector,
    Negation,
    Number,
    String,
    Subquery,
    UnsupportedError,
    ValueType,
    VectorSelector,
    value_type,
)
from gpuscope.model.series import Matcher, MatchOp

EXPERIMENTAL_AGGREGATIONS = frozenset({"limitk", "limit_ratio"})
NATIVE_HISTOGRAM_FUNCTIONS = frozenset(
    {"histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar"}
)
FUNCTIONS = frozenset(
    {
        "abs",
        "absent",
        "absent_over_time",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "avg_over_time",
        "ceil",
        "changes",
        "clamp",
        "clamp_max",
        "clamp_min",
        "cos",
        "cosh",
        "count_over_time",
        "day_of_month",
        "day_of_week",
        "day_of_year",
        "days_in_month",
        "deg",
        "delta",
        "deriv",
        "exp",
        "first_over_time",
        "floor",
        "histogram_fraction",
        "histogram_quantile",
        "hour",
        "idelta",
        "increase",
        "irate",
        "label_join",
        "label_replace",
        "last_over_time",
        "ln",
        "log10",
        "log2",
        "max_over_time",
        "min_over_time",
        "minute",
        "month",
        "pi",
        "predict_linear",
        "present_over_time",
        "quantile_over_time",
        "rad",
        "rate",
        "resets",
        "round",
        "scalar",
        "sgn",
        "sin",
        "sinh",
        "sort",
        "sort_desc",
        "sqrt",
        "stddev_over_time",
        "stdvar_over_time",
        "sum_over_time",
        "tan",
        "tanh",
        "time",
        "timestamp",
        "vector",
        "year",
    }
)
# By name, because the library's enums are not hashable.
_MATCH_OPS = {
    "MatchOp.Equal": MatchOp.EQUAL,
    "MatchOp.NotEqual": MatchOp.NOT_EQUAL,
    "MatchOp.Re": MatchOp.REGEX,
    "MatchOp.NotRe": MatchOp.NOT_REGEX,
}
_VALUE_TYPES = {
    "ValueType.Scalar": ValueType.SCALAR,
    "ValueType.String": ValueType.STRING,
    "ValueType.Vector": ValueType.VECTOR,
    "ValueType.Matrix": ValueType.MATRIX,
}
_AT = re.compile(r" @ (\d+\.\d+)(?: offset \S+)?$")


INVALID = "invalid promql query"
"""What the library says about every mistake of the grammar."""
MAX_CACHED_CHARACTERS = 2_000
MAX_LONG_CHARACTERS = 10_000
"""Few trees of longer queries are cached, such as those of the longest checks, and none beyond: they could fill
the memory."""


def parse(text: str, times: QueryTimes = INSTANT) -> Expr:
    """Return the tree of `text` in a query with these times. Dashboards repeat the same queries, so trees are
    cached."""
    text = evaluate_durations(text, times)
    if len(text) <= MAX_CACHED_CHARACTERS:
        return _parse_cached(text)
    return _parse_long(text) if len(text) <= MAX_LONG_CHARACTERS else _parse(text)


def _parse(text: str) -> Expr:
    tree = grammar_tree(text)
    _check_plus_signs(text)
    with converting():
        return _Converter(text).expr(tree)


_parse_cached = lru_cache(maxsize=512)(_parse)
_parse_long = lru_cache(maxsize=16)(_parse)


def _check_plus_signs(text: str) -> None:
    """Check operands of unary plus, which the library drops before its type check: +"text" is invalid."""
    if "+" not in text:
        return
    spelling = read_spelling(text)
    if "+" in spelling.signs:
        try:
            grammar_tree(spelling.text)
        except BadQueryError as error:
            if "unary" in str(error):
                raise


def grammar_tree(text: str) -> Any:
    """Return the library's tree, which is complete but may contain unsupported nodes."""
    check_size(text)
    if not text:
        raise BadQueryError("unknown position: parse error: no expression found in input")
    plain = shift_times(normalise(text))
    check_literals(plain)
    try:
        return promql_parser.parse(plain)
    except OverflowError as error:
        raise BadQueryError("parse error: duration out of range") from error
    except ValueError as error:
        if str(error) == INVALID:
            raise BadQueryError(describe_error(text, _is_query)) from error
        raise BadQueryError(f"parse error: {error}") from error
    except BaseException as error:
        # A Rust panic of the library is not a subclass of `Exception`; a query must not end the process.
        if type(error).__name__ == "PanicException":
            raise BadQueryError("parse error: the parser cannot read this query") from error
        raise


def _is_query(text: str) -> bool:
    """Whether the grammar accepts it; types may still be wrong."""
    try:
        promql_parser.parse(shift_times(normalise(text)))
    except ValueError as error:
        return str(error) != INVALID and "unexpected" not in str(error) and "unclosed" not in str(error)
    except (BadQueryError, OverflowError):
        return True
    return True


@contextmanager
def converting() -> Iterator[None]:
    """Convert exceptions of walking the library's tree to query errors."""
    try:
        yield
    except RecursionError as error:
        raise BadQueryError("parse error: the query is nested too deeply") from error
    except OverflowError as error:
        raise BadQueryError("parse error: duration out of range") from error


class _Converter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._kinds: dict[str, Callable[[Any], Expr]] = {
            "ParenExpr": lambda node: self.expr(node.expr),
            "NumberLiteral": lambda node: Number(node.val),
            "StringLiteral": lambda node: String(restore_bytes(node.val)),
            "UnaryExpr": self._negation,
            "VectorSelector": self._vector_selector,
            "MatrixSelector": self._matrix_selector,
            "SubqueryExpr": self._subquery,
            "AggregateExpr": self._aggregate,
            "Call": self._call,
            "BinaryExpr": self._binary,
        }

    def expr(self, node: Any) -> Expr:
        convert = self._kinds.get(type(node).__name__)
        if convert is None:
            raise UnsupportedError(f"{type(node).__name__} is not supported")
        return convert(node)

    def _vector_selector(self, node: Any) -> VectorSelector:
        if node.matchers.or_matchers:
            raise UnsupportedError('"or" between label matchers is a VictoriaMetrics extension')
        matchers = [read_matcher(matcher) for matcher in node.matchers.matchers]
        if node.name is not None:
            matchers.insert(0, Matcher("__name__", MatchOp.EQUAL, node.name))
        return VectorSelector(tuple(matchers), milliseconds(node.offset), read_at(node))

    def _negation(self, node: Any) -> Expr:
        inner = self.expr(node.expr)
        return Negation(inner, value_type(inner))

    def _matrix_selector(self, node: Any) -> Expr:
        return MatrixSelector(self._vector_selector(node.vector_selector), length_ms(node.range))

    def _subquery(self, node: Any) -> Expr:
        step = None if node.step is None else length_ms(node.step)
        inner = self.expr(node.expr)
        return Subquery(inner, length_ms(node.range), step, milliseconds(node.offset), read_at(node))

    def _aggregate(self, node: Any) -> Expr:
        op = aggregation_name(node)
        grouping: tuple[str, ...] = ()
        without = False
        if node.modifier is not None:
            grouping = tuple(sorted(set(node.modifier.labels)))
            without = node.modifier.type == promql_parser.AggModifierType.Without
        param = None if node.param is None else self.expr(node.param)
        return Aggregate(op, self.expr(node.expr), param, grouping, without)

    def _call(self, node: Any) -> Expr:
        name = function_name(node)
        args = tuple(self.expr(arg) for arg in node.args)
        return FunctionCall(name, args, _VALUE_TYPES[str(node.func.return_type)])

    def _binary(self, node: Any) -> Expr:
        left, right = self.expr(node.lhs), self.expr(node.rhs)
        modifier = node.modifier
        returns_bool = modifier is not None and modifier.return_bool
        sides = {value_type(left), value_type(right)}
        returns = ValueType.SCALAR if sides == {ValueType.SCALAR} else ValueType.VECTOR
        return Binary(str(node.op), left, right, returns_bool, read_matching(modifier), returns)


def aggregation_name(node: Any) -> str:
    op = str(node.op)
    if op in EXPERIMENTAL_AGGREGATIONS:
        raise UnsupportedError(f"{op} is experimental in Prometheus and not supported")
    return op


def function_name(node: Any) -> str:
    """Of a stable function, those about native histograms among them."""
    name: str = node.func.name
    if name not in FUNCTIONS and name not in NATIVE_HISTOGRAM_FUNCTIONS:
        raise UnsupportedError(f"function {name} is experimental in Prometheus and not supported")
    return name


def read_at(node: Any) -> At | None:
    """Return the @ modifier of a selector or subquery."""
    if node.at is None:
        return None
    kind = node.at.type
    if kind == promql_parser.AtModifierType.Start:
        return "start"
    if kind == promql_parser.AtModifierType.End:
        return "end"
    # The library gives the time as a date, which ends at the year 9999: read it from the printed node.
    printed = _AT.search(str(node))
    if printed is None:
        raise BadQueryError("parse error: the time of the @ modifier cannot be read")
    return unshift_ms(float(printed.group(1)))


def read_matcher(node: Any) -> Matcher:
    op = _MATCH_OPS[str(node.op)]
    if op in (MatchOp.REGEX, MatchOp.NOT_REGEX):
        # The library checks it with another engine, whose limits differ from RE2's.
        try:
            compile_anchored(node.value)
        except ValueError as error:
            raise BadQueryError(f"parse error: regular expression for {node.name}: {error}") from error
    return Matcher(node.name, op, node.value)


def read_matching(modifier: Any) -> Matching:
    if modifier is None:
        return Matching(on=False, labels=())
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise UnsupportedError("fill modifiers are experimental in Prometheus and not supported")
    matching = modifier.matching
    on = matching is not None and matching.type == promql_parser.LabelModifierType.Include
    labels = () if matching is None else tuple(matching.labels)
    include = tuple(modifier.group_labels or ())
    if modifier.card == promql_parser.VectorMatchCardinality.ManyToOne:
        return Matching(on, labels, "left", include)
    if modifier.card == promql_parser.VectorMatchCardinality.OneToMany:
        return Matching(on, labels, "right", include)
    return Matching(on, labels)


def milliseconds(duration: timedelta | None) -> int:
    return 0 if duration is None else duration // timedelta(milliseconds=1)


def length_ms(duration: timedelta) -> int:
    length = milliseconds(duration)
    if length < 1:
        raise BadQueryError("parse error: a duration must be at least 1ms")
    return length
