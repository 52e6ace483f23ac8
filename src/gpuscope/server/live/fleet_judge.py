"""Judges the fleet at each update: facts, idle times, findings and their beginnings, with memory between
updates.

A node is judged again when its samples have changed, when something else that its judgement depends on has
changed, and after 30 s because time passes; all others keep their judgement. `judge` runs in a worker thread.
What it cannot know is then looked up in the history by `look_up`, which runs beside the answers: the first
answer does not wait for it, a later one has it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from gpuscope.episode_log import EpisodeLog
from gpuscope.health.facts import FleetFacts, FleetTooLarge, NodeFacts, Sample, sort_samples
from gpuscope.health.finding import Finding, FindingOwner
from gpuscope.health.finding_owners import OwnerMemory
from gpuscope.health.findings import GpuKey, Judgement, is_stale, judge_node, missing_findings
from gpuscope.health.idle_times import IdleTimes
from gpuscope.health.missing import Gone, Missing
from gpuscope.health.since_times import SinceTimes
from gpuscope.health.slurm_facts import SlurmFacts
from gpuscope.health.slurm_join import NodesOfCluster
from gpuscope.health.use_findings import slow_places
from gpuscope.health.wait_checks import RankedGpu, Ranks, ranked_gpus, ranks_by_owner
from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.live.finding_history import beginnings, last_worked, owner_at
from gpuscope.server.live.fleet_samples import FleetSamples, by_node
from gpuscope.server.live.gone_history import HistoryQuery

log = logging.getLogger("gpuscope.live")

MAX_JUDGEMENT_SECONDS: Final = 30.0
"""Conditions depend on time, too: a node without new samples is judged again after this."""


GivenSamples = tuple[Sequence[Sample], Sequence[Sample]]
"""Of one node: the samples of now; and the last known ones if it is missing or its GPUs are not read."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedNode:
    """The facts of one node: a new object when one of them may have changed."""

    given: GivenSamples
    facts: FleetFacts
    node: NodeFacts | None
    """None if its samples are only those of a Slurm cluster."""
    slurm: tuple[Hashable, ...]
    """What Slurm's clusters know of it."""
    ranked: Sequence[RankedGpu]

    def is_current(self, given: GivenSamples, now: float) -> bool:
        is_recent = 0 <= now - self.facts.now < MAX_JUDGEMENT_SECONDS
        return is_recent and self.given[0] is given[0] and self.given[1] == given[1]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedNode:
    """A new object when the node was judged again."""

    instance: str
    sorted: SortedNode
    gone: Gone | None
    unread_since: float | None
    stale: bool
    waits_for: tuple[str, ...]
    """The slow ranks that its GPUs wait for."""
    judgement: Judgement

    @property
    def is_unread(self) -> bool:
        return self.stale or self.unread_since is not None


@dataclass(frozen=True, slots=True)
class JudgedFleet:
    now: float
    nodes: Mapping[str, JudgedNode]
    """By instance, in the order of the samples."""
    clusters: Mapping[str, SlurmFacts]
    """By the instance of the agent that reads one."""
    findings: list[Finding]
    """With their beginnings, most severe first."""
    missing: Missing
    """Without nodes that have fresh numbers again."""
    repeated: Set[GpuKey] = frozenset()
    """GPUs that another node reports too, as an agent does that pushes and is scraped: each GPU counts once."""
    left_out: int = 0
    """Nodes for which there was no room."""


