"""Text of matchers: `severity="critical"`, `{a=b, "c d"=~"e.*"}`.

Alertmanager has two parsers. The UTF-8 one is tried first; what only the classic one accepts is read by that,
and where both accept a text but differ, the classic one wins. ValueError says what is wrong, with the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpuscope.judge.notify.alert_matchers import GO_WHITESPACE, AlertMatcher, is_reserved
from gpuscope.model.series import MatchOp

T = TypeVar("T")
MAX_MATCHER_CHARACTERS = 64 << 10
_OPERATORS = ("!=", "!~", "=~", "=")
_CLASSIC = re.compile(r"[\t\n\f\r ]*([a-zA-Z_:][a-zA-Z0-9_:]*)[\t\n\f\r ]*(=~|=|!=|!~)[\t\n\f\r ]*")
"""All but the value. With `(.*?)[ ]*` for the value, spaces would take time with the square of their number."""
_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
}
_ESCAPE = re.compile(
    rf"""\\(?:(?P<simple>[{re.escape("".join(_SIMPLE_ESCAPES))}])|(?P<octal>[0-3][0-7]{{2}})"""
    r"""|x(?P<byte>[0-9a-fA-F]{2})|(?P<character>u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))"""
)


def parse_matcher(text: str) -> AlertMatcher:
    """One matcher, without braces."""
    if text.startswith("{") or text.endswith("}"):
        raise ValueError(f"unexpected open or close brace: {text[:200]}")
    return _parse_both(text, _parse_one, _parse_classic)


def parse_matchers(text: str) -> tuple[AlertMatcher, ...]:
    """Matchers with commas between them; braces may be around them."""
    return _parse_both(text, lambda one: _MatcherParser(one).parse(), _parse_classic_list)


def _parse_both(text: str, modern: Callable[[str], T], classic: Callable[[str], T]) -> T:
    if len(text) > MAX_MATCHER_CHARACTERS:
        raise ValueError(f"longer than {MAX_MATCHER_CHARACTERS} characters")
    try:
        found = modern(text)
    except ValueError:
        return classic(text)  # its error is the one that Alertmanager answers with
    try:
        return classic(text)
    except ValueError:
        return found


def _parse_one(text: str) -> AlertMatcher:
    found = _MatcherParser(text).parse()
    if len(found) != 1:
        raise ValueError("no matchers" if not found else f"expected 1 matcher, found {len(found)}")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


class _MatcherParser:
    """The UTF-8 parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> tuple[AlertMatcher, ...]:
        token = self._peek()
        if token.kind == "end":
            return ()
        has_brace = token.kind == "{"
        if has_brace:
            self._next()
        found: list[AlertMatcher] = []
        while self._peek().kind not in ("}", "end"):
            found.append(self._matcher())
            after = self._peek()
            if after.kind == ",":
                self._next()
            elif after.kind not in ("}", "end"):
                raise self._wrong(after, "expected a comma or close brace")
        closing = self._next()
        if has_brace and closing.kind != "}":
            raise ValueError(f"0:{self._at}: end of input: expected close brace")
        if not has_brace and closing.kind == "}":
            raise ValueError(f"0:{self._at}: }}: expected opening brace")
        if closing.kind == "}" and self._peek().kind != "end":
            raise self._wrong(self._peek(), "expected end of input")
        return tuple(found)

    def _matcher(self) -> AlertMatcher:
        name = self._expect(("quoted", "unquoted"), "expected label name")
        operator = self._expect(("operator",), "expected an operator such as '=', '!=', '=~' or '!~'")
        value = self._expect(("quoted", "unquoted"), "expected label value")
        return AlertMatcher(_content(name), MatchOp(operator.text), _content(value))

    def _expect(self, kinds: tuple[str, ...], wanted: str) -> _Token:
        token = self._next()
        if token.kind not in kinds:
            raise self._wrong(token, wanted)
        return token

    def _wrong(self, token: _Token, wanted: str) -> ValueError:
        if token.kind == "end":
            return ValueError(f"end of input: {wanted}")
        return ValueError(f"{token.start}:{token.end}: unexpected {token.text[:100]}: {wanted}")

    def _peek(self) -> _Token:
        before = self._at
        token = self._next()
        self._at = before
        return token

    def _next(self) -> _Token:
        text = self._text
        while self._at < len(text) and text[self._at] in GO_WHITESPACE:
            self._at += 1
        start = self._at
        if start == len(text):
            return _Token("end", "", start, start)
        character = text[start]
        if character in "{},":
            kind, end = character, start + 1
        elif character in "=!":
            operator = next((one for one in _OPERATORS if text.startswith(one, start)), None)
            if operator is None:
                raise ValueError(f"{start}:{start + 1}: !: expected one of '=~'")
            kind, end = "operator", start + len(operator)
        elif character == '"':
            kind, end = "quoted", _end_of_quoted(text, start)
        elif is_reserved(character):
            raise ValueError(f"{start}:{start + 1}: {character}: invalid input")
        else:
            kind, end = "unquoted", start + 1
            while end < len(text) and not is_reserved(text[end]):
                end += 1
        self._at = end
        return _Token(kind, text[start:end], start, end)


