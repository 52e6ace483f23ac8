"""Conditions asked for lately and the series they chose, by target.

Dashboards ask the same questions again and again, while series come and go rarely: until the index changes, a
question's series are looked up once. Entries are bounded in number and in series, the least recently used go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from gpuscope.series import Matcher
from gpuscope.store.index import Index
from gpuscope.store.tick import Int64s

_MOST_ENTRIES = 256
_MOST_SERIES = 500_000
_LONGEST_QUESTION = 2_000
"""Characters of its matchers' values; longer ones, many of them, would fill the memory."""

Groups = dict[int, Int64s]


class Selections:
    """Matchers → the series that meet them all, grouped by the targets that write them."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._version = -1
        self._known: OrderedDict[tuple[Matcher, ...], tuple[Groups, int]] = OrderedDict()
        self._series = 0

    def groups(self, matchers: Sequence[Matcher]) -> Groups:
        """Callers share the answer and do not change it."""
        version = self._index.version
        known = self.known(matchers)
        if known is not None:
            return known
        series = self._index.select(matchers)
        groups = self._index.by_target(series)
        self._keep(tuple(matchers), version, groups, len(series))
        return groups

    def known(self, matchers: Sequence[Matcher]) -> Groups | None:
        """The answer, if nothing has to be looked up for it."""
        key, version = tuple(matchers), self._index.version
        with self._lock:
            if version != self._version:
                self._known.clear()
                self._version, self._series = version, 0
            found = self._known.get(key)
            if found is None:
                return None
            self._known.move_to_end(key)
            return found[0]

    def _keep(self, key: tuple[Matcher, ...], version: int, groups: Groups, size: int) -> None:
        if sum(len(matcher.value) for matcher in key) > _LONGEST_QUESTION:
            return
        with self._lock:
            # Not what was found while the index changed: it may be of either state.
            if version != self._version or version != self._index.version or key in self._known:
                return
            self._known[key] = groups, size
            self._series += size
            while self._series > _MOST_SERIES or len(self._known) > _MOST_ENTRIES:
                self._series -= self._known.popitem(last=False)[1][1]
