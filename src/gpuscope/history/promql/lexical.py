"""Prepares a query's text for the parser library, and reads from it what the library drops.

The library is recursive, also in its lexer, and a stack overflow ends the process: so nesting, operators and
escapes are counted here. It does not support underscores between digits, and it takes `\\xff` for a character
where Go has a byte.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.history.promql.syntax import BadQueryError

MAX_QUERY_CHARACTERS = 100_000
MAX_DEPTH = 200
MAX_OPERATORS = 400
MAX_ESCAPES = 4000
_MAX_FINITE_DIGITS = 308

# A quoted string (possibly unfinished) or a comment: its contents are ignored.
OPAQUE = r"""(?P<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`[^`]*`?)|(?P<comment>\#[^\n]*)"""
_NESTING = re.compile(
    rf"{OPAQUE}|(?P<open>[(\[{{])|(?P<close>[)\]}}])|[-+*/%^<>=!]|\b(?:and|or|unless|atan2)\b",
    re.IGNORECASE | re.DOTALL,
)
NUMBER = r"(?P<number>0[xX]_?[0-9a-fA-F]\w*[eE][-+]\d+|0[xX]\w*|\d[\d_.]*[eE][-+]\d[\d_]*|\d[\w.]*)"
_WORDS = re.compile(rf"{OPAQUE}|(?P<name>[A-Za-z_:][\w:]*)|{NUMBER}", re.DOTALL)

_ESCAPES = re.compile(r"(?P<bytes>(?:\\x[0-9a-fA-F]{2}|\\[0-3][0-7]{2})+)|\\.", re.DOTALL)
# The library accepts only valid text: the last private-use characters, which have no meaning, stand for bytes.
_PLACEHOLDERS = {0xDC00 + byte: chr(0x10FF00 + byte) for byte in range(0x80, 0x100)}
_BYTES = {ord(placeholder): chr(surrogate) for surrogate, placeholder in _PLACEHOLDERS.items()}
_FIRST_PLACEHOLDER = chr(0x10FF80)

_OPERATOR_LISTS = frozenset({"on", "ignoring", "group_left", "group_right"})
_SET_OPERATORS = frozenset({"and", "or", "unless"})
_BEFORE_OPERANDS = frozenset({"and", "or", "unless", "atan2", "bool", "group_left", "group_right"})


def operand_follows(before: str) -> bool:
    """Decide by the word before: "" at the start, "list" after a label list that belongs to an operator."""
    return (
        before in ("", "(", ",", "list")
        or before in _BEFORE_OPERANDS
        or not (before[-1].isalnum() or before[-1] in "_:)}]\"'`")
    )


def is_offset_modifier(tokens: Sequence[re.Match[str]], at: int) -> bool:
    """Return whether this token is the keyword `offset` and not a metric name: `offset + (5)` is a sum."""
    if tokens[at].group().lower() != "offset":
        return False
    # A set operator's name may also be a metric name, depending on the word before; `check_size` limits them.
    flips = 0
    while at - flips > 0 and tokens[at - flips - 1].group().lower() in _SET_OPERATORS:
        flips += 1
    at -= flips
    before = tokens[at - 1].group().lower() if at else ""
    is_list = before == ")" and _closes_operator_list(tokens, at - 1)
    return operand_follows("list" if is_list else before) == (flips % 2 == 1)


def _closes_operator_list(tokens: Sequence[re.Match[str]], at: int) -> bool:
    """A label list contains no parentheses, so the next one to the left opens it."""
    for position in range(at - 1, 0, -1):
        if tokens[position].group() in ("(", ")"):
            opens = tokens[position].group() == "("
            return opens and tokens[position - 1].group().lower() in _OPERATOR_LISTS
    return False


