"""Findings over a time range, each with its cost in GPU-hours and money, most expensive first.

Input: windows of `finding_ledger.FindingLedger`. Findings about use are one per owner over all its GPUs, nodes
and jobs; findings about hardware are one per GPU or node. Small ones are folded into a sum per kind. `coverage`
says which part of the range is known; nothing is extrapolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.judge.checks.check import OWNER_LABELS, Check, Severity, Share
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.condition import SubjectKey, owner_of
from gpuscope.judge.checks.finding import NO_OWNER, Argument, Finding, FindingOwner, finding_id
from gpuscope.judge.checks.finding_details import past_evidence
from gpuscope.judge.checks.finding_texts import (
    FINDING_TEXTS,
    NOT_FINDINGS,
    STEP_TEXTS,
    fill,
    owner_text,
    place_values,
    step_key,
)
from gpuscope.judge.checks.findings import ONE_PER_GPU
from gpuscope.judge.reports.findings.finding_coverage import Coverage, coverage_of
from gpuscope.judge.reports.findings.finding_episodes import Episode, episodes_by_subject
from gpuscope.judge.reports.findings.finding_windows import STEP_MS, Window
from gpuscope.judge.reports.gpu_weights import GpuWeights
from gpuscope.judge.reports.rates import Rates

HOUR: Final = 3600.0
FOLD_SHARE: Final = 0.01
FOLD_GPU_HOURS: Final = 0.5
"""A finding below both is folded."""
MIN_SHOWN: Final = 5
MAX_SHOWN: Final = 200
MAX_JOBS_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFinding:
    finding: Finding
    """`since` is its first moment in the range, `until` its last; None if it held at the end of the range."""
    hours: float
    """How long it held, the longest of its GPUs."""
    times: int
    cost: float | None
    """In the currency of the rates; None without a rate for the model."""
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


@dataclass(slots=True)
class FoldedKind:
    kind: str
    count: int = 0
    cost_gpu_hours: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFindings:
    start_ms: int
    end_ms: int
    findings: list[PastFinding]
    folded: list[FoldedKind]
    coverage: Coverage
    rates: Rates | None
    unpriced_models: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    check: Check
    owner: FindingOwner
    members: list[tuple[SubjectKey, list[Episode]]] = field(default_factory=list)
    is_costed: bool = False
    """Whether it is known what it costs."""


def past_findings(
    windows: Sequence[Window],
    start_ms: int,
    end_ms: int,
    *,
    rates: Rates | None = None,
    checks: Sequence[Check] = tuple(CHECKS.values()),
    fold: bool = True,
) -> PastFindings:
    weights = GpuWeights(window.gpus for window in windows)
    known_until_ms = max((window.end_ms for window in windows), default=start_ms)
    costed = {subject for window in windows for subject in window.costed}
    groups: dict[tuple[str, ...], _Group] = {}
    counted = [check for check in checks if check.kind not in NOT_FINDINGS]
    for check, subject, episodes in episodes_by_subject(windows, counted, weights, start_ms, end_ms):
        owner = _owner(subject)
        key = _group_key(check, subject, owner, weights)
        group = groups.setdefault(key, _Group(check, owner))
        group.members.append((subject, episodes))
        group.is_costed |= subject.whole in costed
    unpriced: set[str] = set()
    made = [
        _make(key, group, weights, rates, min(end_ms, known_until_ms), unpriced)
        for key, group in groups.items()
    ]
    made.sort(key=_most_expensive_first)
    shown, folded = _fold(made) if fold else (made[:MAX_SHOWN], made[MAX_SHOWN:])
    return PastFindings(
        start_ms=start_ms,
        end_ms=end_ms,
        findings=shown,
        folded=_sum_by_kind(folded),
        coverage=coverage_of(windows, weights, start_ms, end_ms),
        rates=rates,
        unpriced_models=sorted(unpriced),
    )


def _owner(subject: SubjectKey) -> FindingOwner:
    """A user's jobs are one owner: the person can act on all of them."""
    if not subject.owner:
        return NO_OWNER
    owner = owner_of(dict(zip(OWNER_LABELS, subject.owner, strict=True)))
    return FindingOwner("user", "", owner.user) if owner.kind == "job" and owner.user else owner


def _group_key(check: Check, subject: SubjectKey, owner: FindingOwner, weights: GpuWeights) -> tuple[str, ...]:
    if subject.owner:
        return check.kind, owner.kind, owner.namespace, owner.name
    if check.kind == "unused":  # one finding for all GPUs of a model
        return check.kind, weights.model((subject.instance, subject.uuid))
    if check.kind in ONE_PER_GPU or check.share is Share.VALUE:
        return check.kind, subject.instance, subject.uuid
    whole = subject.whole
    return check.kind, weights.node((whole.instance, "")), whole.cluster


