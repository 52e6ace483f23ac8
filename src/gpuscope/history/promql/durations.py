"""Duration expressions: `[5m + 1m]`, `offset (2 * 2)`, `[step()]`, as in Prometheus since 3.14.

The parser library supports only literals there. So each expression is replaced by its value in seconds, which
depends on the query's step and range, before the library parses the text. Text that is not a valid duration
expression is left unchanged, so that the library reports the error. Times of `@` before 1970 are replaced too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuscope.base.time_text import parse_prometheus_duration
from gpuscope.history.promql.lexical import OPAQUE, check_size, is_offset_modifier
from gpuscope.history.promql.syntax import BadQueryError

MAX_SECONDS = 2**63 / 1e9  # the range of Go's time.Duration

DURATION_LITERAL = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_TOKEN = re.compile(
    rf"{OPAQUE}|(?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![\w.]))"
    r"|(?P<number>0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[A-Za-z_][\w:]*)|(?P<other>\S)",
    re.DOTALL,
)
# A quick test for possible expressions: an operator or a parenthesis in brackets, or after `offset`.
_MAYBE_EXPRESSION = re.compile(r"\[[^\]]*[-+*/%^(]|\boffset\s*[-+]?\s*(?:\(|[a-z])", re.IGNORECASE)
# Numbers that may be out of range: the library would overflow, or panic and write to stderr.
_MAYBE_OUT_OF_RANGE = re.compile(
    r"(?:\[|:|\boffset\b)\s*[-+]?\s*(?:0x|inf|nan|[\d.]{10}|[\d.]+e)", re.IGNORECASE
)
MAX_CACHED_CHARACTERS = 10_000
"""Longer texts are not cached. Most queries have no duration expression and are repeated."""
_FUNCTIONS_OF_TWO: dict[str, Callable[[float, float], float]] = {
    "min_of": lambda a, b: math.nan if a != a or b != b else min(a, b),
    "max_of": lambda a, b: math.nan if a != a or b != b else max(a, b),
}
_FUNCTIONS = frozenset({"step", "range", *_FUNCTIONS_OF_TWO})


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """The values of `step()` and `range()`; both are 0 in an instant query."""

    step_ms: int = 0
    range_ms: int = 0


INSTANT = QueryTimes()


@dataclass(frozen=True, slots=True)
class DurationLiteral:
    seconds: float
    is_duration: bool  # written as 5m, not as 300


@dataclass(frozen=True, slots=True)
class DurationExpr:
    """`op` is an operator (`-` and `+` without `left` are signs) or a function name."""

    op: str
    left: Duration | None = None
    right: Duration | None = None
    wrapped: bool = False


Duration = DurationLiteral | DurationExpr


@dataclass(frozen=True, slots=True)
class FoundDuration:
    """An expression and its position; an offset may be negative, a range or step must be positive."""

    start: int
    end: int
    expr: Duration
    is_offset: bool


def _has_expression(text: str) -> bool:
    if _MAYBE_EXPRESSION.search(text) is None:
        return False
    check_size(text)
    return next(_find(text), None) is not None


_has_expression_cached = lru_cache(maxsize=512)(_has_expression)


def evaluate_durations(text: str, times: QueryTimes) -> str:
    """Replace every duration expression by a number of seconds."""
    return replace_durations(text, lambda duration: _milliseconds(duration, times))


def replace_durations(text: str, value_ms: Callable[[FoundDuration], int]) -> str:
    has_expression = _has_expression_cached if len(text) <= MAX_CACHED_CHARACTERS else _has_expression
    pieces, end = [], 0
    try:
        if not has_expression(text):
            return text
        for duration in _find(text):
            # With spaces around it: "offset(2)" must not become "offset2".
            pieces += [text[end : duration.start], f" {value_ms(duration) / 1000:.3f} "]
            end = duration.end
    except RecursionError as error:
        raise BadQueryError("parse error: the query is nested too deeply") from error
    return "".join([*pieces, text[end:]])


def check_literals(text: str) -> None:
    """Raise BadQueryError for a range, step or offset that is a single number out of range."""
    if _MAYBE_OUT_OF_RANGE.search(text) is None:
        return
    try:
        for _ in _find(text):
            pass
    except RecursionError as error:
        raise BadQueryError("parse error: the query is nested too deeply") from error


def _milliseconds(duration: FoundDuration, times: QueryTimes) -> int:
    return checked_ms(_evaluate(duration.expr, times), duration)


def checked_ms(seconds: float, duration: FoundDuration) -> int:
    if not math.isfinite(seconds):
        raise BadQueryError("duration is NaN or infinite")
    if seconds <= 0 and not duration.is_offset:
        raise BadQueryError("duration must be greater than 0")
    if abs(seconds) > MAX_SECONDS:
        raise BadQueryError("duration is out of range")
    return int(seconds * 1000)


def _evaluate(expr: Duration, times: QueryTimes) -> float:
    if isinstance(expr, DurationLiteral):
        return expr.seconds
    if expr.op == "step":
        return times.step_ms / 1000
    if expr.op == "range":
        return times.range_ms / 1000
    right = 0.0 if expr.right is None else _evaluate(expr.right, times)
    if expr.left is None:
        return -right if expr.op == "-" else right
    left = _evaluate(expr.left, times)
    if expr.op in _FUNCTIONS_OF_TWO:
        return _FUNCTIONS_OF_TWO[expr.op](left, right)
    return _OPERATORS[expr.op](left, right)


def _divide(a: float, b: float) -> float:
    if b == 0:
        raise BadQueryError("division by zero")
    return a / b


def _modulo(a: float, b: float) -> float:
    if b == 0:
        raise BadQueryError("modulo by zero")
    return math.nan if math.isinf(a) else math.fmod(a, b)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.inf
    except ValueError:  # a fractional power of a negative number, or a negative power of 0
        return math.nan


_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": _modulo,
    "^": _power,
}


class _NoDuration(Exception):
    """Not a duration expression: the library reports the error."""


def _find(text: str) -> Iterator[FoundDuration]:
    tokens = [token for token in _TOKEN.finditer(text) if token.lastgroup != "comment"]
    at = 0
    while at < len(tokens):
        is_offset = is_offset_modifier(tokens, at)
        at += 1
        if not is_offset and tokens[at - 1].group() != "[":
            continue
        reader = _DurationParser(tokens, at)
        try:
            durations = reader.offset() if is_offset else reader.brackets()
        except _NoDuration:
            continue
        yield from durations
        at = reader.at


class _DurationParser:
    """Recursive descent with PromQL's precedence; `check_size` limits the depth."""

    def __init__(self, tokens: list[re.Match[str]], at: int) -> None:
        self._tokens = tokens
        self.at = at

    def brackets(self) -> list[FoundDuration]:
        durations = self._part(self._sum, is_offset=False)
        if self._take(":") and self._next() != "]":
            durations += self._part(self._sum, is_offset=False)
        if self._next() != "]":
            raise _NoDuration
        return durations

    def offset(self) -> list[FoundDuration]:
        return self._part(self._offset, is_offset=True)

    def _part(self, read: Callable[[], Duration], *, is_offset: bool) -> list[FoundDuration]:
        """Return [] for a literal, which the library parses itself."""
        first = self.at
        expr = read()
        if self.at - first == 1 and isinstance(expr, DurationLiteral):
            return []
        start, end = self._tokens[first].start(), self._tokens[self.at - 1].end()
        return [FoundDuration(start, end, expr, is_offset)]

    def _next(self) -> str:
        return self._tokens[self.at].group() if self.at < len(self._tokens) else ""

    def _take(self, *words: str) -> str:
        word = self._next()
        if word and word in words:
            self.at += 1
            return word
        return ""

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise _NoDuration

    def _offset(self) -> Duration:
        """Without parentheses only the first value belongs to the offset: in `offset 2 ^ 2` it is 2."""
        sign = self._take("+", "-")
        if not sign and self._next() == "(":
            return self._sum()
        return _signed(sign, self._value())

    def _sum(self) -> Duration:
        left = self._product()
        while op := self._take("+", "-"):
            left = DurationExpr(op, left, self._product())
        return left

    def _product(self) -> Duration:
        left = self._sign()
        while op := self._take("*", "/", "%"):
            right = self._sign()
            if op != "*" and isinstance(right, DurationLiteral) and right.seconds == 0:
                raise BadQueryError(f"parse error: {'division' if op == '/' else 'modulo'} by zero")
            left = DurationExpr(op, left, right)
        return left

    def _sign(self) -> Duration:
        sign = self._take("+", "-")
        return _signed(sign, self._sign()) if sign else self._power()

    def _power(self) -> Duration:
        left = self._value()
        return DurationExpr("^", left, self._sign()) if self._take("^") else left

    def _value(self) -> Duration:
        if self._take("("):
            inner = self._sum()
            self._expect(")")
            return replace(inner, wrapped=True) if isinstance(inner, DurationExpr) else inner
        if self.at >= len(self._tokens):
            raise _NoDuration
        token = self._tokens[self.at]
        self.at += 1
        match token.lastgroup:
            case "duration":
                return _literal(literal_seconds(token.group()), is_duration=True)
            case "number":
                return _literal(_number(token.group()), is_duration=False)
            case "name" if token.group().lower() in ("inf", "nan"):
                raise BadQueryError("parse error: duration out of range")
            case "name" if token.group().lower() in _FUNCTIONS:
                return self._call(token.group().lower())
            case _:
                raise _NoDuration

    def _call(self, name: str) -> Duration:
        self._expect("(")
        if name not in _FUNCTIONS_OF_TWO:
            self._expect(")")
            return DurationExpr(name)
        left = self._sum()
        self._expect(",")
        right = self._sum()
        self._expect(")")
        return DurationExpr(name, left, right)


