"""A query as it was written, parentheses, order of labels and all, in the JSON of Prometheus' `parse_query`.

The evaluator's own tree (`syntax`) keeps only what changes the answer. Two things are lost before they reach
here, in the parser library: a unary plus, and that a number was written as a duration (`5m` is 300).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import promql_parser

from gpuscope.promql.errors import BadQueryError, UnsupportedError
from gpuscope.promql.numeric import number_text
from gpuscope.promql.parse import (
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
from gpuscope.promql.regex import compile_whole
from gpuscope.promql.syntax import SET_OPERATORS
from gpuscope.store.series import Matcher, MatchOp

Node = dict[str, Any]
"""One node as Prometheus writes it; `type` says which keys there are."""

_VECTORS = ("vectorSelector", "aggregation")
_TYPE_NAMES = {
    "ValueType.Scalar": "scalar",
    "ValueType.String": "string",
    "ValueType.Vector": "vector",
    "ValueType.Matrix": "matrix",
}
_ALWAYS = '__always__="1"'


def describe(text: str) -> Node:
    """The tree of `text` as JSON; `BadQueryError` where it is no query, or one that is not supported."""
    tree = grammar_tree(text)
    with converting():
        return _Describer(text).node(tree)


def parse_selector(text: str) -> list[Matcher]:
    """The matchers of a series selector alone, which may select everything."""
    try:
        found = _selector(text)
    except BadQueryError as error:
        # The library refuses what selects everything, which is for the caller to judge: it gets one more.
        if "non-empty matcher" not in str(error):
            raise
        begin = text.rstrip().removesuffix("}").rstrip().removesuffix(",").rstrip()
        return _selector(f"{begin}{'' if begin.endswith('{') else ','}{_ALWAYS}}}")[:-1]
    return found


def _selector(text: str) -> list[Matcher]:
    node = grammar_tree(text)
    if type(node).__name__ != "VectorSelector" or node.offset is not None or node.at is not None:
        raise BadQueryError(f"parse error: {text!r} is not a series selector")
    with converting():
        return _matchers(node)


def matches(matcher: Matcher, value: str) -> bool:
    if matcher.op in (MatchOp.REGEX, MatchOp.NOT_REGEX):
        found = compile_whole(matcher.value).fullmatch(value) is not None
        return found == (matcher.op is MatchOp.REGEX)
    return (value == matcher.value) == (matcher.op is MatchOp.EQUAL)


def _matchers(node: Any) -> list[Matcher]:
    if node.matchers.or_matchers:
        raise UnsupportedError('"or" between label matchers is a VictoriaMetrics extension')
    named = [] if node.name is None else [Matcher("__name__", MatchOp.EQUAL, node.name)]
    return [*named, *(read_matcher(one) for one in node.matchers.matchers)]


class _Describer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._kinds: dict[str, Callable[[Any], Node]] = {
            "ParenExpr": lambda node: {"type": "parenExpr", "expr": self.node(node.expr)},
            "NumberLiteral": lambda node: {"type": "numberLiteral", "val": number_text(node.val)},
            "StringLiteral": lambda node: {"type": "stringLiteral", "val": node.val},
            "UnaryExpr": lambda node: {"type": "unaryExpr", "op": "-", "expr": self.node(node.expr)},
            "VectorSelector": self._vector_selector,
            "MatrixSelector": self._matrix_selector,
            "SubqueryExpr": self._subquery,
            "AggregateExpr": self._aggregation,
            "Call": self._call,
            "BinaryExpr": self._binary,
        }

    def node(self, node: Any) -> Node:
        return self._kinds[type(node).__name__](node)

    def _vector_selector(self, node: Any) -> Node:
        matchers = _matchers(node)
        if node.name is not None:
            matchers.append(matchers.pop(0))  # the name that stands in front is Prometheus' last matcher
        return {
            "type": "vectorSelector",
            "name": node.name or "",
            "matchers": [{"name": one.name, "value": one.value, "type": one.op.value} for one in matchers],
            **self._moved(node),
        }

    def _matrix_selector(self, node: Any) -> Node:
        selector = self._vector_selector(node.vector_selector)
        return {**selector, "type": "matrixSelector", "range": length_ms(node.range)}

    def _subquery(self, node: Any) -> Node:
        return {
            "type": "subquery",
            "expr": self.node(node.expr),
            "range": length_ms(node.range),
            "step": 0 if node.step is None else length_ms(node.step),
            **self._moved(node),
        }

    def _moved(self, node: Any) -> Node:
        at = read_at(node, self._text)
        return {
            "offset": milliseconds(node.offset),
            "timestamp": None if isinstance(at, str) else at,
            "startOrEnd": at if isinstance(at, str) else None,
        }

    def _aggregation(self, node: Any) -> Node:
        modifier = node.modifier
        return {
            "type": "aggregation",
            "op": aggregation_name(node),
            "expr": self.node(node.expr),
            "param": None if node.param is None else self.node(node.param),
            "grouping": [] if modifier is None else list(modifier.labels),
            "without": modifier is not None and modifier.type == promql_parser.AggModifierType.Without,
        }

    def _call(self, node: Any) -> Node:
        function = {
            "name": function_name(node),
            "argTypes": [_TYPE_NAMES[str(one)] for one in node.func.arg_types],
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


def _matching(op: str, modifier: Any) -> Node:
    found = read_matching(modifier)
    card = {"left": "many-to-one", "right": "one-to-many", None: "one-to-one"}[found.many]
    return {
        "card": "many-to-many" if op in SET_OPERATORS else card,
        "labels": list(found.labels),
        "on": found.on,
        "include": list(found.include),
    }


def is_vector(node: Node) -> bool:
    """Whether a node's value is an instant vector."""
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
    """Whether a query reads series at all."""
    if node["type"] in ("vectorSelector", "matrixSelector"):
        return True
    below = [node.get(key) for key in ("expr", "param", "lhs", "rhs")] + node.get("args", [])
    return any(has_selector(one) for one in below if one is not None)
