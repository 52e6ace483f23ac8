"""One window of history: which findings held when, on which GPU, for which owner, and how much time they cost.

Input: a `QueryEngine` and the rows of `health/lost_time.py`, evaluated at every step. Output: a `Window` of
spans. A row that cannot be evaluated is named in `failed` and costs only itself. A step stands for the time
until the next one; a GPU that is not read at a step is not observed there. A step of a
GPU with several reporters, as on a node that is pushed and scraped, is with one of them: see `gpu_reporters`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np

from gpuscope.engines.engine_errors import EngineError
from gpuscope.engines.query_engine import QueryEngine, labelled_values
from gpuscope.health.lost_time import LossScope, LostTime
from gpuscope.prometheus_duration import duration_text
from gpuscope.promql.frame import Bools, Floats
from gpuscope.promql.result import Matrix

STEP_MS: Final = 60_000
MAX_SERIES: Final = 100_000
"""Of one row. A fleet of 1,000 GPUs has a few thousand processes."""
OBSERVED: Final = '{__name__=~"gpuscope_gpu_up|gpuscope_mig_info"}'
WITH_PROCESSES: Final = "sum by (instance, uuid) (gpuscope_gpu_processes)"
_OWNER_LABELS: Final = ("namespace", "pod", "slurm_job", "container", "user")
_PROCESS_LABELS: Final = (*_OWNER_LABELS, "pid")

GpuKey = tuple[str, str]
"""Instance and UUID; the UUID is empty for a node."""
Owner = tuple[str, ...]
"""Values of namespace, pod, slurm_job, container and user; empty where the finding is about hardware."""
NO_LABELS: Final[Owner] = ()
_Share = TypeVar("_Share", Floats, Bools)
Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a computation where it does not hold up an event loop."""


async def run_inline(work: Callable[[], None]) -> None:
    work()


@dataclass(frozen=True, slots=True)
class LossSubject:
    kind: str
    instance: str
    uuid: str
    owner: Owner


@dataclass(slots=True)
class LostSpan:
    start_ms: int
    end_ms: int
    lost_seconds: float
    """Of one GPU, before its MIG weight."""


@dataclass(slots=True)
class Window:
    start_ms: int
    end_ms: int
    spans: dict[LossSubject, list[LostSpan]] = field(default_factory=dict)
    observed: dict[GpuKey, list[LostSpan]] = field(default_factory=dict)
    """Of boards and MIG instances: when they were read."""
    with_processes: dict[GpuKey, list[LostSpan]] = field(default_factory=dict)
    """When their processes were known."""
    gpus: dict[GpuKey, dict[str, str]] = field(default_factory=dict)
    """Labels of their info series."""
    failed: dict[str, str] = field(default_factory=dict)
    """By kind: why it is not known."""
    read_steps: int = 0
    """How many samples say at the steps that a GPU or instance was read: of all reporters."""


_Spans = dict[GpuKey, list[LostSpan]]


async def read_window(
    engine: QueryEngine,
    rows: Sequence[LostTime],
    start_ms: int,
    end_ms: int,
    offload: Offload = run_inline,
) -> Window:
    """Steps are start, start + 60 s, … before `end_ms`."""
    window = Window(start_ms, end_ms)

    async def query(promql: str) -> Matrix:
        return await engine.range(promql, start_ms, end_ms - STEP_MS, STEP_MS, max_series=MAX_SERIES)

    seen = await query(OBSERVED)
    if seen.labels:
        window.gpus = await _gpu_labels(engine, start_ms, end_ms)
    else:  # nothing was watched: only what scrapes say of nodes can be known
        rows = [row for row in rows if row.scope is LossScope.NODE and row.is_priced]
    claims = _Claims(window)
    await offload(partial(claims.observe, seen, await query(WITH_PROCESSES) if seen.labels else seen))
    for row in rows:
        try:
            await offload(partial(claims.add, row, await query(row.promql)))
        except EngineError as error:
            window.failed[row.kind] = str(error)
    return window


