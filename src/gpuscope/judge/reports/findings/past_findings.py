"""Findings over a time range, each with its cost in GPU-hours and money, most expensive first.

Input: windows of `finding_ledger.FindingLedger`. Findings about use are one per owner over all its GPUs, nodes
and jobs; findings about hardware are one per GPU or node. Small ones are folded into a sum per kind. `coverage`
says which part of the range is known; nothing is extrapolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.judge.checks.check import OWNER_LABELS, Check, Severity, Share
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import (
    NO_OWNER,
    SEVERITY_ORDER,
    Argument,
    Finding,
    FindingOwner,
    GpuKey,
    SubjectKey,
    finding_id,
    owner_of,
)
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
from gpuscope.judge.reports.findings.finding_episodes import Episode, episodes_by_subject, seconds_within
from gpuscope.judge.reports.findings.finding_windows import STEP_MS, LostSpan, Window
from gpuscope.judge.reports.gpu_identities import GpuIdentities
from gpuscope.judge.reports.rates import Rates
from gpuscope.judge.reports.report_range import HOUR, HOUR_MS
from gpuscope.judge.reports.report_sentence import ReportSentence

_MIN_GPU_HOURS: Final = 0.05
"""Less is not worth a sentence: a step of a minute, a scrape that came late."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which part of a range the findings are about: `gpu_hours` are known and missing ones.

    A GPU counts from its first sample in the range, or from the start of the range if it was there before,
    until the end. Time that was not read yet is missing too.
    """

    gpus: int
    gpu_hours: float
    known_gpu_hours: float
    missing_gpu_hours: float
    sentences: list[ReportSentence] = field(default_factory=list)


def coverage_of(windows: Sequence[Window], identities: GpuIdentities, start_ms: int, end_ms: int) -> Coverage:
    observed = _observed_boards(windows, identities)
    gpu_hours = known = 0.0
    begins = []
    for spans in observed.values():
        begin_ms = max(start_ms, spans[0].start_ms)
        begins.append(begin_ms)
        gpu_hours += (end_ms - begin_ms) / HOUR_MS
        known += seconds_within(spans, start_ms, end_ms) / HOUR
    sentences = list(unread(windows, start_ms, end_ms))
    first_window_ms = min((window.start_ms for window in windows), default=end_ms)
    if begins and min(begins) > max(start_ms, first_window_ms):
        late = (min(begins) - start_ms) / HOUR_MS
        sentences.append(ReportSentence("missing.late_at", hours=late, at=min(begins) / 1000))
    elif not begins and end_ms > start_ms:
        sentences.append(ReportSentence("missing.no_gpu"))
    missing = max(0.0, gpu_hours - known)
    if missing > _MIN_GPU_HOURS:
        sentences.append(ReportSentence("missing.not_read", hours=missing))
    sentences += _without_processes(windows, identities, known, start_ms, end_ms)
    sentences += failed(windows)
    return Coverage(len(observed), gpu_hours, known, missing, sentences)


def _observed_boards(windows: Iterable[Window], identities: GpuIdentities) -> dict[str, list[LostSpan]]:
    """By UUID, in the order of time: a GPU may have had several reporters. Instances are parts of boards."""
    observed: dict[str, list[LostSpan]] = defaultdict(list)
    for window in windows:
        for key, spans in window.observed.items():
            if identities.is_board(key):
                observed[key[1]] += spans
    return {uuid: sorted(spans, key=lambda span: span.start_ms) for uuid, spans in observed.items()}


def unread(windows: Sequence[Window], start_ms: int, end_ms: int) -> Iterator[ReportSentence]:
    read_ms = sum(min(window.end_ms, end_ms) - max(window.start_ms, start_ms) for window in windows)
    left = (end_ms - start_ms - read_ms) / HOUR_MS
    if left > 0.1:
        yield ReportSentence("missing.unread", hours=left)


def _without_processes(
    windows: Sequence[Window], identities: GpuIdentities, known: float, start_ms: int, end_ms: int
) -> Iterator[ReportSentence]:
    spans: dict[GpuKey, list[LostSpan]] = defaultdict(list)
    for window in windows:
        for key, found in window.with_processes.items():
            spans[key] += found
    hours = sum(
        identities.weight(key[1]) * seconds_within(found, start_ms, end_ms) / HOUR
        for key, found in spans.items()
    )
    without = known - hours
    if not spans and known > _MIN_GPU_HOURS:
        yield ReportSentence("missing.no_processes", hours=known)
    elif without > max(1.0, 0.2 * known):
        yield ReportSentence("missing.some_processes", hours=without)


def failed(windows: Iterable[Window], kinds: Collection[str] | None = None) -> Iterator[ReportSentence]:
    """Which kinds the engine refused; with `kinds`, of these."""
    hours: dict[str, float] = defaultdict(float)
    reasons: dict[str, str] = {}
    for window in windows:
        for kind, why in window.failed.items():
            if kinds is not None and kind not in kinds:
                continue
            hours[kind] += (window.end_ms - window.start_ms) / HOUR_MS
            reasons[kind] = why
    for kind in sorted(hours):
        yield ReportSentence("missing.kind", kind=kind, hours=hours[kind], reason=reasons[kind])


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
    identities = GpuIdentities(labels for window in windows for labels in window.gpus.values())
    known_until_ms = max((window.end_ms for window in windows), default=start_ms)
    costed = {subject for window in windows for subject in window.costed}
    groups: dict[tuple[str, ...], _Group] = {}
    counted = [check for check in checks if check.kind not in NOT_FINDINGS]
    for check, subject, episodes in episodes_by_subject(windows, counted, identities, start_ms, end_ms):
        owner = _owner(subject)
        key = _group_key(check, subject, owner, identities)
        group = groups.setdefault(key, _Group(check, owner))
        group.members.append((subject, episodes))
        group.is_costed |= subject.whole in costed
    unpriced: set[str] = set()
    made = [
        _make(key, group, identities, rates, min(end_ms, known_until_ms), unpriced)
        for key, group in groups.items()
    ]
    made.sort(key=_most_expensive_first)
    shown, folded = _fold(made) if fold else (made[:MAX_SHOWN], made[MAX_SHOWN:])
    return PastFindings(
        start_ms=start_ms,
        end_ms=end_ms,
        findings=shown,
        folded=_sum_by_kind(folded),
        coverage=coverage_of(windows, identities, start_ms, end_ms),
        rates=rates,
        unpriced_models=sorted(unpriced),
    )


def _owner(subject: SubjectKey) -> FindingOwner:
    """A user's jobs are one owner: the person can act on all of them."""
    if not subject.owner:
        return NO_OWNER
    owner = owner_of(dict(zip(OWNER_LABELS, subject.owner, strict=True)))
    return FindingOwner("user", "", owner.user) if owner.kind == "job" and owner.user else owner


