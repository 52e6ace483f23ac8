"""The label pairs that regular expressions matched, so that only values added since are tested again.

Bounded: the least recently used expressions make room. The caller holds the index's lock.
"""

from __future__ import annotations

from collections import OrderedDict

from gpuscope.model.series import MatchOp

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
