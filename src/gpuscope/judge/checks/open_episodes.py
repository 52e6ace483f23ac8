"""Which checks hold now, and since when: the open episodes, kept from one evaluation to the next.

A condition that begins while it is watched began then. One that was there at the first evaluation, or after a
gap, began when the history says so; until that is read, its beginning is not known. A value that is an age says
it itself. If the history says that it began earlier, it did: its samples came late. No earlier answer is kept,
so a history that changes dates an episode anew. A condition that comes back within five minutes, as throttling
often does, keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.judge.checks.check import Subject
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.condition import Condition, SubjectKey
from gpuscope.judge.checks.finding import Loss

KEEP_SECONDS: Final = 300.0
MAX_GAP_SECONDS: Final = 150.0
"""Between two evaluations of a check; in a longer gap something may have begun or ended unseen."""
SAME_SECONDS: Final = 60.0
"""Two answers that differ by less mean the same beginning: a scrape comes late, a step is a minute."""

Began = Callable[[SubjectKey], float | None]
"""When the stretch that reaches until now began, as far as the history is read."""
EpisodeKey = tuple[SubjectKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    condition: Condition
    since: float | None
    """None while it is not known."""
    loss: Loss | None = None
    """As far as the history is read."""


@dataclass(slots=True)
class _Watched:
    condition: Condition
    seen_at: float
    first_at: float | None
    """When it was first seen to hold after it was seen not to hold; None if it held from the beginning."""
    since: float | None = None
    is_open: bool = True


class OpenEpisodes:
    def __init__(self) -> None:
        self._watched: dict[str, dict[EpisodeKey, _Watched]] = {}  # by kind
        self._evaluated_at: dict[str, float] = {}

    def update(self, kind: str, conditions: Iterable[Condition], at: float) -> None:
        """The result of one evaluation of a check."""
        before_at = self._evaluated_at.get(kind)
        is_watched = before_at is not None and 0 <= at - before_at <= MAX_GAP_SECONDS
        self._evaluated_at[kind] = at
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

    def forget(self, kind: str) -> None:
        """The check could not be evaluated for so long that nothing is known of it."""
        self._watched.pop(kind, None)
        self._evaluated_at.pop(kind, None)

    def evaluated_at(self, kind: str) -> float | None:
        return self._evaluated_at.get(kind)

    def open_now(self, began: Began) -> list[OpenEpisode]:
        found = []
        for watched_of_kind in self._watched.values():
            for watched in watched_of_kind.values():
                if watched.is_open:
                    watched.since = _since(watched, began)
                    found.append(OpenEpisode(watched.condition, watched.since))
        return found


def _since(watched: _Watched, began: Began) -> float | None:
    check, in_history = watched.condition.check, began(watched.condition.subject)
    since = None
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
