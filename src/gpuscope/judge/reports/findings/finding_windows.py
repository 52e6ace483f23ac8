"""One window of history: which checks held when, on which GPU, for which owner, and how much time they cost.

Input: a `QueryEngine` and the checks, evaluated at every step with the same expressions as now. Output: a
`Window` of spans, dated by a check's condition and costed by its lost share. A check that cannot be evaluated
is named in `failed` and costs only itself. A step stands for the time until the next one; a GPU that is not
read at a step is not observed there. A step of a GPU with several reporters, as on a node that is pushed and
scraped, is with one of them: see `gpu_reporters`.

Time of a GPU is lost once: a check that another one explains does not count there, and a GPU's time that an
earlier check claimed is not claimed again, whether it was claimed for the board, for one of its MIG instances
or for the node. Owners of a shared GPU are charged by their memory, as in the usage report while none of them
works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np

from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import EngineError, QueryEngine, labelled_values
from gpuscope.history.promql.frame import Bools, Floats
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.checks.check import OWNER_LABELS, Check, Share, Subject
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import GpuKey, Owner, SubjectKey, lost_key, subject_key
from gpuscope.judge.checks.use_checks import NOT_SERVICES
from gpuscope.judge.reports.gpu_identities import GpuIdentities, gpu_key
from gpuscope.judge.reports.gpu_reporters import ReportedSpan, take_turns

STEP_MS: Final = 60_000
MAX_WINDOW_MS: Final = 86_400_000
"""An engine has a limit of points for one answer, and of samples that it holds for it."""
MAX_SERIES: Final = 100_000
"""Of one check. A fleet of 1,000 GPUs has a few thousand processes."""
OBSERVED: Final = '{__name__=~"gpuscope_gpu_up|gpuscope_mig_info"}'
WITH_PROCESSES: Final = "sum by (instance, uuid) (gpuscope_gpu_processes)"
OF_NO_GPU: Final = (Subject.NODE, Subject.SLURM_NODE, Subject.SERVICE)
OWNERS_MEMORY: Final = (
    f"sum by (instance, uuid, {', '.join(OWNER_LABELS)}) (gpuscope_process_memory_bytes{{{NOT_SERVICES}}})"
)

_Share = TypeVar("_Share", Floats, Bools)
Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a computation where it does not hold up an event loop."""


async def run_inline(work: Callable[[], None]) -> None:
    work()


@dataclass(slots=True)
class LostSpan:
    start_ms: int
    end_ms: int
    lost_seconds: float
    """Of one GPU, before its MIG weight; of a node that nobody reads, of all its GPUs."""
    age_seconds: float = 0.0
    """How long it had lasted when it was first seen, where the value says so."""

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000

    def lost_within(self, start_ms: int, end_ms: int) -> float:
        inside = min(self.end_ms, end_ms) - max(self.start_ms, start_ms)
        return self.lost_seconds * max(0, inside) / (self.end_ms - self.start_ms)


@dataclass(slots=True)
class Window:
    start_ms: int
    end_ms: int
    spans: dict[SubjectKey, list[LostSpan]] = field(default_factory=dict)
    costed: set[SubjectKey] = field(default_factory=set)
    """Of which it is known what they cost, if nothing."""
    observed: dict[GpuKey, list[LostSpan]] = field(default_factory=dict)
    """Of boards and MIG instances: when they were read."""
    with_processes: dict[GpuKey, list[LostSpan]] = field(default_factory=dict)
    """When their processes were known."""
    gpus: dict[GpuKey, dict[str, str]] = field(default_factory=dict)
    """Labels of their info series."""
    failed: dict[str, str] = field(default_factory=dict)
    """By kind: why it is not known."""
    read_counts: list[int] = field(default_factory=list)
    """By step: how many series say that a GPU or instance was read, of all reporters."""


_Spans = dict[GpuKey, list[LostSpan]]


