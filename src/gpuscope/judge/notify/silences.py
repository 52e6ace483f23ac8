"""Silences: created, updated, expired and queried by Alertmanager's rules, and kept by `SilenceKeeper`.

Times are seconds since the epoch. A change that would rewrite history (other matchers, a past start) expires
the old silence and creates a new one with a new id. `ActiveSilences` says which of many silences match an alert
now, without comparing every silence with every alert.
"""

from __future__ import annotations

import heapq
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_matchers import AlertMatcher, match_all
from gpuscope.model.series import MatchOp

MAX_LISTED_SILENCES: Final = 100
"""Of one alert: one is enough to silence it."""
MAX_COMPARED_ANEW: Final = 64
"""Silences added since an alert was compared; with more, all are looked up again."""
MAX_CACHED_ALERTS: Final = 100_000
Matchers = tuple[AlertMatcher, ...]
Pair = tuple[str, str]
RETENTION_SECONDS = 120 * 3600.0
"""How long an expired silence is kept, as Alertmanager's --data.retention."""
ACTIVE, PENDING, EXPIRED = "active", "pending", "expired"
MATCHER_BYTES = 200
"""What a matcher takes in memory beside its texts."""
MAX_CLOCK_STEP_SECONDS = 10.0
"""Callers read the clock before they wait for a lock, so that it seems to go back a little."""
DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class _Entry:
    """Silences with equal matchers."""

    matchers: Matchers
    bucket: Pair | None
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Lookup:
    compared: int
    """How many of the added entries were compared."""
    entries: list[_Entry]
    is_complete: bool