def join_windows(before: Window, after: Window, rows: Sequence[LostTime]) -> Window:
    """Two windows that touch, as one. A part is added each minute; kept apart, each would hold every GPU again.

    `before` does not change, because a report may be reading it in another thread.
    """
    work = {row.kind for row in rows if row.value_is_seconds}
    spans = dict(before.spans)
    for subject, found in after.spans.items():
        spans[subject] = _continued(spans.get(subject, []), found, is_work=subject.kind in work)
    return Window(
        before.start_ms,
        after.end_ms,
        spans,
        _continued_by_gpu(before.observed, after.observed),
        _continued_by_gpu(before.with_processes, after.with_processes),
        before.gpus | {key: labels for key, labels in after.gpus.items() if before.gpus.get(key) != labels},
        before.failed | after.failed,
        before.read_steps + after.read_steps,
    )


def _continued_by_gpu(before: _Spans, after: _Spans) -> _Spans:
    return before | {key: _continued(before.get(key, []), spans) for key, spans in after.items()}


def _continued(before: list[LostSpan], after: list[LostSpan], *, is_work: bool = False) -> list[LostSpan]:
    """A span that begins where another one ends continues it. Lost work is counted where it begins."""
    joined = list(before)
    for span in after:
        at = len(joined) - 1
        while at >= 0 and joined[at].end_ms > span.start_ms:
            at -= 1
        if at >= 0 and joined[at].end_ms == span.start_ms:
            lost_seconds = joined[at].lost_seconds + (0.0 if is_work else span.lost_seconds)
            joined[at] = LostSpan(joined[at].start_ms, span.end_ms, lost_seconds)
        else:
            joined.append(span)
    return joined


async def _gpu_labels(engine: QueryEngine, start_ms: int, end_ms: int) -> dict[GpuKey, dict[str, str]]:
    found = {}
    for metric in ("gpuscope_gpu_info", "gpuscope_mig_info"):
        infos = await engine.instant(f"last_over_time({metric}[{duration_text(end_ms - start_ms)}])", end_ms)
        for labels, _ in labelled_values(infos):
            found[labels.get("instance", ""), labels.get("uuid", "")] = labels
    return found


