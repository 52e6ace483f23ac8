"""The label pairs of all series as numbers in one flat array, and the ways from matchers and pairs to series.

The labels of thousands of series are read by a few array operations, without a Python object for each series.
Not thread-safe: belongs to the index and its lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.history.store.store_errors import BadMatcherError
from gpuscope.history.store.tick import Int64s
from gpuscope.model.label_columns import Codes
from gpuscope.model.series import Matcher, MatchOp

# Tests label values against a matcher.
#
# Regular expressions are RE2 (linear time, also for hostile input), match the whole value, and `.` matches a
# newline, as in Prometheus. Most regular expressions of dashboards are a list of words, or a word with `.*`
# at an end; these are tested without the regex engine.

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
        entry = self._known.get(key)
        if entry is None:
            return 0, []
        self._known.move_to_end(key)
        return entry

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


_NO_SERIES = -1
_MIN_SIZE = 1024


class SeriesPairs:
    """Series id → the numbers of its label pairs, in the order of the label names."""

    def __init__(self) -> None:
        self._first = np.zeros(_MIN_SIZE, np.int64)
        """Where the pairs of each series id begin."""
        self._counts = np.full(_MIN_SIZE, _NO_SERIES, np.int32)
        self._flat = np.zeros(_MIN_SIZE, np.int32)
        self._used = 0
        self._series = 0

    def __len__(self) -> int:
        return self._series

    def __contains__(self, sid: int) -> bool:
        return 0 <= sid < len(self._counts) and bool(self._counts[sid] != _NO_SERIES)

    def add(self, sid: int, packed: bytes) -> None:
        """Add a series that is not here yet, with the numbers of its pairs in 32 bits each."""
        count = len(packed) >> 2
        begin = self._make_room(sid, count)
        self._first[sid], self._counts[sid] = begin, count
        self._flat[begin : begin + count] = np.frombuffer(packed, "<i4")
        self._series += 1

    def extend(self, sids: Int64s, packed: Sequence[bytes]) -> None:
        """As `add`, for many series."""
        numbers = np.frombuffer(b"".join(packed), "<i4")
        counts = np.fromiter(map(len, packed), np.int64, len(packed)) >> 2
        begin = self._make_room(int(sids.max(initial=-1)), len(numbers))
        self._first[sids] = begin + np.cumsum(counts) - counts
        self._counts[sids] = counts
        self._flat[begin : begin + len(numbers)] = numbers
        self._series += len(packed)

    def _make_room(self, sid: int, count: int) -> int:
        """Make room for a series id and for a count of pairs; return where these begin."""
        known, begin = len(self._counts), self._used
        if sid >= known:
            size = max(sid + 1, known * 5 // 4)
            self._first = np.concatenate((self._first, np.zeros(size - known, np.int64)))
            self._counts = np.concatenate((self._counts, np.full(size - known, _NO_SERIES, np.int32)))
        self._used += count
        if self._used > len(self._flat):
            grown = np.empty(max(self._used, len(self._flat) * 5 // 4), np.int32)
            grown[:begin] = self._flat[:begin]
            self._flat = grown
        return begin

    def get(self, sid: int) -> Codes:
        """Return the pairs of a series; none if it is not here (any more)."""
        if sid not in self:
            return self._flat[:0]
        first = self._first[sid]
        return self._flat[first : first + self._counts[sid]]

    def numbers_of(self, sids: Int64s) -> tuple[Codes, Int64s]:
        """Return the pairs of series one after the other, and how many each of them has."""
        counts = np.maximum(self._counts.take(sids), 0).astype(np.int64)
        firsts = self._first.take(sids)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total and (firsts[1:] == firsts[0] + ends[:-1]).all():  # they are side by side
            return self._flat[firsts[0] : firsts[0] + total], counts
        return self._flat.take(np.repeat(firsts - (ends - counts), counts) + np.arange(total)), counts

    def ids(self) -> Int64s:
        """Return the ids of all series, ascending."""
        return np.flatnonzero(self._counts != _NO_SERIES)

    def remove(self, sids: Int64s) -> None:
        """Remove series, each of which is here."""
        self._counts[sids] = _NO_SERIES
        rest = self.ids()
        self._flat, counts = self.numbers_of(rest)
        self._first[rest] = np.cumsum(counts) - counts
        self._used, self._series = len(self._flat), len(rest)


# Finds a series by its label pairs, without keeping their numbers a second time.
#
# The hashes of all keys are in a sorted array, 12 bytes per series: a dictionary of the keys takes ten times
# as much. Keys added since the array was sorted are in a small dictionary. What is found by its hash is
# compared with the label pairs themselves. Not thread-safe: belongs to the index and its lock.

MAX_NEW = 4096
"""So many keys, and an eighth of the others, wait in the dictionary."""


class SeriesKeys:
    """Numbers of label pairs, in 32 bits each → series id."""

    def __init__(self, pairs: SeriesPairs, hash_of: Callable[[bytes], int] = hash) -> None:
        """`pairs` has the label pairs of every series that is added here."""
        self._pairs = pairs
        self._hash_of = hash_of
        self._hashes = np.empty(0, np.int64)
        self._series = np.empty(0, np.int32)
        self._new: dict[bytes, int] = {}

    def find(self, key: bytes) -> int | None:
        sid = self._new.get(key)
        if sid is not None:
            return sid
        wanted = self._hash_of(key)
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            sid = int(self._series[at])
            if self._pairs.get(sid).tobytes() == key:
                return sid
            at += 1
        return None

    def add(self, key: bytes, sid: int) -> None:
        """Add a series that is not here yet."""
        self._new[key] = sid
        if len(self._new) > MAX_NEW + len(self._series) // 8:
            new, self._new = self._new, {}
            self.extend(list(new), np.fromiter(new.values(), np.int64, len(new)))

    def extend(self, keys: Sequence[bytes], sids: Int64s) -> None:
        """As `add`, for many series."""
        hashes = np.fromiter(map(self._hash_of, keys), np.int64, len(keys))
        order = np.argsort(hashes)
        hashes, series = hashes[order], sids[order].astype(np.int32)
        # Two sorted arrays are merged in a third of the time that sorting all takes.
        places = self._hashes.searchsorted(hashes)
        self._hashes = np.insert(self._hashes, places, hashes)
        self._series = np.insert(self._series, places, series)

    def remove(self, sids: Int64s) -> None:
        stays = ~np.isin(self._series, sids)
        self._hashes, self._series = self._hashes[stays], self._series[stays]
        gone = set(sids.tolist())
        self._new = {key: sid for key, sid in self._new.items() if sid not in gone}


# Postings: the series of each label pair.
#
# A sorted array, and an unsorted tail of series added since the array was built. The array is rebuilt when
# the tail reaches an eighth of it.

_MAX_TAIL = 4096


class Postings:
    """Pair → series, sorted by pair, with an unsorted tail."""

    def __init__(self, every: SeriesPairs) -> None:
        self._all = every
        self._build()

    def _build(self) -> None:
        sids = self._all.ids()
        pairs, counts = self._all.numbers_of(sids)
        order = np.argsort(pairs, kind="stable")
        self._pairs, self._series = pairs[order], np.repeat(sids.astype(np.int32), counts)[order]
        # Bytes: lists of millions of integers would be scanned by every full garbage collection.
        self._tail_pairs = bytearray()
        self._tail_series = bytearray()

    def add(self, sid: int, packed: bytes) -> None:
        self._tail_pairs += packed
        self._tail_series += sid.to_bytes(4, "little") * (len(packed) >> 2)

    def _rebuild_if_large(self) -> None:
        # A rebuild sorts everything, so it waits until the tail is large.
        if len(self._tail_pairs) >> 2 > _MAX_TAIL + len(self._pairs) // 8:
            self._build()

    def estimate(self, numbers: list[int]) -> int:
        wanted = np.array(numbers, np.int32)
        starts = np.searchsorted(self._pairs, wanted)
        ends = np.searchsorted(self._pairs, wanted, side="right")
        return int((ends - starts).sum())

    def union(self, numbers: list[int]) -> Int64s:
        """Return ascending ids of series that have any of these pairs, which must be of one label name."""
        self._rebuild_if_large()
        wanted = np.array(numbers, np.int32)
        starts = np.searchsorted(self._pairs, wanted).tolist()
        ends = np.searchsorted(self._pairs, wanted, side="right").tolist()
        parts = [self._series[start:end] for start, end in zip(starts, ends, strict=True)]
        if self._tail_pairs:
            # Copies: a view of a bytearray would not let it grow.
            tail = np.frombuffer(bytes(self._tail_pairs), "<i4")
            parts.append(np.frombuffer(bytes(self._tail_series), "<i4")[np.isin(tail, wanted)])
        if not parts:
            return np.empty(0, np.int64)
        series = np.concatenate(parts).astype(np.int64)
        if len(parts) > 1:
            series.sort()
        return series

    def sizes(self) -> dict[int, int]:
        """Return the number of series of each pair."""
        numbers, counts = np.unique(self._all.numbers_of(self._all.ids())[0], return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))
