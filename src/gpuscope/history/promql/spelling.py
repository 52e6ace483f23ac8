"""Reads from a query's text what the parser library drops: unary plus signs, and numbers written as durations.

`read_spelling` returns the text with each unary plus replaced by a minus, unless a number follows, so that the
library keeps a node for it; and, in text order, the signs and numbers that belong to the tree's nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
