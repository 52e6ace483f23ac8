"""Formats a query as Prometheus' `format_query` does: on one line if it fits, else on several.

Parentheses are kept; comments are dropped. The result parses to the same tree, also in two cases where
Prometheus 3.5 loses information: quoted label names after `on` and `ignoring`, and `group_left` after an empty
`ignoring ()`.
"""

from __future__ import annotations

import re

from gpuscope.base.time_text import duration_text
from gpuscope.history.promql.ast_json import Node, describe
from gpuscope.history.promql.labels import METRIC_NAME, quote
from gpuscope.history.promql.syntax import BadQueryError

MAX_BYTES_IN_A_LINE = 100

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


def format_query(text: str) -> str:
    """Return the canonical form of a query; raises `BadQueryError` if it is invalid."""
    try:
        return _lines(describe(text, durations=True), 0)
    except RecursionError as error:
        raise BadQueryError("the query is nested too deeply") from error


def _lines(node: Node, level: int) -> str:
    """Format on one line if it fits, else one part per line. The indentation does not count."""
    flat, indent = to_text(node), "  " * level
    kind = node["type"]
    if kind == "unaryExpr":
        return f"{indent}{node['op']}{_lines(node['expr'], level).strip()}"
    if len(flat.encode()) <= MAX_BYTES_IN_A_LINE:
        return flat if kind == "subquery" else indent + flat  # Prometheus does not indent a subquery that fits
    match kind:
        case "binaryExpr":
            left, right = _lines(node["lhs"], level + 1), _lines(node["rhs"], level + 1)
            return f"{left}\n{indent}{_operator(node)}\n{right}"
        case "aggregation":
            parts = [node["expr"]] if node["param"] is None else [node["param"], node["expr"]]
            return _wrapped(f"{node['op']}{_grouping(node)}", parts, level)
        case "call" if node["args"]:
            return _wrapped(node["func"]["name"], node["args"], level)
        case "parenExpr":
            return _wrapped("", [node["expr"]], level)
        case "subquery":
            return _lines(node["expr"], level) + _subquery_range(node)
        case _:
            return indent + flat


def _wrapped(head: str, parts: list[Node], level: int) -> str:
    indent = "  " * level
    inner = ",\n".join(_lines(part, level + 1) for part in parts)
    return f"{indent}{head}(\n{inner}\n{indent})"


def to_text(node: Node) -> str:
    """Format the tree on one line."""
    match node["type"]:
        case "numberLiteral":
            return str(node["val"])
        case "stringLiteral":
            return quote(node["val"])
        case "parenExpr":
            return f"({to_text(node['expr'])})"
        case "unaryExpr":
            return f"{node['op']}{to_text(node['expr'])}"
        case "vectorSelector":
            return _selector(node) + _modifiers(node)
        case "matrixSelector":
            return f"{_selector(node)}[{_duration(node, 'range')}]{_modifiers(node)}"
        case "subquery":
            return to_text(node["expr"]) + _subquery_range(node)
        case "binaryExpr":
            return f"{to_text(node['lhs'])} {_operator(node)} {to_text(node['rhs'])}"
        case "aggregation":
            param = "" if node["param"] is None else f"{to_text(node['param'])}, "
            return f"{node['op']}{_grouping(node)}({param}{to_text(node['expr'])})"
        case _:
            return f"{node['func']['name']}({', '.join(map(to_text, node['args']))})"


def _subquery_range(node: Node) -> str:
    step = _duration(node, "step") if node["step"] or "stepExpr" in node else ""
    return f"[{_duration(node, 'range')}:{step}]{_modifiers(node)}"


def _duration(node: Node, key: str) -> str:
    expr = node.get(f"{key}Expr")
    if expr is not None:
        return _duration_expr(expr)
    return f"{'-' if node[key] < 0 else ''}{duration_text(abs(node[key]))}"


def _duration_expr(node: Node) -> str:
    if node["type"] == "numberLiteral":
        seconds = float(node["val"])
        return _duration({"of": round(seconds * 1000)}, "of") if node["duration"] else node["val"]
    op, left, right = node["op"], node["lhs"], node["rhs"]
    if op in ("step", "range"):
        text = f"{op}()"
    elif left is None:
        text = f"{op if op == '-' else ''}{_duration_expr(right)}"
    elif op in ("min_of", "max_of"):
        text = f"{op}({_duration_expr(left)}, {_duration_expr(right)})"
    else:
        text = f"{_duration_expr(left)} {op} {_duration_expr(right)}"
    return f"({text})" if node["wrapped"] else text


def _operator(node: Node) -> str:
    words = [node["op"]]
    if node["bool"]:
        words.append("bool")
    matching = node["matching"]
    if matching is not None:
        sided = matching["card"] in ("many-to-one", "one-to-many")
        if matching["on"] or matching["labels"] or (sided and matching["include"]):
            words.append(f"{'on' if matching['on'] else 'ignoring'} ({_names(matching['labels'])})")
            if sided:
                side = "left" if matching["card"] == "many-to-one" else "right"
                words.append(f"group_{side} ({_names(matching['include'])})")
    return " ".join(words)


def _grouping(node: Node) -> str:
    if node["without"]:
        return f" without ({_names(node['grouping'])}) "
    return f" by ({_names(node['grouping'])}) " if node["grouping"] else ""


def _names(names: list[str]) -> str:
    return ", ".join(name if _PLAIN_METRIC.fullmatch(name) else quote(name) for name in names)


def _label_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote(name)


def _selector(node: Node) -> str:
    name = node["name"]
    conditions = sorted(
        f"{_label_name(matcher['name'])}{matcher['type']}{quote(matcher['value'])}"
        for matcher in node["matchers"]
        if not (name and matcher["name"] == METRIC_NAME and matcher["type"] == "=" and matcher["value"] == name)
    )
    return f"{name}{{{','.join(conditions)}}}" if conditions else name


def _modifiers(node: Node) -> str:
    text = ""
    if node["startOrEnd"]:
        text += f" @ {node['startOrEnd']}()"
    elif node["timestamp"] is not None:
        text += f" @ {node['timestamp'] / 1000:.3f}"
    if node["offset"] or "offsetExpr" in node:
        text += f" offset {_duration(node, 'offset')}"
    return text
