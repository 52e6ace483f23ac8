"""All checks over one engine, evaluated when they are due, and what they say of now.

Input: the vectors of the checks' expressions, from the embedded store, another engine or the snapshots of this
machine. Output: findings. A check that cannot be evaluated keeps its last result for a minute; then nothing is
known of it, and nobody is accused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.history.promql.result import Vector
from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.condition import Condition, SubjectKey
from gpuscope.judge.checks.open_episodes import OpenEpisode, OpenEpisodes

UNKNOWN_SECONDS: Final = 60.0
"""A check that was not evaluated for so long, beyond its own interval, is not known."""
NOT_EVALUATED: Final = "not evaluated yet"
EVALUATED: Final = tuple(CHECKS.values())


@dataclass(frozen=True, slots=True)
class JudgedMoment:
    """What the checks said at one moment. It never changes, so any thread may read it."""

    at: float
    episodes: Sequence[OpenEpisode]
    not_known: Mapping[str, str]
    """By kind: why nothing is known of it."""


class Judgement:
    def __init__(self, checks: Sequence[Check] = EVALUATED) -> None:
        self._checks = checks
        self._episodes = OpenEpisodes()
        self._others: dict[str, list[Mapping[str, str]]] = {}
        self._tried_at: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        """By kind: why its last evaluation failed."""
        self.version = 0
        """Another number after each evaluation."""

    def due(self, now: float) -> list[Check]:
        """The most urgent first."""
        found = [check for check in self._checks if self._is_due(check, now)]
        return sorted(found, key=lambda check: check.every_seconds)

    def _is_due(self, check: Check, now: float) -> bool:
        at = self._tried_at.get(check.kind)
        return at is None or not 0 <= now - at < check.every_seconds

    def apply(self, check: Check, vector: Vector, at: float, others: Vector | None = None) -> None:
        conditions = [
            Condition(check, {name: text for name, text in labels if name != "__name__"}, value)
            for labels, value in zip(vector.labels, vector.values.tolist(), strict=True)
        ]
        self._tried_at[check.kind] = at
        self.failed.pop(check.kind, None)
        self._others[check.kind] = [] if others is None else [dict(labels) for labels in others.labels]
        self._episodes.update(check.kind, conditions, at)
        self.version += 1

    def fail(self, check: Check, reason: str, at: float) -> None:
        self._tried_at[check.kind] = at
        self.failed[check.kind] = reason
        self.version += 1
        self.expire(at)

    def expire(self, now: float) -> None:
        """Forgets what was not evaluated for too long: it failed, or the engine is slow and others wait."""
        for check in self._checks:
            known_at = self._episodes.evaluated_at(check.kind)
            if known_at is not None and now - known_at > check.every_seconds + UNKNOWN_SECONDS:
                self._episodes.forget(check.kind)
                self.version += 1

    @property
    def not_known(self) -> dict[str, str]:
        """By kind: why nothing is known of it. Empty while a failed check still has its last result."""
        return {
            check.kind: self.failed.get(check.kind, NOT_EVALUATED)
            for check in self._checks
            if self._episodes.evaluated_at(check.kind) is None
        }

    @property
    def others(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        return self._others

    def open_now(self, began: Mapping[SubjectKey, float] | None = None) -> list[OpenEpisode]:
        return self._episodes.open_now((began or {}).get)
