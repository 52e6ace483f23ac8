"""Reads from a query's text what the parser library drops: unary plus signs, and numbers written as durations.

`read_spelling` returns the text with each unary plus replaced by a minus, unless a number follows, so that the
library keeps a node for it; and, in text order, the signs and numbers that belong to the tree's nodes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpuscope.history.promql.lexical import OPAQUE, is_offset_modifier, operand_follows

_TOKEN = re.compile(
    rf"{OPAQUE}|(?P<name>[A-Za-z_:][\w:]*)|(?P<number>0[xX][0-9a-fA-F]+|(?:\d[\d.]*|\.\d+)(?:[eE][-+]?\d+)?(?:[a-z]\w*)?)"
    r"|(?P<sign>[-+])|(?P<other>[^\s])",
    re.DOTALL,
)
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})


@dataclass(slots=True)
class Spelling:
    text: str = ""
    signs: list[str] = field(default_factory=list)
    durations: list[bool] = field(default_factory=list)


def read_spelling(text: str) -> Spelling:
    found = Spelling()
    pieces, end = [], 0
    for before, token, after in _expression_tokens(text):
        kind, word = token.lastgroup, token.group()
        if kind == "number" or (kind == "name" and word.lower() in ("inf", "nan")):
            found.durations.append(_DURATION.fullmatch(word) is not None)
        elif kind == "sign" and operand_follows(before) and not after:
            found.signs.append(word)
            pieces += [text[end : token.start()], "-"]
            end = token.end()
    found.text = "".join([*pieces, text[end:]])
    return found


def _expression_tokens(text: str) -> list[tuple[str, re.Match[str], bool]]:
    """Return the tokens outside brackets and label lists, each with the word before it and, for a sign, whether
    only signs and a number follow."""
    tokens = [token for token in _TOKEN.finditer(text) if token.lastgroup != "comment"]
    found: list[tuple[str, re.Match[str], bool]] = []
    before, closing, closed = "", "", ""
    time_follows = False
    for position, token in enumerate(tokens):
        word = token.group()
        if closing:
            if word == closing:
                before, closing = closed, ""
            continue
        if word in ("[", "{"):
            closing = closed = "]" if word == "[" else "}"
        elif word == "(" and before.lower() in _LISTS:
            # An operand follows a label list of an operator, but not one of an aggregation.
            closing, closed = ")", ")" if before.lower() in ("by", "without") else "list"
        elif time_follows:
            # With any sign.
            time_follows, before = token.lastgroup == "sign", "time1"
        else:
            time_follows = word == "@" or is_offset_modifier(tokens, position)
            found.append((before.lower(), token, _leads_to_a_number(tokens, position)))
            before = word
    return found


def _leads_to_a_number(tokens: list[re.Match[str]], position: int) -> bool:
    for token in tokens[position:]:
        if token.lastgroup != "sign":
            return token.lastgroup == "number" or token.group().lower() in ("inf", "nan")
    return False


# Where a query stops being PromQL. Input: a query that the grammar refuses; output: line, column and token.
#
# The parser library says only that the query is invalid. A beginning of a query is possible if some ending
# makes it a query; the first token with which it is not is the wrong one.

MAX_CHARACTERS: Final = 4_000
"""Longer queries are not searched: each search parses the beginning some dozens of times."""
_LOOSE_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`|[0-9.][\w.]*|[\w:]+|=~|!~|[=!<>]=|.""",
    re.DOTALL,
)
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}
_ENDINGS: Final = {
    "": ("", " up", "(up)", " (a) up", "(a)(up)", " 5m", " 1"),
    "(": ("", "up", " up", "(up)", " 1", ")(up)", "a)(up)", ") up", "a) up", " 5m", "(a) up"),
    "{": ("", "a='b'", "='b'", "'b'"),
    "[": ("5m", "", ":", "m", "1m"),
}
"""By the innermost open bracket: texts after which the brackets can be closed."""


def describe_error(text: str, is_query: Callable[[str], bool]) -> str:
    """`1:5: parse error: unexpected "bar"`."""
    if len(text) > MAX_CHARACTERS:
        return "parse error: invalid promql query"
    found = [token for token in _LOOSE_TOKEN.finditer(text) if not token[0].isspace() and token[0][0] != "#"]
    wrong = bisect_left(found, True, key=lambda one: not _can_go_on(text[: one.end()], is_query))
    if wrong == len(found):
        return f"{_place(text, len(text))}: parse error: unexpected end of input"
    token = found[wrong]
    return f'{_place(text, token.start())}: parse error: unexpected "{token[0]}"'


def _can_go_on(beginning: str, is_query: Callable[[str], bool]) -> bool:
    brackets = _open_brackets(beginning)
    closing = "".join(_CLOSING[bracket] for bracket in reversed(brackets))
    for ending in _ENDINGS[brackets[-1] if brackets else ""]:
        # An ending that closes the innermost bracket itself starts with the text inside it.
        rest = closing[1:] if ")" in ending and "(" in brackets[-1:] and not ending.startswith("(") else closing
        if is_query(beginning + ending + rest):
            return True
    return False


def _open_brackets(text: str) -> list[str]:
    found: list[str] = []
    for token in _LOOSE_TOKEN.findall(text):
        if token in _CLOSING:
            found.append(token)
        elif token in _CLOSING.values() and found:
            found.pop()
    return found


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{line}:{position - text.rfind(chr(10), 0, position)}"
