"""A cache of recent selections: matchers → series, by target.

Dashboards repeat the same queries while series rarely change, so a selection is reused until the index changes.
The cache is limited in entries and in series; the least recently used entries are dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from gpuscope.series import Matcher
from gpuscope.store.index import Index
from gpuscope.store.tick import Int64s

_MAX_ENTRIES = 256
_MAX_SERIES = 500_000
_MAX_KEY_CHARS = 2_000
"""Total length of the matchers' values; longer keys are not cached, because they could fill the memory."""

Groups = dict[int, Int64s]


class Selections:
    """Matchers → the series that satisfy them all, grouped by target."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._version = -1
        self._known: OrderedDict[tuple[Matcher, ...], tuple[Groups, int]] = OrderedDict()
        self._series = 0

    def groups(self, matchers: Sequence[Matcher]) -> Groups:
        """Return the series by target. Callers share the result and must not change it."""
        version = self._index.version
        known = self.known(matchers)
        if known is not None:
            return known
        series = self._index.select(matchers)
        groups = self._index.by_target(series)
        self._keep(tuple(matchers), version, groups, len(series))
        return groups

    def known(self, matchers: Sequence[Matcher]) -> Groups | None:
        """Return the cached result; None if there is none."""
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
        if sum(len(matcher.value) for matcher in key) > _MAX_KEY_CHARS:
            return
        with self._lock:
            # A result computed while the index changed may be of either version: do not cache it.
            if version != self._version or version != self._index.version or key in self._known:
                return
            self._known[key] = groups, size
            self._series += size
            while self._series > _MAX_SERIES or len(self._known) > _MAX_ENTRIES:
                self._series -= self._known.popitem(last=False)[1][1]