class FleetJudge:
    """`query_history` None means that there is no history: beginnings are then those this process has seen."""

    def __init__(
        self,
        query_history: HistoryQuery | None = None,
        max_subjects: int = Limits().live_max_subjects,
    ) -> None:
        self._query_history = query_history
        self._max_subjects = max_subjects
        self._idle_times = IdleTimes()
        self._since_times = SinceTimes()
        self._owners = OwnerMemory()
        self._owners_in_history: dict[tuple[str, str], FindingOwner] = {}
        self._owners_looked_up: set[str] = set()
        self._undated: list[Finding] = []
        self._sorted: dict[str, SortedNode] = {}
        self._left_out = 0
        self._judged: dict[str, JudgedNode] = {}
        self._learned: set[str] = set()  # instances of nodes that the history knows more about
        self._clusters: dict[str, SlurmFacts] = {}
        self._clusters_of_nodes: list[NodesOfCluster] = []
        self._episode = EpisodeLog(log, "history of findings")

    def judge(self, samples: FleetSamples, missing: Missing, now: float) -> JudgedFleet:
        self._sort(samples, missing, now)
        nodes = {name: one.node for name, one in self._sorted.items() if one.node is not None}
        missing = _without_present(nodes, missing, now)
        ranks = ranks_by_owner(chain.from_iterable(one.ranked for one in self._sorted.values()))
        waiting = _waiting_ranks(ranks.values())
        owners = {**self._owners_in_history, **self._owners.owners}
        self._judged = {
            instance: self._judge_node(instance, one, now, missing, owners, waiting.get(instance, ()))
            for instance, one in self._sorted.items()
        }
        repeated = _repeated_gpus(self._judged.values())
        found = missing_findings(nodes, missing, now)
        found += [one for node in self._judged.values() for one in node.judgement.findings]
        if repeated:
            found = [one for one in found if not _is_about(one, repeated)]
        findings = self._since_times.apply(found, now)
        self._undated = self._since_times.undated(findings, now) if self._query_history is not None else []
        return JudgedFleet(now, self._judged, self._clusters, findings, missing, repeated, self._left_out)

    def _sort(self, samples: FleetSamples, missing: Missing, now: float) -> None:
        """Replaces what has changed in `_sorted`."""
        learned, self._learned = self._learned, set()
        last_known = by_node(missing.samples)
        names = dict.fromkeys((*samples, *last_known, *missing.nodes))
        given = {name: (samples.get(name, ()), last_known.get(name, ())) for name in names}
        kept = {} if self._idle_times.begin(now) else self._sorted
        kept = {
            name: one
            for name in names
            if name not in learned and (one := kept.get(name)) and one.is_current(given[name], now)
        }
        fresh: dict[str, FleetFacts] = {}
        shown: list[str] = []
        room = self._max_subjects
        for name in names:  # nodes that this server reads itself come first
            if name not in kept:
                try:
                    fresh[name] = sort_samples(chain(*given[name]), now, room)
                except FleetTooLarge:
                    continue
            subjects = (fresh[name] if name in fresh else kept[name].facts).subjects
            if subjects <= room:
                room -= subjects
                shown.append(name)
        self._left_out = len(names) - len(shown)
        if self._left_out:
            LIMITS_REACHED.count("live_max_subjects")
        self._update_clusters([fresh[name] if name in fresh else kept[name].facts for name in shown], fresh)
        found: dict[str, SortedNode] = {}
        for name in shown:
            node = (fresh[name] if name in fresh else kept[name].facts).nodes.get(name)
            known = () if node is None else tuple(one.known_of(node) for one in self._clusters_of_nodes)
            if name in kept and kept[name].slurm == known:
                found[name] = kept[name]
            else:
                facts = fresh[name] if name in fresh else sort_samples(chain(*given[name]), now)
                found[name] = self._complete(name, facts, given[name], known)
        for name in self._sorted.keys() - found.keys():
            self._idle_times.forget(name)
            self._owners.forget(name)
        self._sorted = found

    def _update_clusters(self, every: Iterable[FleetFacts], fresh: Mapping[str, FleetFacts]) -> None:
        if not self._clusters and not any(one.slurm for one in fresh.values()):
            return
        clusters = {instance: cluster for one in every for instance, cluster in one.slurm.items()}
        if clusters != self._clusters:
            self._clusters_of_nodes = [NodesOfCluster(one) for one in clusters.values()]
        self._clusters = clusters

    def _complete(
        self, instance: str, facts: FleetFacts, given: GivenSamples, slurm: tuple[Hashable, ...]
    ) -> SortedNode:
        """Adds what needs memory or other nodes: idle times, Slurm's allocations, owners."""
        self._idle_times.apply(facts)
        node = facts.nodes.get(instance)
        if node is not None:
            for cluster in self._clusters_of_nodes:
                cluster.join(node, facts.now)
        self._owners.remember(facts)
        return SortedNode(given, facts, node, slurm, ranked_gpus(facts))

    def _judge_node(
        self,
        instance: str,
        one: SortedNode,
        now: float,
        missing: Missing,
        owners: Mapping[tuple[str, str], FindingOwner],
        ranks: Sequence[Ranks],
    ) -> JudgedNode:
        """The last judgement, if nothing that it depends on has changed."""
        gone, unread = missing.nodes.get(instance), missing.unread.get(instance)
        stale = one.node is not None and is_stale(one.node, now)
        slow = tuple(slow_places(rank.slow, instance) for rank in ranks)
        before = self._judged.get(instance)
        if (
            before is not None
            and before.sorted is one
            and (before.gone, before.unread_since, before.stale, before.waits_for)
            == (gone, unread, stale, slow)
        ):
            return before
        judgement = Judgement()
        if one.node is not None:
            judgement = judge_node(instance, one.node, now, missing, owners, ranks)
        return JudgedNode(instance, one, gone, unread, stale, slow, judgement)

    async def look_up(self, judged: JudgedFleet) -> None:
        """Queries the history for what the last update did not know. A failure affects only these
        beginnings."""
        if self._query_history is None:
            return
        now, unknown, undated = judged.now, self._idle_times.unknown(), self._undated
        try:
            if unknown:
                found = await last_worked(self._query_history, unknown, now)
                self._learned |= self._idle_times.learn(found, unknown)
            if undated:
                self._since_times.learn(await beginnings(self._query_history, undated, now))
            await self._look_up_owners(self._query_history, judged.findings)
        except Exception as error:  # an error of the engine; the live numbers are not affected
            self._episode.failed(str(error))
        else:
            self._episode.succeeded()

    async def _look_up_owners(self, query_history: HistoryQuery, findings: Iterable[Finding]) -> None:
        lost = {one.id: one for one in findings if one.kind == "gpu_lost"}
        self._owners_looked_up &= lost.keys()
        here = {(one.instance, one.uuids[0]) for one in lost.values()}
        self._owners_in_history = {key: one for key, one in self._owners_in_history.items() if key in here}
        for finding in lost.values():
            key = finding.instance, finding.uuids[0]
            if finding.since is None or finding.id in self._owners_looked_up or key in self._owners.owners:
                continue
            self._owners_looked_up.add(finding.id)
            owner = await owner_at(query_history, *key, finding.since)
            if owner is not None:
                self._owners_in_history[key] = owner
                self._learned.add(finding.instance)