def _signed(sign: str, value: Duration) -> Duration:
    if not sign:
        return value
    if isinstance(value, DurationLiteral):
        return replace(value, seconds=-value.seconds) if sign == "-" else value
    return DurationExpr(sign, None, value) if sign == "-" else value


def _literal(seconds: float, *, is_duration: bool) -> DurationLiteral:
    if seconds > MAX_SECONDS:
        raise BadQueryError("parse error: duration out of range")
    return DurationLiteral(seconds, is_duration)


def literal_seconds(text: str) -> float:
    try:
        return parse_prometheus_duration(text) / 1000
    except ValueError as error:
        raise BadQueryError(f"parse error: {error}") from None


def _number(text: str) -> float:
    plain = text.replace("_", "")
    try:
        return float(int(plain, 16)) if plain[:2].lower() == "0x" else float(plain)
    except (ValueError, OverflowError):
        raise _NoDuration from None


# Times of the @ modifier before 1970, which the parser library cannot represent.
#
# `shift_times` writes `@ -1.5` as a number of seconds beyond any real time, `unshift_ms` reads it back. Times
# that no sample can have, in either direction, become the furthest time of their side.

_SHIFT = 1 << 52
"""Seconds. Above it a second stands for a millisecond before 1970: both are exact in a float."""
_FURTHEST_MS = _SHIFT - 1
_OUT_OF_BOUNDS = 2.0**63
_TIME = re.compile(
    rf"{OPAQUE}|@\s*(?P<sign>[-+]?)\s*(?P<time>0[xX][0-9a-fA-F]+|(?:{DURATION_LITERAL.pattern})(?!\w)"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)",
    re.DOTALL,
)


def shift_times(text: str) -> str:
    """`text` has no underscores in numbers and no comments."""
    if "@" not in text:
        return text

    def shifted(modifier: re.Match[str]) -> str:
        if modifier["time"] is None:
            return modifier.group()
        seconds = _seconds(modifier["time"])
        if seconds >= _OUT_OF_BOUNDS:
            raise BadQueryError(
                f"parse error: timestamp out of bounds for @ modifier: {modifier['sign']}{seconds:g}"
            )
        return f"@ {_SHIFT + _to_ms(seconds)}" if modifier["sign"] == "-" else modifier.group()

    return _TIME.sub(shifted, text)


def unshift_ms(seconds: float) -> int:
    """Milliseconds since 1970."""
    if _SHIFT <= seconds < 2 * _SHIFT:
        return -int(seconds - _SHIFT)
    return _to_ms(seconds)


def _to_ms(seconds: float) -> int:
    return min(round(seconds * 1000), _FURTHEST_MS) if seconds < _FURTHEST_MS else _FURTHEST_MS


def _seconds(text: str) -> float:
    if text[:2] in ("0x", "0X"):
        return float(int(text[:19], 16))
    return literal_seconds(text) if DURATION_LITERAL.fullmatch(text) else float(text)
