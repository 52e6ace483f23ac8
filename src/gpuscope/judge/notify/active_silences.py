"""Which silences hold now, and which of them match an alert, for many alerts and many silences.

Input: each silence that was added, changed or forgotten. Output: the ids that match a label set, at most
MAX_LISTED_SILENCES of them. Silences are found by one of their `name="value"` matchers; only those without one
are compared with every alert. What was found for an alert is kept until silences are added or end.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.judge.notify.alert_matchers import AlertMatcher, match_all
from gpuscope.model.series import MatchOp

MAX_LISTED_SILENCES: Final = 100
"""Of one alert: one is enough to silence it."""
MAX_COMPARED_ANEW: Final = 64
"""Silences added since an alert was compared; with more, all are looked up again."""
MAX_CACHED_ALERTS: Final = 100_000
Matchers = tuple[AlertMatcher, ...]
Pair = tuple[str, str]


@dataclass(slots=True)
class _Entry:
    """Silences with equal matchers."""

    matchers: Matchers
    bucket: Pair | None
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Found:
    compared: int
    """How many of the added entries were compared."""
    entries: list[_Entry]
    is_complete: bool


class ActiveSilences:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[Matchers, float, float]] = {}
        self._starts: list[tuple[float, str]] = []
        self._ends: list[tuple[float, str]] = []
        self._entries: dict[Matchers, _Entry] = {}
        self._buckets: defaultdict[Pair | None, dict[int, _Entry]] = defaultdict(dict)
        self._added: list[_Entry] = []
        self._found: dict[str, _Found] = {}

    def put(self, silence_id: str, matchers: Matchers, starts_at: float, ends_at: float) -> None:
        self.forget((silence_id,))
        self._times[silence_id] = (matchers, starts_at, ends_at)
        heapq.heappush(self._starts, (starts_at, silence_id))
        heapq.heappush(self._ends, (ends_at, silence_id))

    def forget(self, ids: Iterable[str]) -> None:
        for silence_id in ids:
            if silence_id in self._times:
                self._remove(self._times.pop(silence_id)[0], silence_id)

    def matching(self, labels: Mapping[str, str], now: float, fingerprint: str = "") -> list[str]:
        """The ids of silences that hold now and match, sorted. `fingerprint` identifies the labels."""
        self._advance(now)
        if not self._entries:
            return []
        found = self._found.get(fingerprint) if fingerprint else None
        if found is None or not self._is_usable(found):
            found = self._look_up(labels)
        else:
            new = [one for one in self._added[found.compared :] if one.ids and match_all(one.matchers, labels)]
            found.entries = [*(one for one in found.entries if one.ids), *new]
            found.compared = len(self._added)
        if fingerprint:
            if len(self._found) >= MAX_CACHED_ALERTS:
                self._found.clear()
            self._found[fingerprint] = found
        ids = sorted(one for entry in found.entries[:MAX_LISTED_SILENCES] for one in entry.ids)
        return ids[:MAX_LISTED_SILENCES]

    def _is_usable(self, found: _Found) -> bool:
        if len(self._added) - found.compared > MAX_COMPARED_ANEW:
            return False
        return found.is_complete or all(entry.ids for entry in found.entries)

    def _look_up(self, labels: Mapping[str, str]) -> _Found:
        found: list[_Entry] = []
        for bucket in (*labels.items(), None):
            for entry in self._buckets.get(bucket, {}).values():
                if match_all(entry.matchers, labels):
                    found.append(entry)
                    if len(found) >= MAX_LISTED_SILENCES:
                        return _Found(len(self._added), found, is_complete=False)
        return _Found(len(self._added), found, is_complete=True)

    def _advance(self, now: float) -> None:
        while self._starts and self._starts[0][0] <= now:
            starts_at, silence_id = heapq.heappop(self._starts)
            known = self._times.get(silence_id)
            if known is not None and known[1] == starts_at and now < known[2]:
                self._add(known[0], silence_id)
        while self._ends and self._ends[0][0] <= now:
            ends_at, silence_id = heapq.heappop(self._ends)
            known = self._times.get(silence_id)
            if known is not None and known[2] == ends_at:
                self.forget((silence_id,))

    def _add(self, matchers: Matchers, silence_id: str) -> None:
        entry = self._entries.get(matchers)
        if entry is None:
            pairs = [(one.name, one.value) for one in matchers if one.op is MatchOp.EQUAL and one.value]
            bucket = min(pairs, key=lambda pair: len(self._buckets.get(pair, ())), default=None)
            entry = self._entries[matchers] = _Entry(matchers, bucket)
            self._buckets[bucket][id(entry)] = entry
            self._added.append(entry)
        entry.ids.add(silence_id)

    def _remove(self, matchers: Matchers, silence_id: str) -> None:
        entry = self._entries.get(matchers)
        if entry is None:
            return
        entry.ids.discard(silence_id)
        if entry.ids:
            return
        del self._entries[matchers]
        del self._buckets[entry.bucket][id(entry)]
        if not self._buckets[entry.bucket]:
            del self._buckets[entry.bucket]
        if len(self._added) > 2 * len(self._entries) + MAX_COMPARED_ANEW:
            self._added = list(self._entries.values())
            self._found.clear()
