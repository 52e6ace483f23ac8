"""From the facts of a fleet to its findings and to the state of each GPU. Pure: no clock, no I/O, no memory.

A GPU that is lost or broken is a finding of its own; GPUs of one node with the same smaller problem are one;
use is judged per owner (pod, job, or a user's processes of one command). A finding that another one explains is
left out. `since` is filled where the facts say it; `since_times.SinceTimes` knows the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from gpuscope.health.check import Check, Subject, metric_names
from gpuscope.health.checks import CHECKS, LIVE_CHECKS
from gpuscope.health.facts import FleetFacts, GpuFacts, NodeFacts
from gpuscope.health.finding import NO_OWNER, Finding, FindingOwner, finding_id
from gpuscope.health.finding_details import Detail, describe_gpu, evidence_query
from gpuscope.health.finding_owners import OwnersBefore, main_owner
from gpuscope.health.finding_texts import FINDING_TEXTS, NOT_FINDINGS, STEP_TEXTS, fill, place_values
from gpuscope.health.missing import NOTHING_MISSING, Missing
from gpuscope.health.node_findings import NodeDetail, missing_details, node_details
from gpuscope.health.states import (
    ALLOCATION_UNKNOWN,
    IN_USE,
    PROCESSES_UNKNOWN,
    STATE_OF_KIND,
    UNKNOWN_USES,
    USES,
    State,
    state_of_use,
)
from gpuscope.health.thresholds import STALE_SECONDS
from gpuscope.health.use_findings import UseFinding, use_findings
from gpuscope.health.wait_checks import WAIT_THRESHOLDS, Ranks, ranked_gpus, ranks_by_owner
from gpuscope.readings import ABSENT

GpuKey = tuple[str, str]
"""Instance and UUID."""

USE_KINDS: Final = frozenset(
    {
        "held_idle",
        "allocated_unused",
        "used_unallocated",
        "only_some_work",
        "long_running",
        "waits_for_rank",
        *WAIT_THRESHOLDS,
    }
)
_GPU_CHECKS: Final = tuple(
    check
    for check in LIVE_CHECKS
    if check.subject is Subject.GPU and check.kind not in USE_KINDS and check.kind not in NOT_FINDINGS
)
ONE_PER_GPU: Final = frozenset(
    {"gpu_lost", "recovery_action", "xid_hardware", "xid_nvlink", "xid_driver", "xid_application",
     "ecc_uncorrected", "ecc_sram_threshold", "row_remap_pending", "row_remap_failed", "spare_rows_out",
     "pages_retiring", "orphan_memory"}
)  # fmt: skip
"""One finding per GPU for these kinds: each GPU is drained, reset or replaced separately."""


@dataclass(frozen=True, slots=True)
class GpuState:
    state: State
    kind: str = ""
    """The finding that gives it this state."""
    why: str = ""
    is_in_use: bool = False
    """A process or an allocation is on it. False if nobody knows: it is lost, gone or stale."""


@dataclass(slots=True)
class Judgement:
    findings: list[Finding] = field(default_factory=list)
    states: dict[GpuKey, GpuState] = field(default_factory=dict)


def node_name(node: NodeFacts) -> str:
    named = (gpu.labels.get("node") for gpu in node.gpus)
    return node.labels.get("node") or next(filter(None, named), "") or node.labels["instance"]


def is_stale(node: NodeFacts, now: float) -> bool:
    taken_at = node.number("gpuscope_agent_snapshot_timestamp_seconds")
    return taken_at is ABSENT or not now - taken_at <= STALE_SECONDS


def judge(
    fleet: FleetFacts, missing: Missing = NOTHING_MISSING, owners_before: OwnersBefore | None = None
) -> Judgement:
    """Of a whole fleet."""
    done = Judgement(findings=missing_findings(fleet.nodes, missing, fleet.now))
    ranks = list(ranks_by_owner(ranked_gpus(fleet)).values())
    for instance, node in fleet.nodes.items():
        one = judge_node(instance, node, fleet.now, missing, owners_before or {}, ranks)
        done.findings += one.findings
        done.states |= one.states
    return done


def judge_node(
    instance: str,
    node: NodeFacts,
    now: float,
    missing: Missing,
    owners_before: OwnersBefore,
    ranks: Sequence[Ranks],
) -> Judgement:
    """`ranks` are those of the whole fleet, or at least those with a waiting GPU on this node."""
    done = Judgement()
    builder = _Builder(now, owners_before)
    gone = missing.nodes.get(instance)
    if gone is None and node.number("gpuscope_agent_snapshot_timestamp_seconds") is ABSENT:
        return done  # a target that is not an agent
    if gone is not None or instance in missing.unread:
        state = State.GONE if gone is not None else State.STALE
        done.states |= {(instance, gpu.labels["uuid"]): GpuState(state) for gpu in node.gpus}
    else:
        _judge_gpus(node, builder, done, ranks)
    if gone is None:
        for detail in node_details(instance, node_name(node), node, now, missing.unread.get(instance)):
            done.findings.append(builder.of_node(detail))
    return done


def missing_findings(nodes: Mapping[str, NodeFacts], missing: Missing, now: float) -> list[Finding]:
    """Nodes and targets that are gone. `nodes` are all nodes of the fleet."""
    if not missing.nodes and not missing.targets:
        return []
    names = {
        node_name(node)
        for instance, node in nodes.items()
        if instance not in missing.nodes and "gpuscope_agent_snapshot_timestamp_seconds" in node.plain
    }
    builder = _Builder(now, {})
    names_of_gone = {one: node_name(nodes[one]) if one in nodes else one for one in missing.nodes}
    return [builder.of_node(detail) for detail in missing_details(missing, names, names_of_gone)]


def _judge_gpus(node: NodeFacts, builder: _Builder, done: Judgement, ranks: Sequence[Ranks]) -> None:
    instance, now = node.labels["instance"], builder.now
    stale = is_stale(node, now)
    firing: dict[str, list[Check]] = {}
    for gpu in node.gpus:
        is_judged = not stale or gpu.plain.get("gpuscope_gpu_up") == 0
        firing[gpu.labels["uuid"]] = _firing(gpu, now) if is_judged else []
    hung = {uuid for uuid, checks in firing.items() if _has(checks, "hung")}
    found = [] if stale else use_findings(node, now, ranks, hung)
    used = [one for one in found if not _is_lost(one.gpus, firing)]
    for one in used:
        done.findings.append(builder.of_owner(one, node))
    grouped: dict[tuple[str, str], list[tuple[GpuFacts, Detail]]] = defaultdict(list)
    for gpu in node.gpus:
        for check in firing[gpu.labels["uuid"]]:
            detail = describe_gpu(check.kind, gpu, now)
            if check.kind in ONE_PER_GPU:
                done.findings.append(builder.of_gpu(check, node, gpu, detail))
            else:
                grouped[check.kind, str(sorted(detail.args.items()))].append((gpu, detail))
    for (kind, _), members in grouped.items():
        done.findings.append(builder.of_gpus(CHECKS[kind], node, members))
    for gpu in node.gpus:
        uuid = gpu.labels["uuid"]
        done.states[instance, uuid] = _state(gpu, firing[uuid], stale, now)
    _join_instances(node, done.states)


def _is_lost(gpus: Iterable[GpuFacts], firing: Mapping[str, list[Check]]) -> bool:
    return any(_has(firing[gpu.labels["uuid"]], "gpu_lost") for gpu in gpus)


def _has(checks: Iterable[Check], kind: str) -> bool:
    return any(check.kind == kind for check in checks)


@lru_cache(maxsize=1024)
def checks_that_may_hold(metrics: frozenset[str]) -> tuple[Check, ...]:
    """The checks that can hold for a GPU with these metrics; a check of an absent metric never holds."""
    return tuple(
        check
        for check in _GPU_CHECKS
        if not metrics.isdisjoint(needed := metric_names(check))
        or any(name.startswith("gpuscope_process_") for name in needed)
    )


def _firing(gpu: GpuFacts, now: float) -> list[Check]:
    """The checks that hold for a GPU, without those that another one of them explains."""
    checks = checks_that_may_hold(frozenset((*gpu.plain, *gpu.by_label)))
    found = [check for check in checks if check.live is not None and check.live(gpu, now)]
    kinds = {check.kind for check in found}
    if "gpu_lost" in kinds:  # the driver does not reach it, so no other check is known to hold now
        return [check for check in found if check.kind == "gpu_lost"]
    return [check for check in found if kinds.isdisjoint(check.inhibited_by)]


def _state(gpu: GpuFacts, firing: Iterable[Check], stale: bool, now: float) -> GpuState:
    kinds = {check.kind for check in firing}
    if stale and "gpu_lost" not in kinds:
        return GpuState(State.STALE)
    use = state_of_use(gpu)
    for kind, state in STATE_OF_KIND.items():
        if kind in kinds:
            named = "" if kind == "gpu_lost" else kind
            is_in_use = state is not State.LOST and use in IN_USE
            return GpuState(state, kind, describe_gpu(kind, gpu, now).short or named, is_in_use)
    if use is State.IDLE and gpu.may_be_allocated:
        return GpuState(State.STALE, why=ALLOCATION_UNKNOWN)
    return GpuState(use, why=PROCESSES_UNKNOWN if use is State.STALE else "", is_in_use=use in IN_USE)


def _join_instances(node: NodeFacts, states: dict[GpuKey, GpuState]) -> None:
    """A MIG instance has the problems of its board, and a board that was given away as a whole has no free
    instance; a board is in use if one of its instances is."""
    instance = node.labels["instance"]
    given = {gpu.labels["uuid"] for gpu in node.gpus if gpu.allocations and not gpu.parent_uuid}
    for gpu in node.gpus:
        board_key, key = (instance, gpu.parent_uuid), (instance, gpu.labels["uuid"])
        board = states.get(board_key) if gpu.parent_uuid else None
        if board is None:
            continue
        own = states[key]
        if (own.state is State.IDLE or own.why in UNKNOWN_USES) and gpu.parent_uuid in given:
            own = states[key] = GpuState(State.ALLOCATED, is_in_use=True)
        if board.state not in USES and own.state in USES:
            is_known = board.state is not State.LOST
            states[key] = replace(board, is_in_use=own.is_in_use and is_known)
        else:
            shown = max(board, own, key=_use_rank) if board.state in USES and own.state in USES else board
            states[board_key] = replace(shown, is_in_use=board.is_in_use or own.is_in_use)


def _use_rank(one: GpuState) -> int:
    return USES.index(one.state)


class _Builder:
    def __init__(self, now: float, owners_before: OwnersBefore) -> None:
        self.now = now
        self._owners_before = owners_before

    def of_gpu(self, check: Check, node: NodeFacts, gpu: GpuFacts, detail: Detail) -> Finding:
        key = node.labels["instance"], gpu.labels["uuid"]
        owner = main_owner(gpu.processes) or self._owners_before.get(key, NO_OWNER)
        return self._finding(check, (key[1],), node, [gpu], owner, detail)

    def of_gpus(self, check: Check, node: NodeFacts, members: list[tuple[GpuFacts, Detail]]) -> Finding:
        """`since` is when the first of them began."""
        gpus, detail = [gpu for gpu, _ in members], members[0][1]
        owners = {main_owner(gpu.processes) or NO_OWNER for gpu in gpus}
        owner = owners.pop() if len(owners) == 1 else NO_OWNER
        parts = (node.labels["instance"], str(sorted(detail.args.items())))
        return self._finding(check, parts, node, gpus, owner, detail)

    def of_owner(self, found: UseFinding, node: NodeFacts) -> Finding:
        owner = found.owner
        parts = (node.labels["instance"], owner.kind, owner.namespace, owner.name, found.anchor)
        return self._finding(CHECKS[found.kind], parts, node, found.gpus, owner, found.detail)

    def of_node(self, found: NodeDetail) -> Finding:
        parts = (found.instance, str(found.detail.args.get("source", "")))
        return self._make(CHECKS[found.kind], parts, found.name, found.instance, found.detail)

    def _finding(
        self,
        check: Check,
        id_parts: tuple[str, ...],
        node: NodeFacts,
        gpus: list[GpuFacts],
        owner: FindingOwner,
        detail: Detail,
    ) -> Finding:
        name, instance = node_name(node), node.labels["instance"]
        return self._make(check, id_parts, name, instance, detail, gpus, owner)

    def _make(
        self,
        check: Check,
        id_parts: tuple[str, ...],
        name: str,
        instance: str,
        detail: Detail,
        gpus: Iterable[GpuFacts] = (),
        owner: FindingOwner = NO_OWNER,
    ) -> Finding:
        indices = tuple(gpu.labels["gpu"] for gpu in gpus)
        uuids = tuple(gpu.labels["uuid"] for gpu in gpus)
        why_key, next_key = detail.why_key or check.kind, detail.next_key or check.kind
        values = {**detail.args, **place_values(indices, owner.label)}
        return Finding(
            id=finding_id(check.kind, *id_parts),
            kind=check.kind,
            severity=check.severity,
            node=name,
            instance=instance,
            gpus=indices,
            uuids=uuids,
            owner=owner,
            since=detail.since,
            why=fill(FINDING_TEXTS[why_key], values),
            why_key=why_key,
            args=detail.args,
            next=fill(detail.next or STEP_TEXTS.get(next_key, check.next_step), values),
            next_key=next_key,
            evidence=evidence_query(check, instance, uuids),
        )


def live_kinds() -> Iterator[str]:
    """The kinds that this module can find."""
    yield from (check.kind for check in LIVE_CHECKS if check.kind not in NOT_FINDINGS)
    yield "target_down"
