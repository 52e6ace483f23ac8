"""The syntax tree of a query in the JSON format of Prometheus' `parse_query`, with parentheses and label order.

The evaluator's tree (`syntax`) keeps only what affects the result. The parser library drops two details, which
are read from the text again: unary plus signs, and whether a number was written as a duration (`5m` is 300).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import promql_parser

from gpuscope.base.time_text import duration_text
from gpuscope.history.promql.durations import (
    Duration,
    DurationLiteral,
    FoundDuration,
    checked_ms,
    replace_durations,
)
from gpuscope.history.promql.lexical import Spelling, read_spelling, restore_bytes
from gpuscope.history.promql.numeric import number_text
from gpuscope.history.promql.parse import (
    aggregation_name,
    converting,
    function_name,
    grammar_tree,
    length_ms,
    milliseconds,
    read_at,
    read_matcher,
    read_matching,
)
from gpuscope.history.promql.syntax import SET_OPERATORS, BadQueryError, UnsupportedError
from gpuscope.model.series import Matcher, MatchOp

Node = dict[str, Any]
"""One node in Prometheus' format; its keys depend on `type`."""

_VECTORS = ("vectorSelector", "aggregation")
_TYPE_NAMES = {
    "ValueType.Scalar": "scalar",
    "ValueType.String": "string",
    "ValueType.Vector": "vector",
    "ValueType.Matrix": "matrix",
}
_PLACEHOLDER_MS = 8_000_000_000_000
"""253 years: stands for the first duration expression; each further one is a millisecond longer."""
_ALWAYS = '__always__="1"'


def describe(text: str, *, durations: bool = False) -> Node:
    """Return the tree of `text` as JSON. Raises `BadQueryError` if it is invalid or not supported.

    With `durations`, the `val` of a number written as a duration is a duration, which Prometheus' JSON omits.
    """
    text, expressions = _with_placeholders(text)
    grammar_tree(text)  # errors must refer to the original text, not to the modified one below
    spelling = read_spelling(text)
    tree = grammar_tree(spelling.text)
    with converting():
        describer = _Describer(text, spelling, durations, expressions)
        description = describer.node(tree)
        if describer.all_found():
            return description
        return _Describer(text, None, durations, expressions).node(grammar_tree(text))


def _with_placeholders(text: str) -> tuple[str, dict[int, Duration]]:
    """Replace each duration expression by a unique duration; return the text and the expressions by
    duration."""
    expressions: dict[int, Duration] = {}

    def placeholder(duration: FoundDuration) -> int:
        if isinstance(duration.expr, DurationLiteral):
            return checked_ms(duration.expr.seconds, duration)
        expressions[_PLACEHOLDER_MS + len(expressions)] = duration.expr
        return _PLACEHOLDER_MS + len(expressions) - 1

    return replace_durations(text, placeholder), expressions


def parse_selector(text: str) -> list[Matcher]:
    """Return the matchers of a series selector, which may select everything."""
    try:
        selector = _selector(text)
    except BadQueryError as error:
        # The library refuses a selector that matches everything; here the caller decides, so a matcher is
        # added.
        if "non-empty matcher" not in str(error):
            raise
        begin = text.rstrip().removesuffix("}").rstrip().removesuffix(",").rstrip()
        return _selector(f"{begin}{'' if begin.endswith('{') else ','}{_ALWAYS}}}")[:-1]
    return selector


def _selector(text: str) -> list[Matcher]:
    if not text:
        raise BadQueryError("unknown position: parse error: unexpected end of input")
    node = grammar_tree(text)
    if type(node).__name__ != "VectorSelector" or node.offset is not None or node.at is not None:
        raise BadQueryError(f"parse error: {text!r} is not a series selector")
    with converting():
        return _matchers(node)


def _matchers(node: Any) -> list[Matcher]:
    if node.matchers.or_matchers:
        raise UnsupportedError('"or" between label matchers is a VictoriaMetrics extension')
    named = [] if node.name is None else [Matcher("__name__", MatchOp.EQUAL, node.name)]
    return [*named, *(read_matcher(matcher) for matcher in node.matchers.matchers)]