async def read_window(
    engine: QueryEngine,
    checks: Sequence[Check],
    start_ms: int,
    end_ms: int,
    offload: Offload = run_inline,
) -> Window:
    """Steps are start, start + 60 s, … before `end_ms`."""
    window = Window(start_ms, end_ms)

    async def query(promql: str) -> Matrix:
        return await engine.range(promql, start_ms, end_ms - STEP_MS, STEP_MS, max_series=MAX_SERIES)

    seen = await query(OBSERVED)
    claims = _Claims(window)
    if seen.labels:
        window.gpus = await _gpu_labels(engine, start_ms, end_ms)
        await offload(partial(claims.observe, seen, await query(WITH_PROCESSES), await query(OWNERS_MEMORY)))
    else:  # no GPU was watched: only what scrapes and Slurm say can be known
        checks = [check for check in checks if check.subject in OF_NO_GPU]
    for check in checks:
        try:
            held = await query(check.promql)
            lost = await query(check.lost) if check.lost and held.labels else held
            await offload(partial(claims.add, check, held, lost))
        except EngineError as error:
            window.failed[check.kind] = str(error)
    return window


async def read_windows(
    engine: QueryEngine, checks: Sequence[Check], start_ms: int, end_ms: int
) -> list[Window]:
    """All of a range at once, where no ledger has it."""
    begin_ms, until_ms = start_ms // STEP_MS * STEP_MS, -(-end_ms // STEP_MS) * STEP_MS
    return [
        await read_window(engine, checks, at_ms, min(at_ms + MAX_WINDOW_MS, until_ms))
        for at_ms in range(begin_ms, until_ms, MAX_WINDOW_MS)
    ]


def join_windows(before: Window, after: Window) -> Window:
    """Two windows that touch, as one. A part is added each minute; kept apart, each would hold every GPU again.

    `before` does not change, because a report may be reading it in another thread.
    """
    spans = dict(before.spans)
    for subject, found in after.spans.items():
        spans[subject] = continued(spans.get(subject, []), found)
    return Window(
        before.start_ms,
        after.end_ms,
        spans,
        before.costed | after.costed,
        _continued_by_gpu(before.observed, after.observed),
        _continued_by_gpu(before.with_processes, after.with_processes),
        before.gpus | {key: labels for key, labels in after.gpus.items() if before.gpus.get(key) != labels},
        before.failed | after.failed,
        before.read_counts + after.read_counts,
    )


def _continued_by_gpu(before: _Spans, after: _Spans) -> _Spans:
    return before | {key: continued(before.get(key, []), spans) for key, spans in after.items()}


def continued(before: Iterable[LostSpan], after: Iterable[LostSpan]) -> list[LostSpan]:
    """A span that begins where another one ends continues it."""
    joined = list(before)
    for span in after:
        at = len(joined) - 1
        while at >= 0 and joined[at].end_ms > span.start_ms:
            at -= 1
        if at >= 0 and joined[at].end_ms == span.start_ms:
            before_it = joined[at]
            lost_seconds = before_it.lost_seconds + span.lost_seconds
            joined[at] = LostSpan(before_it.start_ms, span.end_ms, lost_seconds, before_it.age_seconds)
        else:
            joined.append(span)
    return joined


async def _gpu_labels(engine: QueryEngine, start_ms: int, end_ms: int) -> dict[GpuKey, dict[str, str]]:
    found: dict[GpuKey, dict[str, str]] = {}
    for metric in ("gpuscope_gpu_info", "gpuscope_mig_info"):
        infos = await engine.instant(f"last_over_time({metric}[{duration_text(end_ms - start_ms)}])", end_ms)
        found |= {gpu_key(labels): labels for labels, _ in labelled_values(infos)}
    return found


