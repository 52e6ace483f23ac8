"""Judges the fleet once a look: facts, idle times, findings and their beginnings, with memory between looks.

`judge` runs in a worker thread. What it cannot know is then looked up in the history by `look_up`, which runs
beside the answers: the first answer does not wait for it, a later one has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from gpuscope.episode_log import EpisodeLog
from gpuscope.health.facts import FleetFacts, Sample, sort_samples
from gpuscope.health.finding import Finding, FindingOwner
from gpuscope.health.finding_owners import OwnerMemory
from gpuscope.health.findings import Judgement, is_stale, judge
from gpuscope.health.idle_times import IdleTimes
from gpuscope.health.missing import Missing
from gpuscope.health.since_times import SinceTimes
from gpuscope.server.finding_history import beginnings, last_worked, owner_at
from gpuscope.server.gone_history import Ask

log = logging.getLogger("gpuscope.live")


@dataclass(frozen=True, slots=True)
class JudgedFleet:
    fleet: FleetFacts
    judgement: Judgement
    findings: list[Finding]
    """With their beginnings, most severe first."""
    missing: Missing
    """Without nodes that are there all the same."""


class FleetJudge:
    """`ask` None means that there is no history: beginnings are then those this process has seen."""

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask
        self._idle_times = IdleTimes()
        self._since_times = SinceTimes()
        self._owners = OwnerMemory()
        self._owners_in_history: dict[tuple[str, str], FindingOwner] = {}
        self._owners_asked: set[str] = set()
        self._undated: list[Finding] = []
        self._episode = EpisodeLog(log, "history of findings")

    def judge(self, samples: Iterable[Sample], missing: Missing, now: float) -> JudgedFleet:
        fleet = sort_samples(chain(samples, missing.samples), now)
        missing = _without_present(fleet, missing)
        self._idle_times.apply(fleet)
        self._owners.remember(fleet)
        judgement = judge(fleet, missing, {**self._owners_in_history, **self._owners.owners})
        findings = self._since_times.apply(judgement.findings, now)
        self._undated = self._since_times.undated(findings, now) if self._ask is not None else []
        return JudgedFleet(fleet, judgement, findings, missing)

    async def look_up(self, judged: JudgedFleet) -> None:
        """Asks the history for what the last look did not know. A failure costs only these beginnings."""
        if self._ask is None:
            return
        now, unknown, undated = judged.fleet.now, self._idle_times.unknown(), self._undated
        try:
            if unknown:
                self._idle_times.learn(await last_worked(self._ask, unknown, now), unknown)
            if undated:
                self._since_times.learn(await beginnings(self._ask, undated, now))
            await self._look_up_owners(self._ask, judged.findings)
        except Exception as error:  # the engine's trouble; the live numbers themselves go on
            self._episode.failed(str(error))
        else:
            self._episode.succeeded()

    async def _look_up_owners(self, ask: Ask, findings: Iterable[Finding]) -> None:
        lost = {one.id: one for one in findings if one.kind == "gpu_lost"}
        self._owners_asked &= lost.keys()
        here = {(one.instance, one.uuids[0]) for one in lost.values()}
        self._owners_in_history = {key: one for key, one in self._owners_in_history.items() if key in here}
        for finding in lost.values():
            key = finding.instance, finding.uuids[0]
            if finding.since is None or finding.id in self._owners_asked or key in self._owners.owners:
                continue
            self._owners_asked.add(finding.id)
            owner = await owner_at(ask, *key, finding.since)
            if owner is not None:
                self._owners_in_history[key] = owner


def _without_present(fleet: FleetFacts, missing: Missing) -> Missing:
    """A node that is missing and has fresh numbers has come back since the scraper's state was read."""
    gone = {}
    for instance, one in missing.nodes.items():
        node = fleet.nodes.get(instance)
        taken_at = None if node is None else node.plain.get("gpuscope_agent_snapshot_timestamp_seconds")
        if node is None or taken_at is None or is_stale(node, fleet.now) or one.since >= taken_at:
            gone[instance] = one
    return missing if len(gone) == len(missing.nodes) else replace(missing, nodes=gone)