class _Claims:
    """Gives each part of a GPU's time to the first row that claims it; a later one gets what it claims more."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps = (window.end_ms - window.start_ms) // STEP_MS
        self._claimed: dict[GpuKey, Floats] = {}
        self._turns: Mapping[GpuKey, Bools] = {}
        """Of GPUs with several reporters: the steps that are with each."""

    def observe(self, seen: Matrix, with_processes: Matrix) -> None:
        self._window.read_steps = int(seen.present.sum())
        self._turns = _turns(seen)
        for found, kept in ((seen, self._window.observed), (with_processes, self._window.with_processes)):
            for labels, present in zip(found.labels, found.present, strict=True):
                key = _gpu_key(dict(labels))
                if spans := _spans(self._window, self._in_turn(key, present)):
                    kept.setdefault(key, []).extend(spans)

    def _in_turn(self, key: GpuKey, share: _Share) -> _Share:
        turns = self._turns.get(key)
        return share if turns is None else share * turns

    def add(self, row: LostTime, found: Matrix) -> None:
        if row.value_is_seconds:
            self._add_work(row, found)
            return
        by_subject: dict[LossSubject, Floats] = {}
        for labels, values, present in zip(found.labels, found.values, found.present, strict=True):
            subject = _subject(row, dict(labels))
            share = np.where(present, np.clip(values, 0.0, 1.0) if row.value_is_share else 1.0, 0.0)
            share = self._in_turn((subject.instance, subject.uuid), np.nan_to_num(share))
            held = by_subject.get(subject)
            by_subject[subject] = share if held is None else np.maximum(held, share)
        if row.is_priced and row.scope is not LossScope.NODE:
            by_subject = self._claim(by_subject)
        for subject, share in by_subject.items():
            if spans := _spans(self._window, share):
                self._window.spans[subject] = spans

    def _add_work(self, row: LostTime, found: Matrix) -> None:
        """Work that is lost, which is not the time in which it is seen to be lost."""
        for labels, values, present in zip(found.labels, found.values, found.present, strict=True):
            subject = _subject(row, dict(labels))
            turns = self._turns.get((subject.instance, subject.uuid))
            for span in _spans(self._window, present):
                first = (span.start_ms - self._window.start_ms) // STEP_MS
                if turns is None or turns[first]:  # it is counted where it begins
                    span.lost_seconds = float(np.nan_to_num(values[first]))
                    self._window.spans.setdefault(subject, []).append(span)

    def _claim(self, by_subject: Mapping[LossSubject, Floats]) -> dict[LossSubject, Floats]:
        """Owners of one GPU share it equally."""
        owners: dict[GpuKey, list[LossSubject]] = defaultdict(list)
        for subject in by_subject:
            owners[subject.instance, subject.uuid].append(subject)
        claimed: dict[LossSubject, Floats] = {}
        for key, subjects in owners.items():
            before = self._claimed.get(key)
            if before is None:
                before = np.zeros(self._steps)
            shares = np.array([by_subject[subject] for subject in subjects])
            sharing = np.maximum(1, (shares > 0).sum(axis=0))
            granted = np.maximum(0.0, shares - before) / sharing
            self._claimed[key] = before + granted.sum(axis=0)
            claimed.update(zip(subjects, granted, strict=True))
        return claimed


def _turns(seen: Matrix) -> dict[GpuKey, Bools]:
    """Of GPUs and instances with several reporters: the steps that are with each. They stay with one until it
    is silent, and go to the first by name of the others then."""
    by_uuid: dict[str, dict[str, Bools]] = defaultdict(dict)
    for labels, present in zip(seen.labels, seen.present, strict=True):
        instance, uuid = _gpu_key(dict(labels))
        known = by_uuid[uuid].get(instance)
        by_uuid[uuid][instance] = present if known is None else known | present
    turns: dict[GpuKey, Bools] = {}
    for uuid, reporters in by_uuid.items():
        if len(reporters) < 2:
            continue
        instances = sorted(reporters)
        present = np.array([reporters[instance] for instance in instances])
        chosen = np.zeros(present.shape[1], dtype=np.int64)
        current = 0
        for step in np.flatnonzero(present.any(axis=0)).tolist():
            if not present[current, step]:
                current = int(np.argmax(present[:, step]))
            chosen[step] = current
        turns.update({(instance, uuid): chosen == number for number, instance in enumerate(instances)})
    return turns


def _spans(window: Window, share: Floats | Bools) -> list[LostSpan]:
    """The stretches in which the share is above 0."""
    is_above = share > 0
    if is_above.all():  # usually: of 8,000 GPUs each was seen all the time
        edges = [0, len(share)] if len(share) else []
    else:
        edges = np.flatnonzero(np.diff(is_above.astype(np.int8), prepend=0, append=0)).tolist()
    return [
        LostSpan(
            window.start_ms + first * STEP_MS,
            window.start_ms + end * STEP_MS,
            float(share[first:end].sum()) * STEP_MS / 1000,
        )
        for first, end in zip(edges[::2], edges[1::2], strict=True)
    ]


def _gpu_key(labels: Mapping[str, str]) -> GpuKey:
    return labels.get("instance", ""), labels.get("uuid", "")


def _subject(row: LostTime, labels: Mapping[str, str]) -> LossSubject:
    instance, uuid = _gpu_key(labels)
    if row.scope is LossScope.NODE:
        return LossSubject(row.kind, instance, "", NO_LABELS)
    if row.scope is LossScope.GPU:
        return LossSubject(row.kind, instance, uuid, NO_LABELS)
    names = _PROCESS_LABELS if row.scope is LossScope.PROCESS else _OWNER_LABELS
    return LossSubject(row.kind, instance, uuid, tuple(labels.get(name, "") for name in names))