class _Claims:
    """Gives each part of a GPU's time to the first check that claims it; a later one gets what it claims
    more."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps = (window.end_ms - window.start_ms) // STEP_MS
        self._window.read_counts = [0] * self._steps
        self._identities = GpuIdentities()
        self._claimed: dict[GpuKey, Floats] = {}
        """Shares of boards and instances; of a board without those of its instances."""
        self._used: dict[GpuKey, Floats] = {}
        """Shares of boards, with those of their instances."""
        self._held: dict[str, dict[str, dict[str, Bools]]] = {}
        """By kind, instance or name of the node, and UUID: when it held, for those that explain others."""
        self._memory: dict[GpuKey, dict[Owner, Floats]] = {}
        self._turns: Mapping[GpuKey, Bools] = {}
        """Of GPUs with several reporters: the steps that are with each."""

    def observe(self, seen: Matrix, with_processes: Matrix, memory: Matrix) -> None:
        self._window.read_counts = seen.present.sum(axis=0).tolist()
        self._identities = GpuIdentities(self._window.gpus.values())
        self._turns = _turns(self._window, seen)
        for found, kept in ((seen, self._window.observed), (with_processes, self._window.with_processes)):
            for labels, present in zip(found.labels, found.present, strict=True):
                key = gpu_key(dict(labels))
                in_turn = self._in_turn(key, present)
                if spans := _spans(self._window, in_turn, in_turn):
                    kept.setdefault(key, []).extend(spans)
        for pairs, values, present in zip(memory.labels, memory.values, memory.present, strict=True):
            owned = dict(pairs)
            owner = tuple([owned.get(name, "") for name in OWNER_LABELS])
            self._memory.setdefault(gpu_key(owned), {})[owner] = np.where(present, values, 0.0)

    def _in_turn(self, key: GpuKey, share: _Share) -> _Share:
        turns = self._turns.get(key)
        return share if turns is None else share * turns

    def add(self, check: Check, found: Matrix, found_lost: Matrix) -> None:
        """`found` says when the check held, `found_lost` which share was lost meanwhile."""
        held: dict[SubjectKey, Bools] = {}
        ages: dict[SubjectKey, Floats] = {}
        for labels, values, present in zip(found.labels, found.values, found.present, strict=True):
            subject = subject_key(check, dict(labels))
            if check.value_is_age:
                ages[subject] = np.maximum(ages.get(subject, 0.0), np.where(present, values, 0.0))
            in_turn = self._in_turn(subject.gpu, present)
            held[subject] = held[subject] | in_turn if subject in held else in_turn.copy()
        self._held[check.kind] = {}
        for subject, present in held.items():
            self._explain(check, subject, present)
            for place in {subject.instance, self._identities.node_name(subject.gpu)}:
                by_uuid = self._held[check.kind].setdefault(place, {})
                by_uuid[subject.uuid] = by_uuid.get(subject.uuid, False) | present
        lost = {} if check.share is Share.NONE else self._lost(check, held, found_lost)
        nothing = np.zeros(self._steps)
        for subject in held | lost:
            share = lost.get(subject, nothing)
            if spans := _spans(self._window, held.get(subject, share > 0), share):
                for span in spans if subject in ages else ():
                    span.age_seconds = float(ages[subject][(span.start_ms - self._window.start_ms) // STEP_MS])
                self._window.spans[subject] = spans

    def _lost(self, check: Check, held: Mapping[SubjectKey, Bools], found: Matrix) -> dict[SubjectKey, Floats]:
        """What nobody else has claimed of the lost shares, while the check held."""
        shares: dict[SubjectKey, Floats] = {}
        for labels, values, present in zip(found.labels, found.values, found.present, strict=True):
            subject = lost_key(check, dict(labels))
            if subject.whole not in held:
                continue
            present = self._in_turn(subject.gpu, present) & held[subject.whole]
            if present.any():
                self._window.costed.add(subject.whole)
                share = np.nan_to_num(np.where(present, _share(check, values), 0.0))
                shares[subject] = np.maximum(shares.get(subject, 0.0), share)
        if check.subject in (Subject.NODE, Subject.SLURM_NODE):
            return {subject: self._claim_node(check, subject, share) for subject, share in shares.items()}
        return self._claim(shares)

    def _explain(self, check: Check, subject: SubjectKey, present: Bools) -> None:
        """Takes out the time in which another check explains this one."""
        for kind in check.explained_by:
            by_place = self._held.get(kind, {})
            if Subject.SERVICE in (CHECKS[kind].subject, check.subject):
                explaining = [held for by_uuid in by_place.values() for held in by_uuid.values()]
            elif subject.uuid:
                by_uuid = by_place.get(subject.instance, {})
                explaining = [by_uuid[uuid] for uuid in ("", subject.uuid) if uuid in by_uuid]
            else:
                explaining = [*by_place.get(subject.instance, {}).values()]
            for held in explaining:
                present[held] = False

    def _claim(self, by_subject: Mapping[SubjectKey, Floats]) -> dict[SubjectKey, Floats]:
        owners: dict[GpuKey, list[SubjectKey]] = defaultdict(list)
        for subject in by_subject:
            owners[subject.gpu].append(subject)
        claimed: dict[SubjectKey, Floats] = {}
        for key, subjects in owners.items():
            shares = np.array([by_subject[subject] for subject in subjects])
            claimed.update(
                zip(subjects, self._grant(key, shares, self._parts(key, subjects, shares > 0)), strict=True)
            )
        return claimed

    def _claim_node(self, check: Check, subject: SubjectKey, share: Floats) -> Floats:
        """The mean over its boards. Of those that are not read in this window nobody else claims anything."""
        boards = self._identities.of_subject(check, subject)
        whole = np.ones((1, self._steps))
        granted = [self._grant(board, np.where(share > 0, 1.0, 0.0)[np.newaxis], whole)[0] for board in boards]
        return share * np.mean(granted, axis=0) if granted else share

    def _grant(self, key: GpuKey, shares: Floats, parts: Floats) -> Floats:
        """What is left of the shares that each owner claims, times its part of the GPU."""
        board, nothing = self._identities.board(key), np.zeros(self._steps)
        used, own = self._used.get(board, nothing), self._claimed.get(key, nothing)
        if key == board:
            weight, before = 1.0, used
        else:
            weight, before = self._identities.weight(key[1]), own + self._claimed.get(board, nothing)
        granted: Floats = np.maximum(0.0, shares - before) * parts
        total = granted.sum(axis=0)
        if weight:  # an instance whose size is not known costs nothing
            left = np.maximum(0.0, 1.0 - used) / weight
            granted *= np.divide(left, total, out=np.ones_like(total), where=total > left)
            total = np.minimum(total, left)
        self._claimed[key] = own + total
        self._used[board] = used + weight * total
        return granted

    def _parts(self, key: GpuKey, subjects: Sequence[SubjectKey], present: Bools) -> Floats:
        """Each owner's part of the GPU: by memory, or equally where it is not known."""
        if len(subjects) == 1 and len(self._memory.get(key, ())) < 2:
            return np.ones_like(present, dtype=float)
        known, nothing = self._memory.get(key, {}), np.zeros(self._steps)
        memory = np.array([known.get(subject.owner, nothing) for subject in subjects])
        total = np.sum(list(known.values()), axis=0) if known else nothing
        equally = present / np.maximum(1, present.sum(axis=0))
        by_memory = np.divide(memory, total, out=np.zeros_like(memory), where=total > 0)
        parts: Floats = np.where((memory.sum(axis=0) > 0) & (total > 0), by_memory, equally)
        return parts


