"""Since when each finding lasts: what its facts say, else what this memory saw, else what the history says.

A finding that begins while the fleet is watched began now. One that is there at the first judgement, or after a
gap, is looked up in the history; until then its `since` is None. A finding that comes back within five minutes,
as throttling often does, keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpuscope.health.finding import Finding, worst_first
from gpuscope.health.thresholds import MAX_GAP_SECONDS

KEEP_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 60.0


@dataclass(slots=True)
class _FindingTimes:
    since: float | None
    seen_at: float
    queried_at: float | None = None
    finding: Finding | None = None
    """As it was given in the last time."""
    dated: Finding | None = None
    """The same with its beginning: the same object as long as nothing changes."""


class SinceTimes:
    def __init__(self) -> None:
        self._known: dict[str, _FindingTimes] = {}
        self._looked_at: float | None = None

    def apply(self, findings: Iterable[Finding], now: float) -> list[Finding]:
        """The findings with their beginnings, most severe first, then oldest."""
        watching = self._looked_at is not None and 0 <= now - self._looked_at <= MAX_GAP_SECONDS
        self._looked_at = now
        dated = []
        for finding in findings:
            known = self._known.get(finding.id)
            if known is None:
                since = finding.since
                if since is None and watching:
                    since = now
                known = self._known[finding.id] = _FindingTimes(since, now)
            known.seen_at = now
            if finding.since is not None:  # an XID that repeats moves its time; the finding began before
                known.since = finding.since if known.since is None else min(known.since, finding.since)
            if known.dated is None or known.finding is not finding or known.dated.since != known.since:
                known.finding = finding
                known.dated = finding if finding.since == known.since else replace(finding, since=known.since)
            dated.append(known.dated)
        self._known = {one: known for one, known in self._known.items() if now - known.seen_at < KEEP_SECONDS}
        return sorted(dated, key=worst_first)

    def undated(self, findings: Iterable[Finding], now: float) -> list[Finding]:
        """Those to look up in the history now; each is given out once a minute at most."""
        found = []
        for finding in findings:
            known = self._known.get(finding.id)
            if known is None or known.since is not None:
                continue
            if known.queried_at is None or now - known.queried_at > RETRY_SECONDS:
                known.queried_at = now
                found.append(finding)
        return found

    def learn(self, since: dict[str, float]) -> None:
        """By finding id."""
        for one, at in since.items():
            known = self._known.get(one)
            if known is not None and known.since is None:
                known.since = at
