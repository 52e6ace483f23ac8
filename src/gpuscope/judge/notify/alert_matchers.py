"""Label matchers of routes, inhibition rules, silences and API filters, and their text: `a="b"`, `{c=~"d.*"}`.

A missing label has the value "". A regular expression is RE2's and must match the whole value; its dot does not
match a line break, other than in PromQL. Alertmanager has two parsers: the UTF-8 one is tried first, what only
the classic one accepts is read by that, and where both accept a text but differ, the classic one wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.history.promql.labels import quote
from gpuscope.model.series import MatchOp

MIN_REGEX_BYTES = 256 << 10
REGEX_BYTES_PER_CHARACTER = 64
RESERVED = "{}!=~,\\\"'`"
_OP_ORDER = {
    op: at for at, op in enumerate((MatchOp.EQUAL, MatchOp.NOT_EQUAL, MatchOp.REGEX, MatchOp.NOT_REGEX))
}
_OPENMETRICS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


GO_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""As Go counts it: Python's `isspace` also has \x1c to \x1f."""
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


def is_reserved(character: str) -> bool:
    """Whitespace, or a character of the syntax."""
    return character in RESERVED or character in GO_WHITESPACE


@dataclass(frozen=True, slots=True)
class AlertMatcher:
    """Raises ValueError for a regular expression that RE2 refuses."""

    name: str
    op: MatchOp
    value: str
    _regex: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.op in (MatchOp.REGEX, MatchOp.NOT_REGEX):
            object.__setattr__(self, "_regex", _compile(self.value))

    @property
    def is_regex(self) -> bool:
        return self._regex is not None

    @property
    def is_equal(self) -> bool:
        return self.op in (MatchOp.EQUAL, MatchOp.REGEX)

    def matches_value(self, value: str) -> bool:
        if self._regex is None:
            return (value == self.value) is self.is_equal
        try:
            is_match = self._regex.fullmatch(value) is not None
        except UnicodeEncodeError:  # bytes that are not UTF-8 match no pattern
            is_match = False
        return is_match is self.is_equal

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.matches_value(labels.get(self.name, ""))

    def __str__(self) -> str:
        """As Alertmanager prints it, because it is part of a group's key."""
        if any(map(is_reserved, self.name)):
            return f"{quote(self.name)}{self.op}{quote(self.value)}"
        return f'{self.name}{self.op}"{self.value.translate(_OPENMETRICS)}"'


def _compile(pattern: str) -> Any:
    # Silences stay for days and there are many: RE2 would keep up to 8 MiB of states for each.
    memory = MIN_REGEX_BYTES + REGEX_BYTES_PER_CHARACTER * len(pattern)
    try:
        return compile_anchored(pattern, captures=False, dot_matches_newline=False, max_memory_bytes=memory)
    except ValueError as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def match_all(matchers: Iterable[AlertMatcher], labels: Mapping[str, str]) -> bool:
    return all(matcher.matches(labels) for matcher in matchers)


def sorted_matchers(matchers: Iterable[AlertMatcher]) -> tuple[AlertMatcher, ...]:
    return tuple(sorted(matchers, key=lambda matcher: (matcher.name, matcher.value, _OP_ORDER[matcher.op])))


def matchers_text(matchers: Iterable[AlertMatcher]) -> str:
    return "{" + ",".join(map(str, matchers)) + "}"


def parse_matcher(text: str) -> AlertMatcher:
    """One matcher, without braces."""
    if text.startswith("{") or text.endswith("}"):
        raise ValueError(f"unexpected open or close brace: {text[:200]}")
    return _parse_both(text, _parse_one, _parse_classic)


def parse_matchers(text: str) -> tuple[AlertMatcher, ...]:
    """Matchers with commas between them; braces may be around them."""
    return _parse_both(text, lambda part: _MatcherParser(part).parse(), _parse_classic_list)


def _parse_both(text: str, modern: Callable[[str], T], classic: Callable[[str], T]) -> T:
    if len(text) > MAX_MATCHER_CHARACTERS:
        raise ValueError(f"longer than {MAX_MATCHER_CHARACTERS} characters")
    try:
        parsed = modern(text)
    except ValueError:
        return classic(text)  # its error is the one that Alertmanager answers with
    try:
        return classic(text)
    except ValueError:
        return parsed


def _parse_one(text: str) -> AlertMatcher:
    matchers = _MatcherParser(text).parse()
    if len(matchers) != 1:
        raise ValueError("no matchers" if not matchers else f"expected 1 matcher, found {len(matchers)}")
    return matchers[0]


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
        matchers: list[AlertMatcher] = []
        while self._peek().kind not in ("}", "end"):
            matchers.append(self._matcher())
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
        return tuple(matchers)

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
            operator = next((operator for operator in _OPERATORS if text.startswith(operator, start)), None)
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
    data = bytearray()
    at = 0
    try:
        while at < len(text):
            escape = _ESCAPE.match(text, at)
            if escape is None and text[at] in "\\\n":
                raise ValueError("no escape, or the end of a line")
            data += text[at].encode() if escape is None else _escaped(escape)
            at = at + 1 if escape is None else escape.end()
        return data.decode()
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
