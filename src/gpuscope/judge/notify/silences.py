"""Silences: created, updated, expired and queried by Alertmanager's rules, and kept by `SilenceKeeper`.

Times are seconds since the epoch. A change that would rewrite history (other matchers, a past start) expires
the old silence and creates a new one with a new id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.active_silences import ActiveSilences
from gpuscope.judge.notify.alert_matchers import AlertMatcher
from gpuscope.model.series import MatchOp

RETENTION_SECONDS = 120 * 3600.0
"""How long an expired silence is kept, as Alertmanager's --data.retention."""
ACTIVE, PENDING, EXPIRED = "active", "pending", "expired"
MATCHER_BYTES = 200
"""What a matcher takes in memory beside its texts."""
MAX_CLOCK_STEP_SECONDS = 10.0
"""Callers read the clock before they wait for a lock, so that it seems to go back a little."""
DEFAULT_LIMITS = Limits()


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
        texts += [text for one in self.matchers for text in (one.name, one.value)]
        texts += [text for pair in self.annotations for text in pair]
        return sum(len(text.encode()) for text in texts) + MATCHER_BYTES * len(self.matchers)

    @property
    def pattern_count(self) -> int:
        """Its matchers that are not `name="value"`."""
        return sum(one.op is not MatchOp.EQUAL for one in self.matchers)


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
        old = [one.id for one in self._silences.values() if one.ends_at + RETENTION_SECONDS <= now]
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
