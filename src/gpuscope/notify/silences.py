"""Silences: created, updated, expired and queried by Alertmanager's rules, and kept by `SilenceKeeper`.

Times are seconds since the epoch. A change that would rewrite history (other matchers, a past start) expires
the old silence and creates a new one with a new id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.alert_matchers import AlertMatcher, match_all

RETENTION_SECONDS = 120 * 3600.0
"""How long an expired silence is kept, as Alertmanager's --data.retention."""
ACTIVE, PENDING, EXPIRED = "active", "pending", "expired"
MAX_TEXT_CHARACTERS = 64 << 10


class SilenceError(Exception):
    """The request is wrong; the text is the answer."""


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
        max_silences: int,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._keeper = keeper
        self._silences = {silence.id: silence for silence in kept}
        self._max_silences = max_silences
        self._new_id = new_id

    def set(self, silence: Silence, now: float) -> str:
        """Create, update or replace; the id. SilenceError says what is wrong."""
        _validate(silence, now)
        previous = self._silences.get(silence.id)
        if silence.id and previous is None:
            raise SilenceNotFound("silence not found")
        if previous is not None and _can_update(previous, silence, now):
            return self._save(replace(silence, updated_at=now))
        if len(self._silences) >= self._max_silences:
            LIMITS_REACHED.count("max_silences")
            raise SilenceError(f"exceeded maximum number of silences: {len(self._silences)}")
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

    def silenced_by(self, labels: Mapping[str, str], now: float) -> list[str]:
        """The ids of active silences that match, sorted."""
        return sorted(
            silence.id
            for silence in self._silences.values()
            if silence.starts_at <= now < silence.ends_at and match_all(silence.matchers, labels)
        )

    def forget_expired(self, now: float) -> None:
        old = [one.id for one in self._silences.values() if one.ends_at + RETENTION_SECONDS <= now]
        for silence_id in old:
            del self._silences[silence_id]
        if old:
            self._keeper.forget_silences(old)

    def _save(self, silence: Silence) -> str:
        # First to the disk: an id that a client has been given must survive a crash.
        self._keeper.save_silence(silence)
        self._silences[silence.id] = silence
        return silence.id


def _validate(silence: Silence, now: float) -> None:
    if silence.starts_at >= silence.ends_at:
        raise SilenceError("Failed to create silence: start time must be before end time")
    if silence.ends_at < now:
        raise SilenceError("Failed to create silence: end time can't be in the past")
    if not silence.matchers:
        raise SilenceError("invalid silence: at least one matcher required")
    if all(matcher.matches_value("") for matcher in silence.matchers):
        raise SilenceError("invalid silence: at least one matcher must not match the empty string")
    if max(len(silence.comment), len(silence.created_by)) > MAX_TEXT_CHARACTERS:
        raise SilenceError(f"invalid silence: a text is longer than {MAX_TEXT_CHARACTERS} characters")


def _can_update(old: Silence, new: Silence, now: float) -> bool:
    if old.matchers != new.matchers:
        return False
    state = old.state(now)
    if state == ACTIVE:
        return int(old.starts_at) == int(new.starts_at) and new.ends_at >= now
    return state == PENDING and new.starts_at >= now
