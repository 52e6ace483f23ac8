"""A query in its canonical form: one way to write each tree, broken into lines where it is long.

Parentheses are those that precedence needs, so some of the author's may be gone; comments always are. What
comes out parses to the tree it came from.
"""

from __future__ import annotations

import re

from gpuscope.promql.errors import BadQueryError
from gpuscope.promql.labels import METRIC_NAME, quote
from gpuscope.promql.numeric import number_text
from gpuscope.promql.parse import parse
from gpuscope.promql.syntax import (
    COMPARISONS,
    Aggregate,
    At,
    Binary,
    Call,
    Expr,
    Matching,
    MatrixSelector,
    Negation,
    Number,
    String,
    Subquery,
    VectorSelector,
)
from gpuscope.store.series import MatchOp

MAX_WIDTH = 100

_UNITS = (("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_PRECEDENCE = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys("+-", 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_WORD_OPERATORS = [op for op in _PRECEDENCE if op.isalnum()]
_UNARY = _PRECEDENCE["*"]
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
# Read as numbers or operators where a metric's name could stand.
_RESERVED = frozenset(
    {"inf", "nan", "and", "or", "unless", "atan2", "bool", "on", "ignoring", "by", "without", "offset"}
)


def format_query(text: str) -> str:
    """The canonical form of a query; `BadQueryError` where it has none."""
    try:
        return _lines(parse(text), "")
    except RecursionError as error:
        raise BadQueryError("the query is nested too deeply") from error


def _lines(expr: Expr, indent: str) -> str:
    """On one line if it fits, else its parts indented below each other."""
    flat = indent + to_text(expr)
    if len(flat) <= MAX_WIDTH:
        return flat
    deeper = indent + "  "
    match expr:
        case Binary():
            operator = _operator(expr)
            left, right = (
                _operand_lines(expr, expr.left, deeper),
                _operand_lines(expr, expr.right, deeper, right=True),
            )
            return f"{left}\n{indent}{operator}\n{right}"
        case Aggregate():
            parts = [expr.expr] if expr.param is None else [expr.param, expr.expr]
            return _wrapped(
                f"{indent}{expr.op}{_grouping(expr)}(", [_lines(part, deeper) for part in parts], indent
            )
        case Call() if expr.args:
            return _wrapped(f"{indent}{expr.name}(", [_lines(arg, deeper) for arg in expr.args], indent)
        case _:
            return flat


def _operand_lines(parent: Binary, operand: Expr, indent: str, *, right: bool = False) -> str:
    if not _needs_parentheses(parent.op, operand, right=right):
        return _lines(operand, indent)
    return f"{indent}(\n{_lines(operand, indent + '  ')}\n{indent})"


def _wrapped(head: str, parts: list[str], indent: str) -> str:
    return head + "\n" + ",\n".join(parts) + f"\n{indent})"


def to_text(expr: Expr) -> str:
    """The tree on one line."""
    match expr:
        case Number():
            return number_text(expr.value) if abs(expr.value) < 1e15 else repr(expr.value).replace("inf", "Inf")
        case String():
            return quote(expr.value)
        case VectorSelector():
            return _selector(expr) + _modifiers(expr.offset_ms, expr.at)
        case MatrixSelector():
            vector = expr.vector
            return f"{_selector(vector)}[{duration(expr.range_ms)}]{_modifiers(vector.offset_ms, vector.at)}"
        case Subquery():
            inner = to_text(expr.expr)
            if isinstance(expr.expr, Binary | Negation):
                inner = f"({inner})"
            step = "" if expr.step_ms is None else duration(expr.step_ms)
            return f"{inner}[{duration(expr.range_ms)}:{step}]{_modifiers(expr.offset_ms, expr.at)}"
        case Negation():
            operand = expr.expr
            loose = isinstance(operand, Binary) and _PRECEDENCE[operand.op] <= _UNARY
            return f"-({to_text(operand)})" if loose else f"-{to_text(operand)}"
        case Binary():
            left, right = _operand(expr, expr.left), _operand(expr, expr.right, right=True)
            return f"{left} {_operator(expr)} {right}"
        case Aggregate():
            param = "" if expr.param is None else f"{to_text(expr.param)}, "
            return f"{expr.op}{_grouping(expr)}({param}{to_text(expr.expr)})"
        case Call():
            return f"{expr.name}({', '.join(map(to_text, expr.args))})"


def _operand(parent: Binary, operand: Expr, *, right: bool = False) -> str:
    text = to_text(operand)
    return f"({text})" if _needs_parentheses(parent.op, operand, right=right) else text


def _needs_parentheses(op: str, operand: Expr, *, right: bool) -> bool:
    if isinstance(operand, Number):
        # -2 ^ 2 is -(2 ^ 2).
        return op == "^" and not right and str(operand.value).startswith("-")
    if isinstance(operand, Negation):
        return op == "^" and not right
    if not isinstance(operand, Binary):
        return False
    outer, inner = _PRECEDENCE[op], _PRECEDENCE[operand.op]
    if inner != outer:
        return inner < outer
    # Only ^ groups to the right.
    return right != (op == "^")


def _operator(expr: Binary) -> str:
    words = [expr.op]
    if expr.returns_bool:
        words.append("bool")
    words += _matching(expr.matching)
    return " ".join(words)


def _matching(matching: Matching) -> list[str]:
    words = []
    if matching.on or matching.labels or matching.many:
        words.append(f"{'on' if matching.on else 'ignoring'} ({_names(matching.labels)})")
    if matching.many:
        words.append(f"group_{matching.many} ({_names(matching.include)})")
    return words


def _grouping(expr: Aggregate) -> str:
    if expr.without:
        return f" without ({_names(expr.grouping)}) "
    return f" by ({_names(expr.grouping)}) " if expr.grouping else ""


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(_label_name(name) for name in names)


def _label_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote(name)


def _selector(selector: VectorSelector) -> str:
    matchers = list(selector.matchers)
    name = ""
    if matchers and matchers[0].name == METRIC_NAME and matchers[0].op is MatchOp.EQUAL:
        metric = matchers[0].value
        if _PLAIN_METRIC.fullmatch(metric) and metric.lower() not in _RESERVED:
            name = metric
            del matchers[0]
    inner = ",".join(f"{_label_name(m.name)}{m.op.value}{quote(m.value)}" for m in matchers)
    return f"{name}{{{inner}}}" if inner or not name else name


def _modifiers(offset_ms: int, at: At | None) -> str:
    text = ""
    if at is not None:
        text += f" @ {at}()" if isinstance(at, str) else f" @ {at / 1000:.3f}"
    if offset_ms:
        text += f" offset {'-' if offset_ms < 0 else ''}{duration(abs(offset_ms))}"
    return text


def duration(milliseconds: int) -> str:
    text = ""
    for unit, length in _UNITS:
        count, milliseconds = divmod(milliseconds, length)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
