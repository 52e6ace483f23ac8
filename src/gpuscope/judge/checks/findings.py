"""From open episodes to findings: which of them are one, whom they name, what they say.

A GPU that is lost or broken is a finding of its own; GPUs of one node with the same smaller problem are one;
use is judged per owner (pod, job, container or user). A finding that another one explains is left out. The
facts give names and numbers for the texts; whether a check holds is not decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuscope.judge.checks.check import Check, Subject
from gpuscope.judge.checks.facts import NOTHING_MISSING, Missing, NodeFacts, ProcessFacts, node_name
from gpuscope.judge.checks.finding import (
    NO_OWNER,
    Condition,
    Finding,
    FindingOwner,
    GpuKey,
    Loss,
    SubjectKey,
    by_number,
    finding_id,
    owner_of,
)
from gpuscope.judge.checks.finding_details import Surroundings, describe, evidence_query
from gpuscope.judge.checks.finding_texts import (
    FINDING_TEXTS,
    NOT_FINDINGS,
    fill,
    owner_text,
    place_values,
    step_key,
    vendor_step,
)
from gpuscope.judge.checks.gpu_checks import ERROR_KINDS
from gpuscope.judge.checks.judgement import OpenEpisode, without_explained
from gpuscope.judge.checks.states import STATE_OF_KIND
from gpuscope.judge.checks.thresholds import IDLE_FINDING_SECONDS
from gpuscope.model.slurm_gpu_index import short_node_name
from gpuscope.model.vendor import UNLABELLED

ONE_PER_GPU: Final = frozenset(
    {"gpu_lost", "recovery_action", *ERROR_KINDS, "ecc_uncorrected", "ecc_sram_threshold", "row_remap_pending",
     "row_remap_failed", "spare_rows_out", "pages_retiring", "orphan_memory", "failed_jobs"}
)  # fmt: skip
"""One finding per GPU for these kinds: each GPU is drained, reset or replaced separately."""

Others = Mapping[str, Sequence[Mapping[str, str]]]
"""By kind: labels of the GPUs that the text of a finding names beside its own (`Check.others`)."""


class FindingMaker:
    """`owners_before` has the owners of GPUs that have none now, because they are lost."""

    def __init__(
        self,
        nodes: Mapping[str, NodeFacts],
        missing: Missing = NOTHING_MISSING,
        others: Others | None = None,
        owners_before: Mapping[GpuKey, FindingOwner] | None = None,
    ) -> None:
        self._nodes = nodes
        self._gpus = {
            (instance, gpu.labels["uuid"]): gpu for instance, node in nodes.items() for gpu in node.gpus
        }
        self._missing = missing
        self._others = others or {}
        self._owners_before = owners_before or {}
        self._losses: dict[SubjectKey, Loss] = {}
        """Those that no finding has yet: one that throttles for two reasons loses its time once."""

    def make(self, episodes: Sequence[OpenEpisode]) -> list[Finding]:
        groups: dict[tuple[str, ...], list[OpenEpisode]] = defaultdict(list)
        self._losses = {}
        for episode in without_explained(list(self._without_repeated_nodes(episodes)), self._short_name):
            if episode.condition.check.kind not in NOT_FINDINGS:
                groups[self._group(episode.condition)].append(episode)
                if episode.loss is not None:
                    self._losses[episode.condition.subject] = episode.loss
        return [
            self._finding(key, members) for key, group in groups.items() for members in _close_in_time(group)
        ]

    def reasons(self, episodes: Iterable[OpenEpisode]) -> dict[str, dict[str, dict[str, str]]]:
        """By instance and UUID: the kinds that give a GPU its state, with the reason in a few words."""
        found: dict[str, dict[str, dict[str, str]]] = {}
        for episode in episodes:
            condition, subject = episode.condition, episode.condition.subject
            if subject.uuid and subject.kind in STATE_OF_KIND:
                short = describe(condition, self._surroundings(condition)).short
                found.setdefault(subject.instance, {}).setdefault(subject.uuid, {})[subject.kind] = short
        return found

    def _without_repeated_nodes(self, episodes: Iterable[OpenEpisode]) -> Iterator[OpenEpisode]:
        """A node that came back under another address is not down."""
        present = {node_name(node) for name, node in self._nodes.items() if name not in self._missing.nodes}
        for episode in episodes:
            subject = episode.condition.subject
            if subject.kind == "node_down" and self._node_name(subject.instance) in present:
                continue
            yield episode

    def _short_name(self, instance: str) -> str:
        """Slurm's name of the node."""
        return short_node_name(self._node_name(instance))

    def _node_name(self, instance: str) -> str:
        node = self._nodes.get(instance)
        return instance if node is None else node_name(node)

    def _group(self, condition: Condition) -> tuple[str, ...]:
        check, subject = condition.check, condition.subject
        if subject.owner:
            owner = owner_of(condition.labels)
            return check.kind, subject.instance, owner.kind, owner.namespace, owner.name
        if check.kind in ONE_PER_GPU:
            return check.kind, subject.instance, subject.uuid
        said = describe(condition, self._surroundings(condition)).args
        return check.kind, subject.instance, subject.cluster, str(sorted(said.items()))

    def _surroundings(self, condition: Condition) -> Surroundings:
        subject = condition.subject
        return Surroundings(
            self._nodes.get(subject.instance),
            self._gpus.get(subject.gpu),
            self._missing,
            [
                labels
                for labels in self._others.get(subject.kind, ())
                if _is_same_owner(labels, condition.labels)
            ],
        )

    def _finding(self, key: tuple[str, ...], members: Sequence[OpenEpisode]) -> Finding:
        first = members[0].condition
        check, instance = first.check, first.subject.instance
        indices = {member.condition.subject.uuid: self._index(member.condition) for member in members}
        uuids = sorted(
            indices.keys() - {""}, key=lambda uuid: (by_number(self._known_index(instance, uuid)), uuid)
        )
        gpus = tuple(indices[uuid] for uuid in uuids)
        owner = self._owner(check, members)
        newest = min((member.condition for member in members), key=lambda condition: condition.value)
        chosen = newest if check.kind in ERROR_KINDS else first
        detail = describe(chosen, self._surroundings(chosen))
        anchor = uuids[0] if check.kind == "held_idle" else ""
        begins = [episode.since for episode in members if episode.since is not None]
        subjects = dict.fromkeys(member.condition.subject for member in members)
        losses = [self._losses.pop(subject, None) for subject in subjects]
        known = [loss for loss in losses if loss is not None]
        is_known = bool(known) and len(known) == len(losses)
        gpu = self._gpus.get((instance, uuids[0])) if uuids else None
        vendor = UNLABELLED if gpu is None else gpu.vendor
        why_key = detail.why_key or check.kind
        step, next_key = vendor_step(step_key(detail.next_key or check.kind, owner), check, vendor)
        values = {**detail.args, **place_values(gpus, owner_text(owner))}
        return Finding(
            id=finding_id(*key, anchor),
            kind=check.kind,
            severity=check.severity,
            node=self._node_name(instance),
            instance=instance,
            gpus=gpus,
            uuids=tuple(uuids),
            owner=owner,
            since=min(begins) if len(begins) == len(members) else None,
            why=fill(FINDING_TEXTS[why_key], values),
            why_key=why_key,
            args=detail.args,
            next=fill(detail.next or step, values),
            next_key=next_key,
            evidence=evidence_query(check, instance, uuids),
            cost_gpu_hours=sum(loss.gpu_seconds for loss in known) / 3600 if is_known else None,
            wasted_gpus=sum(loss.gpus for loss in known) if is_known else None,
            cost_at=max(loss.at for loss in known) if is_known else None,
        )

    def _index(self, condition: Condition) -> str:
        return condition.labels.get("gpu") or self._known_index(*condition.subject.gpu)

    def _known_index(self, instance: str, uuid: str) -> str:
        gpu = self._gpus.get((instance, uuid))
        return "" if gpu is None else gpu.labels.get("gpu", "")

    def _owner(self, check: Check, members: Sequence[OpenEpisode]) -> FindingOwner:
        first = members[0].condition
        if first.subject.owner:
            owner = owner_of(first.labels)
            node = self._nodes.get(first.subject.instance)
            if owner.kind == "job" and not owner.user and node is not None:
                job = node.slurm.jobs.get(owner.name)
                user = "" if job is None else job.labels.get("user", "")
                return FindingOwner("job", "", owner.name, user)
            return owner
        if check.subject is not Subject.GPU:
            return NO_OWNER
        owners = {self._owner_of_gpu(episode.condition.subject.gpu) for episode in members}
        return owners.pop() if len(owners) == 1 else NO_OWNER

    def _owner_of_gpu(self, key: GpuKey) -> FindingOwner:
        gpu = self._gpus.get(key)
        owner = None if gpu is None else main_owner(gpu.processes)
        return owner or self._owners_before.get(key, NO_OWNER)


def _close_in_time(group: list[OpenEpisode]) -> Iterator[list[OpenEpisode]]:
    """Of idle GPUs those that went idle within 15 minutes are one finding, so that its `since` is right for
    all of them; other groups stay together."""
    if group[0].condition.check.kind != "held_idle" or any(episode.since is None for episode in group):
        yield group
        return
    part: list[OpenEpisode] = []
    for episode in sorted(group, key=lambda episode: (episode.since or 0.0, episode.condition.subject.uuid)):
        if part and (episode.since or 0.0) - (part[0].since or 0.0) > IDLE_FINDING_SECONDS:
            yield part
            part = []
        part.append(episode)
    yield part


def _is_same_owner(labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whose job it is, only some series say."""
    one, other = owner_of(labels), owner_of(others)
    return (one.kind, one.namespace, one.name) == (other.kind, other.namespace, other.name)


def main_owner(processes: Sequence[ProcessFacts]) -> FindingOwner | None:
    """The owner of the process with the most memory; None without processes."""
    if not processes:
        return None
    largest = max(processes, key=lambda one: one.plain.get("gpuscope_process_memory_bytes", 0.0))
    return owner_of(largest.labels)
