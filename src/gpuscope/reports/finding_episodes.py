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
    """Spans in the order of their times. What began before the range is clipped, and so is its cost.

    A span whose own age reaches back to the one before continues it: nothing was seen between them."""
    joined: list[Episode] = []
    for span in spans:
        lead_ms = int(1000 * (span.age_seconds or lead_seconds))
        before = joined[-1] if joined else None
        if before is not None and _continues(span, before, lead_ms):
            unseen = max(0, span.start_ms - before.end_ms) / 1000 if lead_ms else 0.0
            before.lost_seconds += span.lost_seconds + unseen * span.lost_seconds / span.seconds
            before.end_ms = max(before.end_ms, span.end_ms)
        else:
            joined.append(_with_lead(span, lead_ms, is_over=span.end_ms < end_ms))
    return [one for one in (_clip(one, start_ms, end_ms) for one in joined) if one.end_ms > one.start_ms]


def _continues(span: LostSpan, before: Episode, lead_ms: int) -> bool:
    """The end of an episode is known to a step."""
    return span.start_ms - before.end_ms <= STEP_MS or span.start_ms - lead_ms < before.end_ms - STEP_MS


def _with_lead(span: LostSpan, lead_ms: int, *, is_over: bool) -> Episode:
    """The time before the expression saw it costs as much as the time after. Its beginning is then exact, and
    its end, if it is over, half a step before the step at which it did not hold."""
    lost_per_second = span.lost_seconds / span.seconds
    seconds = lead_ms / 1000 - (STEP_MS / 2000 if is_over and lead_ms else 0.0)
    return Episode(span.start_ms - lead_ms, span.end_ms, span.lost_seconds + seconds * lost_per_second)


def _clip(episode: Episode, start_ms: int, end_ms: int) -> Episode:
    start, end = max(episode.start_ms, start_ms), min(episode.end_ms, end_ms)
    if (start, end) == (episode.start_ms, episode.end_ms):
        return episode
    share = max(0, end - start) / (episode.end_ms - episode.start_ms)
    return Episode(start, end, episode.lost_seconds * share)