class ActiveSilences:
    """Silences that hold now, each found by one of its `name="value"` matchers; only those without one are
    compared with every alert. What an alert matched is kept until silences are added or end. Not for several
    threads at once."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[Matchers, float, float]] = {}
        self._starts: list[tuple[float, str]] = []
        self._ends: list[tuple[float, str]] = []
        self._entries: dict[Matchers, _Entry] = {}
        self._buckets: defaultdict[Pair | None, dict[int, _Entry]] = defaultdict(dict)
        self._added: list[_Entry] = []
        self._lookups: dict[str, _Lookup] = {}

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
        lookup = self._lookups.get(fingerprint) if fingerprint else None
        if lookup is None or not self._is_usable(lookup):
            lookup = self._look_up(labels)
        else:
            new = [
                entry
                for entry in self._added[lookup.compared :]
                if entry.ids and match_all(entry.matchers, labels)
            ]
            lookup.entries = [*(entry for entry in lookup.entries if entry.ids), *new]
            lookup.compared = len(self._added)
        if fingerprint:
            if len(self._lookups) >= MAX_CACHED_ALERTS:
                self._lookups.clear()
            self._lookups[fingerprint] = lookup
        ids = sorted(silence_id for entry in lookup.entries[:MAX_LISTED_SILENCES] for silence_id in entry.ids)
        return ids[:MAX_LISTED_SILENCES]

    def _is_usable(self, lookup: _Lookup) -> bool:
        if len(self._added) - lookup.compared > MAX_COMPARED_ANEW:
            return False
        return lookup.is_complete or all(entry.ids for entry in lookup.entries)

    def _look_up(self, labels: Mapping[str, str]) -> _Lookup:
        entries: list[_Entry] = []
        for bucket in (*labels.items(), None):
            for entry in self._buckets.get(bucket, {}).values():
                if match_all(entry.matchers, labels):
                    entries.append(entry)
                    if len(entries) >= MAX_LISTED_SILENCES:
                        return _Lookup(len(self._added), entries, is_complete=False)
        return _Lookup(len(self._added), entries, is_complete=True)

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
            pairs = [
                (matcher.name, matcher.value)
                for matcher in matchers
                if matcher.op is MatchOp.EQUAL and matcher.value
            ]
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
            self._lookups.clear()


class SilenceError(Exception):
    """The request is wrong; the text is the answer."""


class SilenceNotStored(SilenceError):
    """The disk does not take it: the same request may succeed later."""


class SilenceNotFound(SilenceError):
    pass


@dataclass(frozen=True, slots=True)
class Silence:
    matchers: tuple[AlertMatcher, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str
    annotations: tuple[tuple[str, str], ...] = ()
    id: str = ""
    updated_at: float = 0.0

    def state(self, now: float) -> str:
        if now < self.starts_at:
            return PENDING
        return ACTIVE if now < self.ends_at else EXPIRED

    @property
    def size_bytes(self) -> int:
        """Its texts, and what its matchers take beside them."""
        texts = [self.created_by, self.comment]
        texts += [text for matcher in self.matchers for text in (matcher.name, matcher.value)]
        texts += [text for pair in self.annotations for text in pair]
        return sum(len(text.encode()) for text in texts) + MATCHER_BYTES * len(self.matchers)

    @property
    def pattern_count(self) -> int:
        """Its matchers that are not `name="value"`."""
        return sum(matcher.op is not MatchOp.EQUAL for matcher in self.matchers)


class SilenceKeeper(Protocol):
    def save_silence(self, silence: Silence) -> None: ...

    def forget_silences(self, ids: Iterable[str]) -> None: ...


class Silences:
    """Not for several threads at once."""

    def __init__(
        self,
        keeper: SilenceKeeper,
        kept: Iterable[Silence] = (),
        *,
        limits: Limits = DEFAULT_LIMITS,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._keeper = keeper
        self._silences: dict[str, Silence] = {}
        self._active = ActiveSilences()
        self._pattern_count = 0
        self._limits = limits
        self._new_id = new_id
        self._seen_at = float("-inf")
        for silence in kept:
            self._keep(silence)

    def set(self, silence: Silence, now: float) -> str:
        """Create, update or replace; the id. SilenceError says what is wrong."""
        _validate(silence, now, self._limits)
        previous = self._silences.get(silence.id)
        if silence.id and previous is None:
            raise SilenceNotFound("silence not found")
        if previous is not None and _can_update(previous, silence, now):
            return self._save(replace(silence, updated_at=now))
        self._check_room(silence)
        if previous is not None and previous.state(now) != EXPIRED:
            self.expire(previous.id, now)
        starts_at = max(silence.starts_at, now)
        return self._save(replace(silence, id=self._new_id(), starts_at=starts_at, updated_at=now))

    def expire(self, silence_id: str, now: float) -> None:
        silence = self.get(silence_id)
        state = silence.state(now)
        if state != EXPIRED:
            starts_at = now if state == PENDING else silence.starts_at
            self._save(replace(silence, starts_at=starts_at, ends_at=now, updated_at=now))

    def get(self, silence_id: str) -> Silence:
        if silence_id not in self._silences:
            raise SilenceNotFound("silence not found")
        return self._silences[silence_id]

    def all(self) -> list[Silence]:
        return list(self._silences.values())

    def silenced_by(self, labels: Mapping[str, str], now: float, fingerprint: str = "") -> list[str]:
        """The ids of active silences that match, sorted; of very many the first ones."""
        if now < self._seen_at - MAX_CLOCK_STEP_SECONDS:
            # The clock was set back: a silence that has ended may hold again, and one that held is pending.
            self._active = ActiveSilences()
            for silence in self._silences.values():
                self._active.put(silence.id, silence.matchers, silence.starts_at, silence.ends_at)
            self._seen_at = now
        self._seen_at = max(self._seen_at, now)
        return self._active.matching(labels, now, fingerprint)

    def forget_expired(self, now: float) -> None:
        old = [silence.id for silence in self._silences.values() if silence.ends_at + RETENTION_SECONDS <= now]
        for silence_id in old:
            self._pattern_count -= self._silences.pop(silence_id).pattern_count
        self._active.forget(old)
        if old:
            self._keeper.forget_silences(old)

    def _save(self, silence: Silence) -> str:
        # First to the disk: an id that a client has been given must survive a crash.
        self._keeper.save_silence(silence)
        self._keep(silence)
        return silence.id

    def _keep(self, silence: Silence) -> None:
        previous = self._silences.get(silence.id)
        self._pattern_count += silence.pattern_count - (0 if previous is None else previous.pattern_count)
        self._silences[silence.id] = silence
        self._active.put(silence.id, silence.matchers, silence.starts_at, silence.ends_at)

    def _check_room(self, silence: Silence) -> None:
        if len(self._silences) >= self._limits.max_silences:
            LIMITS_REACHED.count("max_silences")
            raise SilenceError(f"exceeded maximum number of silences: {len(self._silences)}")
        most = self._limits.max_silence_patterns
        if silence.pattern_count and self._pattern_count + silence.pattern_count > most:
            LIMITS_REACHED.count("max_silence_patterns")
            raise SilenceError(f"more than {most} matchers with =~, !~ or != in all silences; use name=value")


def _validate(silence: Silence, now: float, limits: Limits) -> None:
    if silence.starts_at >= silence.ends_at:
        raise SilenceError("Failed to create silence: start time must be before end time")
    if silence.ends_at < now:
        raise SilenceError("Failed to create silence: end time can't be in the past")
    if not silence.matchers:
        raise SilenceError("invalid silence: at least one matcher set required")
    # Alertmanager lets a negative matcher pass, although it matches alerts without the label.
    if all(matcher.is_equal and matcher.matches_value("") for matcher in silence.matchers):
        raise SilenceError(
            "invalid silence: matcher set 0: at least one matcher must not match the empty string"
        )
    if silence.size_bytes > limits.max_silence_bytes:
        LIMITS_REACHED.count("max_silence_bytes")
        most = limits.max_silence_bytes
        raise SilenceError(f"silence exceeded maximum size: {silence.size_bytes} bytes (limit: {most} bytes)")


def _can_update(old: Silence, new: Silence, now: float) -> bool:
    if old.matchers != new.matchers:
        return False
    state = old.state(now)
    if state == ACTIVE:
        return int(old.starts_at) == int(new.starts_at) and new.ends_at >= now
    return state == PENDING and new.starts_at >= now