def _make(
    key: tuple[str, ...],
    group: _Group,
    weights: GpuWeights,
    rates: Rates | None,
    known_until_ms: int,
    unpriced: set[str],
) -> PastFinding:
    check = group.check
    gpu_hours, cost = _costs(group, weights, rates, unpriced) if group.is_costed else (None, None)
    # The GPUs that it costs, where it is not about GPUs itself.
    parts = [subject for subject, _ in group.members if subject.whole != subject]
    subjects = parts or [subject for subject, _ in group.members]
    keys = sorted({(subject.instance, subject.uuid) for subject in subjects}, key=weights.place)
    nodes = tuple(dict.fromkeys(weights.node(key) for key in keys))
    members = [episodes for subject, episodes in group.members if subject.whole == subject]
    episodes = [episode for of_member in members for episode in of_member]
    until = max(episode.end_ms for episode in episodes)
    # A GPU with two reporters is one.
    gpu_keys = list({(weights.node(key), key[1]): key for key in keys if key[1]}.values())
    gpus = tuple(weights.index(key) for key in gpu_keys)
    args: dict[str, Argument] = {"count": len(gpus)}
    why_key = f"past.{check.kind}" if f"past.{check.kind}" in FINDING_TEXTS else check.kind
    next_key = step_key(check.kind, group.owner)
    values = {**args, **place_values(gpus, owner_text(group.owner))}
    finding = Finding(
        id=finding_id("past", *key),
        kind=check.kind,
        severity=check.severity,
        node=nodes[0] if len(nodes) == 1 else "",
        instance=keys[0][0] if len(nodes) == 1 else "",
        gpus=gpus,
        uuids=tuple(uuid for _, uuid in gpu_keys),
        owner=group.owner,
        since=min(episode.start_ms for episode in episodes) / 1000,
        until=None if until >= known_until_ms - STEP_MS else until / 1000,
        why=fill(FINDING_TEXTS[why_key], values),
        why_key=why_key,
        args=args,
        next=fill(STEP_TEXTS.get(next_key, check.next_step), values),
        next_key=next_key if next_key in STEP_TEXTS else "",
        evidence=past_evidence(check, group.owner, keys),
        cost_gpu_hours=gpu_hours,
        cost_at=None if gpu_hours is None else known_until_ms / 1000,
    )
    return PastFinding(
        finding=finding,
        hours=max(sum(episode.seconds for episode in of_member) for of_member in members) / HOUR,
        times=_times(episodes),
        cost=cost,
        nodes=nodes,
        jobs=_jobs(group),
    )


def _costs(
    group: _Group, weights: GpuWeights, rates: Rates | None, unpriced: set[str]
) -> tuple[float, float | None]:
    hours, cost = 0.0, None if rates is None else 0.0
    for subject, episodes in group.members:
        lost = sum(episode.lost_seconds for episode in episodes) / HOUR
        if group.check.share is Share.COUNT:
            hours, cost = hours + lost, None  # of which model they are is not known
            continue
        for key in weights.of_subject(group.check, subject):
            amount = lost * weights.weight(key)
            hours += amount
            if rates is not None and cost is not None:
                model = weights.model(key)
                price = rates.price(model)
                if price is None:
                    unpriced.add(model)
                    cost = None
                else:
                    cost += price * amount
    return hours, cost


def _times(episodes: Iterable[Episode]) -> int:
    """Episodes of several GPUs that overlap happened once."""
    count, until = 0, -1
    for one in sorted(episodes, key=lambda episode: episode.start_ms):
        if one.start_ms > until:
            count += 1
        until = max(until, one.end_ms)
    return count


def _jobs(group: _Group) -> tuple[str, ...]:
    """Slurm jobs, the most expensive first."""
    lost: dict[str, float] = defaultdict(float)
    for subject, episodes in group.members:
        if subject.owner and subject.owner[2]:
            lost[subject.owner[2]] += sum(episode.lost_seconds for episode in episodes)
    return tuple(sorted(lost, key=lambda job: (-lost[job], job))[:MAX_JOBS_NAMED])


_SEVERITY_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}


def _most_expensive_first(one: PastFinding) -> tuple[float, float, int, float, str, str]:
    finding = one.finding
    return (
        -(one.cost or 0.0),
        -(finding.cost_gpu_hours or 0.0),
        _SEVERITY_ORDER[finding.severity],
        -one.hours,
        finding.owner.label or finding.node,
        finding.id,
    )


def _fold(found: Sequence[PastFinding]) -> tuple[list[PastFinding], list[PastFinding]]:
    total = sum(one.finding.cost_gpu_hours or 0.0 for one in found)
    least = max(FOLD_GPU_HOURS, FOLD_SHARE * total)
    shown: list[PastFinding] = []
    folded: list[PastFinding] = []
    for one in found:
        gpu_hours = one.finding.cost_gpu_hours
        is_small = one.finding.severity is Severity.INFO if gpu_hours is None else gpu_hours < least
        if (is_small and len(shown) >= MIN_SHOWN) or len(shown) >= MAX_SHOWN:
            folded.append(one)
        else:
            shown.append(one)
    return shown, folded


def _sum_by_kind(folded: Iterable[PastFinding]) -> list[FoldedKind]:
    kinds: dict[str, FoldedKind] = {}
    for one in folded:
        kind = kinds.setdefault(one.finding.kind, FoldedKind(one.finding.kind))
        kind.count += 1
        kind.cost_gpu_hours += one.finding.cost_gpu_hours or 0.0
        if one.cost is not None:
            kind.cost = (kind.cost or 0.0) + one.cost
    return sorted(kinds.values(), key=lambda kind: (-kind.cost_gpu_hours, kind.kind))