def _repeated_gpus(nodes: Collection[JudgedNode]) -> set[GpuKey]:
    """Every report of a GPU but one: the first of a node with fresh numbers."""
    keys = [key for node in nodes for key in node.judgement.states]
    if len({uuid for _, uuid in keys}) == len(keys):
        return set()
    best_first = sorted(nodes, key=lambda node: (node.gone is not None, node.is_unread))
    reporters: dict[str, str] = {}
    for node in best_first:
        for instance, uuid in node.judgement.states:
            reporters.setdefault(uuid, instance)
    return {(instance, uuid) for instance, uuid in keys if reporters[uuid] != instance}


def _is_about(finding: Finding, gpus: Set[GpuKey]) -> bool:
    """Whether all the GPUs of a finding are among these."""
    return bool(finding.uuids) and all((finding.instance, uuid) in gpus for uuid in finding.uuids)


def _waiting_ranks(ranks: Iterable[Ranks]) -> dict[str, list[Ranks]]:
    """By the instance of a GPU that waits."""
    found: dict[str, list[Ranks]] = {}
    for one in ranks:
        for instance in dict.fromkeys(gpu.labels["instance"] for gpu in one.waiting):
            found.setdefault(instance, []).append(one)
    return found


def _without_present(nodes: Mapping[str, NodeFacts], missing: Missing, now: float) -> Missing:
    """A node that is missing and has fresh numbers has come back since the scraper's state was read."""
    gone = {}
    for instance, one in missing.nodes.items():
        node = nodes.get(instance)
        taken_at = None if node is None else node.plain.get("gpuscope_agent_snapshot_timestamp_seconds")
        if node is None or taken_at is None or is_stale(node, now) or one.since >= taken_at:
            gone[instance] = one
    return missing if len(gone) == len(missing.nodes) else replace(missing, nodes=gone)
