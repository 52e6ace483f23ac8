"""Which part of a range the findings are about, in GPU-hours, and sentences about what is missing.

A GPU counts from its first sample in the range, or from the start of the range if it was there before, until
the end. `gpu_hours = known + missing`. Time that was not read yet is missing too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.judge.reports.findings.finding_episodes import seconds_within
from gpuscope.judge.reports.findings.finding_windows import LostSpan, Window
from gpuscope.judge.reports.gpu_weights import GpuKey, GpuWeights
from gpuscope.judge.reports.report_sentence import ReportSentence

HOUR: Final = 3600.0
HOUR_MS: Final = 3_600_000
_MIN_GPU_HOURS: Final = 0.05
"""Less is not worth a sentence: a step of a minute, a scrape that came late."""


@dataclass(frozen=True, slots=True)
class Coverage:
    gpus: int
    gpu_hours: float
    known_gpu_hours: float
    missing_gpu_hours: float
    sentences: list[ReportSentence] = field(default_factory=list)


def coverage_of(windows: Sequence[Window], weights: GpuWeights, start_ms: int, end_ms: int) -> Coverage:
    observed = _observed_boards(windows, weights)
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
    sentences += _without_processes(windows, weights, known, start_ms, end_ms)
    sentences += failed(windows)
    return Coverage(len(observed), gpu_hours, known, missing, sentences)


def _observed_boards(windows: Iterable[Window], weights: GpuWeights) -> dict[str, list[LostSpan]]:
    """By UUID, in the order of time: a GPU may have had several reporters. Instances are parts of boards."""
    observed: dict[str, list[LostSpan]] = defaultdict(list)
    for window in windows:
        for key, spans in window.observed.items():
            if weights.is_board(key):
                observed[key[1]] += spans
    return {uuid: sorted(spans, key=lambda span: span.start_ms) for uuid, spans in observed.items()}


def unread(windows: Sequence[Window], start_ms: int, end_ms: int) -> Iterator[ReportSentence]:
    read_ms = sum(min(window.end_ms, end_ms) - max(window.start_ms, start_ms) for window in windows)
    left = (end_ms - start_ms - read_ms) / HOUR_MS
    if left > 0.1:
        yield ReportSentence("missing.unread", hours=left)


def _without_processes(
    windows: Sequence[Window], weights: GpuWeights, known: float, start_ms: int, end_ms: int
) -> Iterator[ReportSentence]:
    spans: dict[GpuKey, list[LostSpan]] = defaultdict(list)
    for window in windows:
        for key, found in window.with_processes.items():
            spans[key] += found
    hours = sum(
        weights.weight(key) * seconds_within(found, start_ms, end_ms) / HOUR for key, found in spans.items()
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
