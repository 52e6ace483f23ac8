"""Tests label values against a matcher.

Regular expressions are RE2 (linear time, also for hostile input), match the whole value, and `.` matches a
newline, as in Prometheus. Most regular expressions of dashboards are a list of words, or a word with `.*` at an
end; these are tested without the regex engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.history.store.store_errors import BadMatcherError
from gpuscope.model.series import Matcher, MatchOp

Predicate = Callable[[str], bool]
_META = frozenset(r"\.+*?()|[]{}^$")


def predicate(matcher: Matcher) -> Predicate:
    """Return a test for one label value. Raises BadMatcherError for an invalid regular expression."""
    wanted = matcher.value
    if matcher.op is MatchOp.EQUAL:
        return lambda value: value == wanted
    if matcher.op is MatchOp.NOT_EQUAL:
        return lambda value: value != wanted
    words = literals(wanted)
    matches: Predicate = words.__contains__ if words is not None else _regex(wanted)
    if matcher.op is MatchOp.NOT_REGEX:
        return lambda value: not matches(value)
    return matches


def literals(pattern: str) -> frozenset[str] | None:
    """Return the words of `a|b|c` or `(a|b|c)`; None if the pattern contains anything else."""
    inner = pattern
    for opening in ("(?:", "("):
        if pattern.startswith(opening) and pattern.endswith(")"):
            inner = pattern[len(opening) : -1]
            break
    words = inner.split("|")
    if any(_META.intersection(word) for word in words):
        return None
    return frozenset(words)


def _regex(pattern: str) -> Predicate:
    for wildcard, least in ((".*", 0), (".+", 1)):
        if pattern == wildcard:
            return lambda value: len(value) >= least
        prefix = pattern.removesuffix(wildcard)
        if len(prefix) < len(pattern) and not _META.intersection(prefix):
            return lambda value: len(value) >= len(prefix) + least and value.startswith(prefix)
    if pattern.startswith(".*") and not _META.intersection(inner := pattern.removesuffix(".*")[2:]):
        if pattern.endswith(".*"):
            return lambda value: inner in value
        return lambda value: value.endswith(inner)
    try:
        compiled = compile_anchored(pattern, captures=False)
    except ValueError as error:
        raise BadMatcherError(f"invalid regular expression {pattern!r}: {error}") from error
    # As bytes: google-re2 would convert the offsets of each match to characters, which are not needed here.
    return lambda value: compiled.fullmatch(value.encode("utf-8", "surrogatepass")) is not None


# The label pairs that regular expressions matched, so that only values added since are tested again.
#
# Bounded: the least recently used expressions make room. The caller holds the index's lock.

MAX_CACHED_REGEXES = 512
MAX_CACHED_REGEX_CHARACTERS = 2_000
MAX_CACHED_REGEX_PAIRS = 1_000_000
"""Of all cached regexes together: 8 bytes each. One `.*x.*` over 100,000 pods selects as many pairs."""

RegexKey = tuple[str, MatchOp, str]
"""Label name, operator and expression."""


class RegexCache:
    def __init__(self) -> None:
        self._known: OrderedDict[RegexKey, tuple[int, list[int]]] = OrderedDict()
        self._pairs = 0

    def get(self, key: RegexKey) -> tuple[int, list[int]]:
        """Return how many pairs of the label were tested, and the numbers of those that match."""
        found = self._known.get(key)
        if found is None:
            return 0, []
        self._known.move_to_end(key)
        return found

    def keep(self, key: RegexKey, seen: int, numbers: list[int]) -> None:
        if len(key[2]) > MAX_CACHED_REGEX_CHARACTERS:
            return
        self._pairs += len(numbers) - len(self._known.pop(key, (0, []))[1])
        self._known[key] = (seen, numbers)
        while len(self._known) > MAX_CACHED_REGEXES or self._pairs > MAX_CACHED_REGEX_PAIRS:
            self._pairs -= len(self._known.popitem(last=False)[1][1])

    def clear(self) -> None:
        self._known.clear()
        self._pairs = 0

    def sizes(self) -> tuple[int, int]:
        """Return how many there are, and how many label pairs they hold."""
        return len(self._known), self._pairs
