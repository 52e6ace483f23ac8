"""All checks over one engine, evaluated when they are due: which hold now, and since when.

Input: the vectors of the checks' expressions, from the embedded store, another engine or the snapshots of this
machine. Output: open episodes. A check that cannot be evaluated keeps its last result for a minute; then
nothing is known of it, and nobody is accused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.history.promql.result import Vector
from gpuscope.judge.checks.check import Check, Subject
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import Condition, FindingOwner, GpuKey, Loss, SubjectKey

KEEP_SECONDS: Final = 300.0
MAX_GAP_SECONDS: Final = 150.0
"""Between two evaluations of a check; in a longer gap something may have begun or ended unseen."""
SAME_SECONDS: Final = 60.0
"""Two answers that differ by less mean the same beginning: a scrape comes late, a step is a minute."""
UNKNOWN_SECONDS: Final = 60.0
"""A check that was not evaluated for so long, beyond its own interval, is not known."""
NOT_EVALUATED: Final = "not evaluated yet"
EVALUATED: Final = tuple(CHECKS.values())

EpisodeKey = tuple[SubjectKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    condition: Condition
    since: float | None
    """None while it is not known."""
    loss: Loss | None = None
    """As far as the history is read."""


@dataclass(frozen=True, slots=True)
class JudgedMoment:
    """What the checks said at one moment. It never changes, so any thread may read it."""

    at: float
    episodes: Sequence[OpenEpisode]
    not_known: Mapping[str, str]
    """By kind: why nothing is known of it."""


@dataclass(slots=True)
class _Watched:
    condition: Condition
    seen_at: float
    first_at: float | None
    """When it was first seen to hold after it was seen not to hold; None if it held from the beginning."""
    since: float | None = None
    is_open: bool = True


class Judgement:
    """The open episodes, kept from one evaluation to the next.

    A condition that begins while it is watched began then. One that was there at the first evaluation, or after
    a gap, began when the history says so; until that is read, its beginning is not known. A value that is an
    age says it itself. If the history says that it began earlier, it did: its samples came late. No earlier
    answer is kept, so a history that changes dates an episode anew. A condition that comes back within five
    minutes, as throttling often does, keeps its beginning.
    """

    def __init__(self, checks: Sequence[Check] = EVALUATED) -> None:
        self._checks = checks
        self._watched: dict[str, dict[EpisodeKey, _Watched]] = {}  # by kind
        self._evaluated_at: dict[str, float] = {}
        self._tried_at: dict[str, float] = {}
        self._changes = 0
        self.failed: dict[str, str] = {}
        """By kind: why its last evaluation failed."""
        self.others: dict[str, Sequence[Mapping[str, str]]] = {}
        """By kind: labels of the GPUs that the text of a finding names beside its own (`Check.others`)."""
        self.owners_before: dict[GpuKey, FindingOwner] = {}
        """Of GPUs that have no owner now, because they are lost."""

    @property
    def version(self) -> Hashable:
        """Another value when the open episodes may have changed."""
        return self._changes

    def due(self, now: float) -> list[Check]:
        """The most urgent first."""
        due = [check for check in self._checks if self._is_due(check, now)]
        return sorted(due, key=lambda check: check.every_seconds)

    def _is_due(self, check: Check, now: float) -> bool:
        at = self._tried_at.get(check.kind)
        return at is None or not 0 <= now - at < check.every_seconds

    def apply(self, check: Check, vector: Vector, at: float, others: Vector | None = None) -> None:
        """The result of one evaluation of a check."""
        self._tried_at[check.kind] = at
        self.failed.pop(check.kind, None)
        self.others[check.kind] = [] if others is None else [dict(labels) for labels in others.labels]
        conditions = [
            Condition(check, {name: text for name, text in labels if name != "__name__"}, value)
            for labels, value in zip(vector.labels, vector.values.tolist(), strict=True)
        ]
        self.update(check.kind, conditions, at)

    def update(self, kind: str, conditions: Iterable[Condition], at: float) -> None:
        """What a check holds for."""
        before_at = self._evaluated_at.get(kind)
        is_watched = before_at is not None and 0 <= at - before_at <= MAX_GAP_SECONDS
        self._evaluated_at[kind] = at
        self._changes += 1
        known = self._watched.get(kind, {})
        kept: dict[EpisodeKey, _Watched] = {}
        for condition in conditions:
            key = condition.subject, condition.detail
            watched = known.pop(key, None)
            if watched is None or not (watched.is_open or (is_watched and at - watched.seen_at < KEEP_SECONDS)):
                watched = _Watched(condition, at, at if is_watched else None)
            watched.condition, watched.seen_at, watched.is_open = condition, at, True
            kept[key] = watched
        for key, watched in known.items():
            if 0 <= at - watched.seen_at < KEEP_SECONDS:
                watched.is_open = False
                kept[key] = watched
        self._watched[kind] = kept

    def fail(self, check: Check, reason: str, at: float) -> None:
        self._tried_at[check.kind] = at
        self.failed[check.kind] = reason
        self._changes += 1
        self.expire(at)

    def expire(self, now: float) -> None:
        """Forgets what was not evaluated for too long: it failed, or the engine is slow and others wait."""
        for check in self._checks:
            known_at = self._evaluated_at.get(check.kind)
            if known_at is not None and now - known_at > check.every_seconds + UNKNOWN_SECONDS:
                self._watched.pop(check.kind, None)
                del self._evaluated_at[check.kind]
                self._changes += 1

    @property
    def not_known(self) -> dict[str, str]:
        """By kind: why nothing is known of it. Empty while a failed check still has its last result."""
        return {
            check.kind: self.failed.get(check.kind, NOT_EVALUATED)
            for check in self._checks
            if check.kind not in self._evaluated_at
        }

    def open_now(self, began: Mapping[SubjectKey, float] | None = None) -> list[OpenEpisode]:
        """`began` says when each stretch that reaches until now began, as far as the history is read."""
        episodes = []
        for of_kind in self._watched.values():
            for watched in of_kind.values():
                if watched.is_open:
                    watched.since = _since(watched, (began or {}).get(watched.condition.subject))
                    episodes.append(OpenEpisode(watched.condition, watched.since))
        return episodes


def _since(watched: _Watched, in_history: float | None) -> float | None:
    check, since = watched.condition.check, None
    if check.value_is_age:
        since = watched.seen_at - watched.condition.value
    elif watched.first_at is not None:
        since = watched.first_at - check.lead_seconds
    # The history knows more than an agent that restarted, or than an engine that the samples reached late.
    if in_history is not None and (since is None or in_history < since - SAME_SECONDS):
        since = in_history
    before = watched.since
    if since is not None and before is not None and abs(since - before) < SAME_SECONDS:
        return before
    return since


def without_explained(
    episodes: Sequence[OpenEpisode], node_of: Callable[[str], str] = lambda instance: instance
) -> list[OpenEpisode]:
    """Leaves out what another one explains: on the same GPU, or on its node. `node_of` has the name of the
    node with an address: Slurm calls its nodes by their names."""
    holding: dict[str, set[tuple[str, str]]] = {}
    for episode in episodes:
        subject = episode.condition.subject
        holding.setdefault(subject.kind, set()).add((node_of(subject.instance), subject.uuid))
    return [
        episode
        for episode in episodes
        if not _is_explained(episode, node_of(episode.condition.subject.instance), holding)
    ]


def _is_explained(one: OpenEpisode, node: str, holding: Mapping[str, Collection[tuple[str, str]]]) -> bool:
    subject = one.condition.subject
    for kind in one.condition.check.explained_by:
        held = holding.get(kind, ())
        if (node, subject.uuid) in held or (node, "") in held:
            return True
        if not subject.uuid and any(other == node for other, _ in held):
            return True
        # A service is everywhere, and so is a check of no particular node. But a node that is down does not
        # explain why Slurm, which another node reads, does not answer.
        if held and (CHECKS[kind].subject is Subject.SERVICE or not subject.instance):
            return True
    return False
