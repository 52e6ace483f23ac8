"""Active, idle or unknown: what a session does, judged by when it last used the SMs.

Idle is a finding of our own: the driver was asked all the while and saw no SM activity. Where it cannot be
asked, as under MIG, the state is unknown, and so it is until a session has been watched for long enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.readings import ABSENT, ACTIVE, IDLE, UNKNOWN, Maybe, Uuid

SessionKey = tuple[int, Maybe[float], Uuid]
"""PID, start time, and the GPU or instance."""


@dataclass(slots=True)
class _Watched:
    """Since when one session has been watched, and when it last did something; monotonic."""

    since: float
    active_at: float | None = None


class StateBook:
    """Between `begin` and `end` every session that is there is judged once; the others are forgotten."""

    def __init__(self, idle_after: float) -> None:
        self._idle_after = idle_after
        self._watched: dict[SessionKey, _Watched] = {}
        self._seen: dict[SessionKey, _Watched] = {}
        self._now = self._monotonic = 0.0

    def begin(self, now: float, monotonic: float) -> None:
        self._now, self._monotonic, self._seen = now, monotonic, {}

    def end(self) -> None:
        self._watched = self._seen

    def judge(self, key: SessionKey, sm_ratio: Maybe[float]) -> tuple[str, Maybe[float]]:
        """The state, and since when it is idle."""
        if sm_ratio is ABSENT:
            return UNKNOWN, ABSENT
        session = self._watched.get(key)
        if session is None:
            session = _Watched(self._monotonic)
        self._seen[key] = session
        if sm_ratio > 0:
            session.active_at = self._monotonic
            return ACTIVE, ABSENT
        quiet = self._monotonic - (session.since if session.active_at is None else session.active_at)
        if quiet >= self._idle_after:
            return IDLE, self._now - quiet
        # Watched for too short a time and never seen at work: it may have worked just before we came.
        return (UNKNOWN if session.active_at is None else ACTIVE), ABSENT
