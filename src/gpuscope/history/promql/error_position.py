"""Where a query stops being PromQL. Input: a query that the grammar refuses; output: line, column and token.

The parser library says only that the query is invalid. A beginning of a query is possible if some ending makes
it a query; the first token with which it is not is the wrong one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

MAX_CHARACTERS: Final = 4_000
"""Longer queries are not searched: each search parses the beginning some dozens of times."""
_TOKEN = re.compile(
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
    found = [one for one in _TOKEN.finditer(text) if not one[0].isspace() and one[0][0] != "#"]
    wrong = bisect_left(found, True, key=lambda one: not _can_go_on(text[: one.end()], is_query))
    if wrong == len(found):
        return f"{_place(text, len(text))}: parse error: unexpected end of input"
    token = found[wrong]
    return f'{_place(text, token.start())}: parse error: unexpected "{token[0]}"'


def _can_go_on(beginning: str, is_query: Callable[[str], bool]) -> bool:
    brackets = _open_brackets(beginning)
    closing = "".join(_CLOSING[one] for one in reversed(brackets))
    for ending in _ENDINGS[brackets[-1] if brackets else ""]:
        # An ending that closes the innermost bracket itself starts with the text inside it.
        rest = closing[1:] if ")" in ending and "(" in brackets[-1:] and not ending.startswith("(") else closing
        if is_query(beginning + ending + rest):
            return True
    return False


def _open_brackets(text: str) -> list[str]:
    found: list[str] = []
    for token in _TOKEN.findall(text):
        if token in _CLOSING:
            found.append(token)
        elif token in _CLOSING.values() and found:
            found.pop()
    return found


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{line}:{position - text.rfind(chr(10), 0, position)}"