def check_size(text: str) -> None:
    """Raise BadQueryError if the text is too long, or nested too deeply for the parser's stack."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise BadQueryError(f"query has {len(text)} characters; at most {MAX_QUERY_CHARACTERS} are allowed")
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


def normalise(text: str) -> str:
    """Replace 1_000 by 1000, comments by spaces, escaped bytes by characters; keep names."""

    def plain(word: re.Match[str]) -> str:
        match word.lastgroup:
            case "comment":
                return " "
            case "number":
                return _plain_number(word.group())
            case "string" if word.group()[0] != "`":
                return _ESCAPES.sub(_decoded, word.group())
            case _:
                return word.group()

    return _WORDS.sub(plain, text)


_UNDERSCORE = re.compile(r"(?<=[0-9])_(?=[0-9])")
_HEX_UNDERSCORE = re.compile(r"(?<=[0-9a-fA-FxX])_(?=[0-9a-fA-F])")


def _plain_number(word: str) -> str:
    """Without underscores, which must stand between digits. A number too large for a float is an error, as in
    Prometheus; the parser library would read it as infinity."""
    is_hex = word[:2] in ("0x", "0X")
    plain = (_HEX_UNDERSCORE if is_hex else _UNDERSCORE).sub("", word)
    # Prometheus has no underscores in durations, and reads 0x1e-5, but not 0xe-5, as one invalid number.
    is_duration = not is_hex and plain[-1] in "smhdwy"
    if "_" in plain or (is_duration and plain != word) or (is_hex and ("-" in plain or "+" in plain)):
        raise BadQueryError(f'parse error: bad number or duration syntax: "{word}"')
    if not is_hex and ("e" in plain or "E" in plain or len(plain) > _MAX_FINITE_DIGITS):
        try:
            is_too_large = math.isinf(float(plain))
        except ValueError:  # a duration, or wrong in another way: the grammar says so
            is_too_large = False
        if is_too_large:
            why = f'strconv.ParseFloat: parsing "{word}": value out of range'
            raise BadQueryError(f"parse error: error parsing number: {why}")
    return plain


def _decoded(escape: re.Match[str]) -> str:
    """Decode escaped bytes that are UTF-8; replace every other byte by a placeholder (see `restore_bytes`)."""
    run = escape.group("bytes")
    if run is None:
        return escape.group()
    codes = bytes(int(digits[1:], 16) if digits[0] == "x" else int(digits, 8) for digits in run.split("\\")[1:])
    # ASCII stays escaped: it may be a quotation mark.
    return "".join(
        f"\\x{ord(character):02x}" if character < "\x80" else character.translate(_PLACEHOLDERS)
        for character in codes.decode("utf-8", "surrogateescape")
    )


def restore_bytes(text: str) -> str:
    """Replace placeholders in a string literal by lone surrogates, which represent bytes that are not UTF-8."""
    return text.translate(_BYTES) if not text.isascii() and max(text) >= _FIRST_PLACEHOLDER else text


# Reads from a query's text what the parser library drops: unary plus signs, and numbers written as durations.
#
# `read_spelling` returns the text with each unary plus replaced by a minus, unless a number follows, so that
# the library keeps a node for it; and, in text order, the signs and numbers that belong to the tree's nodes.

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
    spelling = Spelling()
    pieces, end = [], 0
    for before, token, after in _expression_tokens(text):
        kind, word = token.lastgroup, token.group()
        if kind == "number" or (kind == "name" and word.lower() in ("inf", "nan")):
            spelling.durations.append(_DURATION.fullmatch(word) is not None)
        elif kind == "sign" and operand_follows(before) and not after:
            spelling.signs.append(word)
            pieces += [text[end : token.start()], "-"]
            end = token.end()
    spelling.text = "".join([*pieces, text[end:]])
    return spelling


def _expression_tokens(text: str) -> list[tuple[str, re.Match[str], bool]]:
    """Return the tokens outside brackets and label lists, each with the word before it and, for a sign, whether
    only signs and a number follow."""
    tokens = [token for token in _TOKEN.finditer(text) if token.lastgroup != "comment"]
    plain_tokens: list[tuple[str, re.Match[str], bool]] = []
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
            plain_tokens.append((before.lower(), token, _leads_to_a_number(tokens, position)))
            before = word
    return plain_tokens


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
    tokens = [token for token in _LOOSE_TOKEN.finditer(text) if not token[0].isspace() and token[0][0] != "#"]
    wrong = bisect_left(tokens, True, key=lambda token: not _can_go_on(text[: token.end()], is_query))
    if wrong == len(tokens):
        return f"{_place(text, len(text))}: parse error: unexpected end of input"
    token = tokens[wrong]
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
    open_ones: list[str] = []
    for token in _LOOSE_TOKEN.findall(text):
        if token in _CLOSING:
            open_ones.append(token)
        elif token in _CLOSING.values() and open_ones:
            open_ones.pop()
    return open_ones


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{line}:{position - text.rfind(chr(10), 0, position)}"