def _end_of_quoted(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise ValueError(f'{start}:{len(text)}: {text[start : start + 100]}: missing end "')
    return at + 1


def _content(token: _Token) -> str:
    if token.kind == "unquoted":
        return token.text
    return _unquote(token.text[1:-1], token)


def _unquote(text: str, token: _Token) -> str:
    """Escapes of a Go string literal. `\\x` and octal escapes are bytes of UTF-8, so bytes are put together."""
    found = bytearray()
    at = 0
    try:
        while at < len(text):
            escape = _ESCAPE.match(text, at)
            if escape is None and text[at] in "\\\n":
                raise ValueError("no escape, or the end of a line")
            found += text[at].encode() if escape is None else _escaped(escape)
            at = at + 1 if escape is None else escape.end()
        return found.decode()
    except (ValueError, OverflowError):  # also for bytes that are not UTF-8, and numbers beyond Unicode
        raise ValueError(f"{token.start}:{token.end}: {token.text[:100]}: invalid input") from None


def _escaped(escape: re.Match[str]) -> bytes:
    """The bytes that an escape stands for; ValueError for a number that is no character."""
    if escape["simple"]:
        return _SIMPLE_ESCAPES[escape["simple"]].encode()
    if escape["octal"]:
        return bytes([int(escape["octal"], 8)])
    if escape["byte"]:
        return bytes([int(escape["byte"], 16)])
    return chr(int(escape["character"][1:], 16)).encode()  # a surrogate cannot be encoded


def _parse_classic_list(text: str) -> tuple[AlertMatcher, ...]:
    text = text.removeprefix("{").removesuffix("}")
    parts: list[str] = []
    part: list[str] = []
    in_quotes = escaped = False
    for character in text:
        if character == "," and not in_quotes:
            parts.append("".join(part))
            part = []
            continue
        if character == '"':
            in_quotes, escaped = (in_quotes, False) if escaped else (not in_quotes, escaped)
        else:
            escaped = character == "\\" and not escaped
        part.append(character)
    if last := "".join(part).strip(GO_WHITESPACE):
        parts.append(last)
    return tuple(map(_parse_classic, parts))


def _parse_classic(text: str) -> AlertMatcher:
    match = _CLASSIC.match(text)
    if match is None:
        raise ValueError(f"bad matcher format: {text[:200]}")
    raw = text[match.end() :].rstrip("\t\n\f\r ")
    unescaped_quote = ValueError(f"matcher value contains unescaped double quote: {raw[:200]}")
    is_quoted = raw.startswith('"')
    body = raw[1:] if is_quoted else raw
    value: list[str] = []
    at = 0
    while at < len(body):
        character, follower = body[at], body[at + 1 : at + 2]
        if character == "\\" and follower:
            value.append({"n": "\n", '"': '"', "\\": "\\"}.get(follower, "\\" + follower))
            at += 2
            continue
        if character == '"':
            if not is_quoted or at < len(body) - 1:
                raise unescaped_quote
            is_quoted = False
        else:
            value.append(character)
        at += 1
    if is_quoted:
        raise unescaped_quote
    return AlertMatcher(match[1], MatchOp(match[2]), "".join(value))
