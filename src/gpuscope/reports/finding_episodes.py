"""From the spans of many windows to episodes: when something held without a break, and what it cost.

Spans of two windows that touch are one episode. An episode is clipped to the requested range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.health.check import Check
from gpuscope.health.condition import SubjectKey
from gpuscope.reports.finding_windows import STEP_MS, GpuKey, LostSpan, Window


@dataclass(slots=True)
class Episode:
    start_ms: int
    end_ms: int
    lost_seconds: float

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000


def first_seen(windows: Iterable[Window]) -> dict[GpuKey, int]:
    """When each GPU and instance was first read; windows in the order of their times."""
    begins: dict[GpuKey, int] = {}
    for window in windows:
        for key, spans in window.observed.items():
            begins.setdefault(key, spans[0].start_ms)
    return begins


def episodes_by_subject(
    windows: Sequence[Window],
    checks: Iterable[Check],
    begins: Mapping[GpuKey, int],
    start_ms: int,
    end_ms: int,
) -> Iterator[tuple[Check, SubjectKey, list[Episode]]]:
    """An episode does not reach back beyond the first reading of its GPU in `begins`."""
    by_kind = {check.kind: check for check in checks}
    spans: dict[SubjectKey, list[LostSpan]] = {}
    for window in windows:
        for subject, found in window.spans.items():
            spans.setdefault(subject, []).extend(found)
    for subject, found in spans.items():
        check = by_kind.get(subject.kind)
        if check is None:
            continue
        begin_ms = max(start_ms, begins.get((subject.instance, subject.uuid), start_ms))
        if episodes := join_spans(found, begin_ms, end_ms, check.lead_seconds):
            yield check, subject, episodes


def without_reported(
    episodes: Sequence[Episode], windows: Sequence[Window], other_reporters: Iterable[Sequence[GpuKey]]
) -> list[Episode]:
    """Of a node that is down: without the time in which each of its GPUs has another reporter, as when it also
    pushes, or after a move."""
    reported: list[tuple[int, int]] | None = None
    for keys in other_reporters:
        spans = sorted(
            (span.start_ms, span.end_ms)
            for window in windows
            for key in keys
            for span in window.observed.get(key, ())
        )
        reported = spans if reported is None else _overlaps(reported, spans)
        if not reported:
            break
    left = list(episodes)
    for start_ms, end_ms in reported or ():
        left = [
            part
            for episode in left
            for part in (_clip(episode, episode.start_ms, start_ms), _clip(episode, end_ms, episode.end_ms))
            if part.end_ms > part.start_ms
        ]
    return left


def _overlaps(spans: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found = [(max(start, begin), min(end, until)) for start, end in spans for begin, until in others]
    return [(start_ms, end_ms) for start_ms, end_ms in found if start_ms < end_ms]


def join_spans(
    spans: Iterable[LostSpan], start_ms: int, end_ms: int, lead_seconds: float = 0.0
) -> list[Episode]:
    """Spans in the order of their times. What began before the range is clipped, and so is its cost."""
    joined: list[Episode] = []
    leads: list[float] = []
    for span in spans:
        if joined and span.start_ms - joined[-1].end_ms <= STEP_MS:
            joined[-1].end_ms = max(joined[-1].end_ms, span.end_ms)
            joined[-1].lost_seconds += span.lost_seconds
        else:
            joined.append(Episode(span.start_ms, span.end_ms, span.lost_seconds))
            leads.append(span.age_seconds or lead_seconds)
    joined = [_with_lead(one, lead) for one, lead in zip(joined, leads, strict=True)]
    return [one for one in (_clip(one, start_ms, end_ms) for one in joined) if one.end_ms > one.start_ms]


def _with_lead(episode: Episode, lead_seconds: float) -> Episode:
    """The time before the expression saw it costs as much as the time after. Its beginning is then exact, and
    its end is half a step before the step at which it was over."""
    if not lead_seconds:
        return episode
    lost_per_second = episode.lost_seconds / episode.seconds
    half_step = STEP_MS / 2000
    return Episode(
        episode.start_ms - int(lead_seconds * 1000),
        episode.end_ms,
        episode.lost_seconds + (lead_seconds - half_step) * lost_per_second,
    )


def _clip(episode: Episode, start_ms: int, end_ms: int) -> Episode:
    start, end = max(episode.start_ms, start_ms), min(episode.end_ms, end_ms)
    if (start, end) == (episode.start_ms, episode.end_ms):
        return episode
    share = max(0, end - start) / (episode.end_ms - episode.start_ms)
    return Episode(start, end, episode.lost_seconds * share)