def _share(check: Check, values: Floats) -> Floats | float:
    if check.share is Share.COUNT:
        return values
    return np.clip(values, 0.0, 1.0) if check.share is Share.VALUE else 1.0


def _turns(window: Window, seen: Matrix) -> dict[GpuKey, Bools]:
    """Of GPUs and instances with several reporters: the steps that are with each."""
    by_uuid: dict[str, dict[str, Bools]] = defaultdict(dict)
    for labels, present in zip(seen.labels, seen.present, strict=True):
        instance, uuid = gpu_key(dict(labels))
        known = by_uuid[uuid].get(instance)
        by_uuid[uuid][instance] = present if known is None else known | present
    edges_ms = np.arange(window.start_ms, window.end_ms + STEP_MS, STEP_MS, dtype=np.int64)
    turns: dict[GpuKey, Bools] = {}
    for uuid, reporters in by_uuid.items():
        if len(reporters) < 2:
            continue
        turns.update({(instance, uuid): np.zeros(len(edges_ms) - 1, dtype=bool) for instance in reporters})
        reported = [
            ReportedSpan((instance, ""), span.start_ms, span.end_ms, span.start_ms)
            for instance, present in reporters.items()
            for span in _spans(window, present, present)
        ]
        for turn in take_turns(reported, window.start_ms, window.end_ms, edges_ms):
            turns[turn.reporter[0], uuid] |= turn.overlaps(edges_ms[:-1], edges_ms[1:])
    return turns


def _spans(window: Window, held: Bools, share: Floats | Bools) -> list[LostSpan]:
    """The stretches in which something held, and the share that was lost in them."""
    if held.all():  # usually: of 8,000 GPUs each was seen all the time
        edges = [0, len(held)] if len(held) else []
    else:
        edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0)).tolist()
    return [
        LostSpan(
            window.start_ms + first * STEP_MS,
            window.start_ms + end * STEP_MS,
            float(share[first:end].sum()) * STEP_MS / 1000,
        )
        for first, end in zip(edges[::2], edges[1::2], strict=True)
    ]
