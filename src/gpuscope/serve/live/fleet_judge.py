"""The fleet at each update: the facts of every node, the state of every GPU, and the findings of now.

A node is sorted again when its samples have changed, when something else that its state depends on has changed,
and after 30 s because time passes; all others keep their state. Findings come from the open episodes, which are
evaluated beside the pictures; they are made again when one of them has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.checks.facts import (
    TAKEN_AT,
    FleetFacts,
    FleetTooLarge,
    Gone,
    Missing,
    NodeFacts,
    Sample,
    SlurmFacts,
    is_stale,
    numbers_from,
    sort_samples,
)
from gpuscope.judge.checks.finding import Finding, GpuKey, worst_first
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.judge.checks.judgement import Judgement, OpenEpisode
from gpuscope.judge.checks.slurm_join import NodesOfCluster
from gpuscope.judge.checks.states import GpuState, Reasons, states_of
from gpuscope.model.readings import ABSENT
from gpuscope.serve.live.fleet_samples import FleetSamples, by_node

MAX_JUDGEMENT_SECONDS: Final = 30.0
"""States depend on time, too: a node without new samples is judged again after this."""


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
    reasons: Reasons
    states: Mapping[GpuKey, GpuState]

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
    """Most severe first."""
    missing: Missing
    """Without nodes that have fresh numbers again."""
    not_known: Mapping[str, str] = field(default_factory=dict)
    """By kind: why a check says nothing of now."""
    repeated: Set[GpuKey] = frozenset()
    """GPUs that another node reports too, as an agent does that pushes and is scraped: each GPU counts once."""
    left_out: int = 0
    """Nodes for which there was no room."""


class FleetJudge:
    def __init__(
        self, judgement: Judgement | None = None, max_subjects: int = Limits().live_max_subjects
    ) -> None:
        self._judgement = judgement or Judgement(checks=())
        self._max_subjects = max_subjects
        self._sorted: dict[str, SortedNode] = {}
        self._left_out = 0
        self._judged: dict[str, JudgedNode] = {}
        self._clusters: dict[str, SlurmFacts] = {}
        self._clusters_of_nodes: list[NodesOfCluster] = []
        self._findings: list[Finding] = []
        self._made_of: Hashable = None
        self._episodes: Sequence[OpenEpisode] = ()
        self._episodes_of: Hashable = object()
        """The version of the judgement that `_episodes` are of; at first none of them."""
        self._reasons: Mapping[str, Reasons] = {}

    def judge(self, samples: FleetSamples, missing: Missing, now: float) -> JudgedFleet:
        self._sort(samples, missing, now)
        nodes = {name: one.node for name, one in self._sorted.items() if one.node is not None}
        missing = _without_present(nodes, missing, now)
        self._make_findings(nodes, missing)
        self._judged = {
            instance: self._judge_node(instance, one, now, missing) for instance, one in self._sorted.items()
        }
        repeated = _repeated_gpus(self._judged.values())
        findings = self._findings
        if repeated:
            findings = [finding for finding in findings if not _is_about(finding, repeated)]
        not_known = self._judgement.not_known
        return JudgedFleet(
            now, self._judged, self._clusters, findings, missing, not_known, repeated, self._left_out
        )

    def _make_findings(self, nodes: Mapping[str, NodeFacts], missing: Missing) -> None:
        if self._judgement.version != self._episodes_of:
            self._episodes, self._episodes_of = self._judgement.open_now(), self._judgement.version
        refuted = {id(episode) for episode in self._episodes if _is_refuted(episode, nodes)}
        made_of = self._episodes_of, frozenset(refuted), tuple(missing.nodes.items()), len(nodes)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        episodes = [episode for episode in self._episodes if id(episode) not in refuted]
        maker = FindingMaker(nodes, missing, self._judgement.others, self._judgement.owners_before)
        known = {finding.id: finding for finding in self._findings}
        # A finding that says the same stays the same object, so that the picture sees what has changed.
        made = (
            before if (before := known.get(finding.id)) == finding else finding
            for finding in maker.make(episodes)
        )
        self._findings = sorted(made, key=worst_first)
        self._reasons = maker.reasons(episodes)

    def _sort(self, samples: FleetSamples, missing: Missing, now: float) -> None:
        """Replaces what has changed in `_sorted`."""
        last_known = by_node(missing.samples)
        names = dict.fromkeys((*samples, *last_known, *missing.nodes))
        given = {name: (samples.get(name, ()), last_known.get(name, ())) for name in names}
        kept = {
            name: one
            for name in names
            if (one := self._sorted.get(name)) is not None and one.is_current(given[name], now)
        }
        read_at = {name: self._read_at(name, given[name], now) for name in names if name not in kept}
        fresh: dict[str, FleetFacts] = {}
        shown: list[str] = []
        room = self._max_subjects
        for name in names:  # nodes that this server reads itself come first
            if name not in kept:
                try:
                    fresh[name] = sort_samples(chain(*given[name]), now, room, read_at[name])
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
                facts = fresh.get(name)
                if facts is None:
                    before = kept[name].facts
                    facts = sort_samples(chain(*given[name]), now, read_at=before.read_at)
                node = facts.nodes.get(name)
                if node is not None:
                    for cluster in self._clusters_of_nodes:
                        cluster.join(node)
                found[name] = SortedNode(given[name], facts, node, known)
        self._sorted = found

    def _read_at(self, name: str, given: GivenSamples, now: float) -> float:
        """When the samples became known: time passes for those that stay the same."""
        before = self._sorted.get(name)
        return now if before is None or before.given[0] != given[0] else before.facts.read_at

    def _update_clusters(self, every: Iterable[FleetFacts], fresh: Mapping[str, FleetFacts]) -> None:
        if not self._clusters and not any(one.slurm for one in fresh.values()):
            return
        clusters = {instance: cluster for one in every for instance, cluster in one.slurm.items()}
        if clusters != self._clusters:
            self._clusters_of_nodes = [NodesOfCluster(cluster) for cluster in clusters.values()]
        self._clusters = clusters

    def _judge_node(self, instance: str, one: SortedNode, now: float, missing: Missing) -> JudgedNode:
        """The last judgement, if nothing that it depends on has changed."""
        gone, unread = missing.nodes.get(instance), missing.unread.get(instance)
        stale = one.node is not None and is_stale(one.node, now)
        reasons = self._reasons.get(instance, {})
        before = self._judged.get(instance)
        if (
            before is not None
            and before.sorted is one
            and (before.gone, before.unread_since, before.stale, before.reasons)
            == (gone, unread, stale, reasons)
        ):
            return before
        states: Mapping[GpuKey, GpuState] = {}
        if one.node is not None and (gone is not None or TAKEN_AT in one.node.plain):  # else not an agent
            is_gone, is_unread = gone is not None, unread is not None
            states = states_of(one.node, reasons, gone=is_gone, unread=is_unread, now=now)
        return JudgedNode(instance, one, gone, unread, stale, reasons, states)


def _is_refuted(episode: OpenEpisode, nodes: Mapping[str, NodeFacts]) -> bool:
    """Whether a process works that did not when the check was evaluated."""
    subject, node = episode.condition.subject, nodes.get(episode.condition.subject.instance)
    if not episode.condition.check.nothing_works or node is None:
        return False
    return any(
        process.is_active for gpu in node.gpus if gpu.labels["uuid"] == subject.uuid for process in gpu.holders
    )


def _repeated_gpus(nodes: Collection[JudgedNode]) -> set[GpuKey]:
    """Every report of a GPU but one: the first of a node with fresh numbers."""
    keys = [key for node in nodes for key in node.states]
    if len({uuid for _, uuid in keys}) == len(keys):
        return set()
    best_first = sorted(nodes, key=lambda node: (node.gone is not None, node.is_unread))
    reporters: dict[str, str] = {}
    for node in best_first:
        for instance, uuid in node.states:
            reporters.setdefault(uuid, instance)
    return {(instance, uuid) for instance, uuid in keys if reporters[uuid] != instance}


def _is_about(finding: Finding, gpus: Set[GpuKey]) -> bool:
    """Whether all the GPUs of a finding are among these."""
    return bool(finding.uuids) and all((finding.instance, uuid) in gpus for uuid in finding.uuids)


def _without_present(nodes: Mapping[str, NodeFacts], missing: Missing, now: float) -> Missing:
    """A node that is missing and has fresh numbers has come back since the scraper's state was read."""
    gone = {}
    for instance, one in missing.nodes.items():
        node = nodes.get(instance)
        taken_at = ABSENT if node is None else numbers_from(node)
        if node is None or taken_at is ABSENT or is_stale(node, now) or one.since >= taken_at:
            gone[instance] = one
    return missing if len(gone) == len(missing.nodes) else replace(missing, nodes=gone)