class _Describer:
    """Visits the nodes in the order of the text, so that the next sign or number belongs to the current
    node."""

    def __init__(
        self, text: str, spelling: Spelling | None, durations: bool, expressions: dict[int, Duration]
    ) -> None:
        self._text = text
        self._expressions = expressions
        self._signs = deque(() if spelling is None else spelling.signs)
        self._durations = deque(() if spelling is None or not durations else spelling.durations)
        self._spelled = spelling is not None
        self._with_durations = durations
        self._lost = False
        self._kinds: dict[str, Callable[[Any], Node]] = {
            "ParenExpr": lambda node: {"type": "parenExpr", "expr": self.node(node.expr)},
            "NumberLiteral": self._number,
            "StringLiteral": lambda node: {"type": "stringLiteral", "val": restore_bytes(node.val)},
            "UnaryExpr": self._sign,
            "VectorSelector": self._vector_selector,
            "MatrixSelector": self._matrix_selector,
            "SubqueryExpr": self._subquery,
            "AggregateExpr": self._aggregation,
            "Call": self._call,
            "BinaryExpr": self._binary,
        }

    def node(self, node: Any) -> Node:
        return self._kinds[type(node).__name__](node)

    def all_found(self) -> bool:
        """Return whether every sign and number of the text has been assigned to a node."""
        return not (self._lost or self._signs or self._durations)

    def _sign(self, node: Any) -> Node:
        self._lost |= self._spelled and not self._signs
        op = self._signs.popleft() if self._signs else "-"
        return {"type": "unaryExpr", "op": op, "expr": self.node(node.expr)}

    def _number(self, node: Any) -> Node:
        self._lost |= self._spelled and self._with_durations and not self._durations
        text = number_text(node.val)
        if self._durations and self._durations.popleft() and math.isfinite(node.val):
            text = f"{'-' if node.val < 0 else ''}{duration_text(round(abs(node.val) * 1000))}"
        return {"type": "numberLiteral", "val": text}

    def _vector_selector(self, node: Any) -> Node:
        matchers = _matchers(node)
        if node.name is not None:
            matchers.append(matchers.pop(0))  # Prometheus lists the name before the braces as the last matcher
        return {
            "type": "vectorSelector",
            "name": node.name or "",
            "matchers": [
                {"name": matcher.name, "value": restore_bytes(matcher.value), "type": matcher.op.value}
                for matcher in matchers
            ],
            **self._moved(node),
        }

    def _matrix_selector(self, node: Any) -> Node:
        selector = self._vector_selector(node.vector_selector)
        return {**selector, "type": "matrixSelector", **self._duration("range", length_ms(node.range))}

    def _subquery(self, node: Any) -> Node:
        return {
            "type": "subquery",
            "expr": self.node(node.expr),
            **self._duration("range", length_ms(node.range)),
            **self._duration("step", 0 if node.step is None else length_ms(node.step)),
            **self._moved(node),
        }

    def _moved(self, node: Any) -> Node:
        at = read_at(node)
        return {
            **self._duration("offset", milliseconds(node.offset)),
            "timestamp": None if isinstance(at, str) else at,
            "startOrEnd": at if isinstance(at, str) else None,
        }

    def _duration(self, key: str, length: int) -> Node:
        """Return a duration; for an expression 0 and the expression."""
        expr = self._expressions.get(length)
        return {key: length} if expr is None else {key: 0, f"{key}Expr": _duration_node(expr)}

    def _aggregation(self, node: Any) -> Node:
        modifier = node.modifier
        param = None if node.param is None else self.node(node.param)  # precedes the expression in the text
        return {
            "type": "aggregation",
            "op": aggregation_name(node),
            "expr": self.node(node.expr),
            "param": param,
            "grouping": [] if modifier is None else list(modifier.labels),
            "without": modifier is not None and modifier.type == promql_parser.AggModifierType.Without,
        }

    def _call(self, node: Any) -> Node:
        function = {
            "name": function_name(node),
            "argTypes": [_TYPE_NAMES[str(type_)] for type_ in node.func.arg_types],
            "variadic": node.func.variadic,
            "returnType": _TYPE_NAMES[str(node.func.return_type)],
        }
        return {"type": "call", "func": function, "args": [self.node(arg) for arg in node.args]}

    def _binary(self, node: Any) -> Node:
        left, right, op = self.node(node.lhs), self.node(node.rhs), str(node.op)
        modifier = node.modifier
        return {
            "type": "binaryExpr",
            "op": op,
            "lhs": left,
            "rhs": right,
            "matching": _matching(op, modifier) if is_vector(left) and is_vector(right) else None,
            "bool": modifier is not None and modifier.return_bool,
        }


def _duration_node(expr: Duration | None) -> Node | None:
    if expr is None:
        return None
    if isinstance(expr, DurationLiteral):
        return {"type": "numberLiteral", "val": number_text(expr.seconds), "duration": expr.is_duration}
    left, right = _duration_node(expr.left), _duration_node(expr.right)
    return {"type": "durationExpr", "op": expr.op, "lhs": left, "rhs": right, "wrapped": expr.wrapped}


def _matching(op: str, modifier: Any) -> Node:
    matching = read_matching(modifier)
    card = {"left": "many-to-one", "right": "one-to-many", None: "one-to-one"}[matching.many]
    return {
        "card": "many-to-many" if op in SET_OPERATORS else card,
        "labels": list(matching.labels),
        "on": matching.on,
        "include": list(matching.include),
    }


def is_vector(node: Node) -> bool:
    """Return whether a node's value is an instant vector."""
    match node["type"]:
        case "parenExpr" | "unaryExpr":
            return is_vector(node["expr"])
        case "binaryExpr":
            return is_vector(node["lhs"]) or is_vector(node["rhs"])
        case "call":
            return bool(node["func"]["returnType"] == "vector")
        case kind:
            return kind in _VECTORS


def has_selector(node: Node) -> bool:
    """Return whether a query contains a selector."""
    if node["type"] in ("vectorSelector", "matrixSelector"):
        return True
    below = [node.get(key) for key in ("expr", "param", "lhs", "rhs")] + node.get("args", [])
    return any(has_selector(child) for child in below if child is not None)
