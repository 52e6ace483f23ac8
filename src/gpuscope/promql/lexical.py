"""What has to be done to a query's text before the grammar sees it.

The parser library is recursive, in its lexer too, and its stack overflow ends the process: so nesting,
operators and escapes are counted here. And it does not know the underscores that may stand between digits.
"""

from __future__ import annotations

import re

from gpuscope.promql.errors import BadQueryError

MAX_QUERY_CHARACTERS = 100_000
MAX_DEPTH = 200
MAX_OPERATORS = 400
MAX_ESCAPES = 4000

# A quoted string (perhaps unfinished) or a comment: what is inside means nothing.
OPAQUE = r"""(?P<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`[^`]*`?)|(?P<comment>\#[^\n]*)"""
_NESTING = re.compile(
    rf"{OPAQUE}|(?P<open>[(\[{{])|(?P<close>[)\]}}])|[-+*/%^<>=!]|\b(?:and|or|unless|atan2)\b",
    re.IGNORECASE | re.DOTALL,
)
_WORDS = re.compile(rf"{OPAQUE}|(?P<name>[A-Za-z_:][\w:]*)|(?P<number>\d[\w.]*)", re.DOTALL)


def check_size(text: str) -> None:
    """Refuse a text that is too long, or nested deeper than the parser's stack."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise BadQueryError(f"query has {len(text)} characters; at most {MAX_QUERY_CHARACTERS} are read")
    depth = operators = escapes = 0
    for token in _NESTING.finditer(text):
        match token.lastgroup:
            case "string":
                escapes += token.group().count("\\")
            case "comment":
                pass
            case "open":
                depth += 1
            case "close":
                depth -= 1
            case _:
                operators += 1
        if depth > MAX_DEPTH or operators > MAX_OPERATORS:
            raise BadQueryError("parse error: the query is nested too deeply")
        if escapes > MAX_ESCAPES:
            raise BadQueryError(f"parse error: more than {MAX_ESCAPES} escaped characters")


def simplified(text: str) -> str:
    """1_000 as 1000, comments as blanks; names and strings stay as they are."""

    def plain(word: re.Match[str]) -> str:
        if word.lastgroup == "comment":
            return " "
        return word.group().replace("_", "") if word.lastgroup == "number" else word.group()

    return _WORDS.sub(plain, text)
