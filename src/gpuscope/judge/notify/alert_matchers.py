"""Label matchers of routes, inhibition rules, silences and API filters.

A missing label has the value "". A regular expression is RE2's and must match the whole value; its dot does not
match a line break, other than in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
            found = self._regex.fullmatch(value) is not None
        except UnicodeEncodeError:  # bytes that are not UTF-8 match no pattern
            found = False
        return found is self.is_equal

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
    return tuple(sorted(matchers, key=lambda one: (one.name, one.value, _OP_ORDER[one.op])))


def matchers_text(matchers: Iterable[AlertMatcher]) -> str:
    return "{" + ",".join(map(str, matchers)) + "}"