def _group_key(
    check: Check, subject: SubjectKey, owner: FindingOwner, identities: GpuIdentities
) -> tuple[str, ...]:
    if subject.owner:
        return check.kind, owner.kind, owner.namespace, owner.name
    if check.kind == "unused":  # one finding for all GPUs of a model
        return check.kind, identities.model(subject.uuid)
    if check.kind in ONE_PER_GPU or check.share is Share.VALUE:
        return check.kind, subject.instance, subject.uuid
    whole = subject.whole
    return check.kind, identities.node_name(whole.gpu), whole.cluster


def _make(
    key: tuple[str, ...],
    group: _Group,
    identities: GpuIdentities,
    rates: Rates | None,
    known_until_ms: int,
    unpriced: set[str],
) -> PastFinding:
    check = group.check
    gpu_hours, cost = _costs(group, identities, rates, unpriced) if group.is_costed else (None, None)
    # The GPUs that it costs, where it is not about GPUs itself.
    parts = [subject for subject, _ in group.members if subject.whole != subject]
    subjects = parts or [subject for subject, _ in group.members]
    keys = sorted({subject.gpu for subject in subjects}, key=identities.place)
    nodes = tuple(dict.fromkeys(identities.node_name(key) for key in keys))
    members = [episodes for subject, episodes in group.members if subject.whole == subject]
    episodes = [episode for of_member in members for episode in of_member]
    until = max(episode.end_ms for episode in episodes)
    # A GPU with two reporters is one.
    gpu_keys = list({(identities.node_name(key), key[1]): key for key in keys if key[1]}.values())
    gpus = tuple(identities.index(key) for key in gpu_keys)
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
    group: _Group, identities: GpuIdentities, rates: Rates | None, unpriced: set[str]
) -> tuple[float, float | None]:
    hours, cost = 0.0, None if rates is None else 0.0
    for subject, episodes in group.members:
        lost = sum(episode.lost_seconds for episode in episodes) / HOUR
        if group.check.share is Share.COUNT:
            hours, cost = hours + lost, None  # of which model they are is not known
            continue
        for key in identities.of_subject(group.check, subject):
            amount = lost * identities.weight(key[1])
            hours += amount
            if rates is not None and cost is not None:
                model = identities.model(key[1])
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


def _most_expensive_first(one: PastFinding) -> tuple[float, float, int, float, str, str]:
    finding = one.finding
    return (
        -(one.cost or 0.0),
        -(finding.cost_gpu_hours or 0.0),
        SEVERITY_ORDER[finding.severity],
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
