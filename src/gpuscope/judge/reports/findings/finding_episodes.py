"""From the spans of many windows to episodes: when something held without a break, and what it cost.

Spans of two windows that touch are one episode. An episode that is seen late, because its check needs some time
(`lead_seconds`) or says how old it is, reaches back by that time; nothing that another one claimed costs twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.judge.checks.check import Check, Share, Subject
from gpuscope.judge.checks.finding import GpuKey, SubjectKey
from gpuscope.judge.reports.findings.finding_windows import STEP_MS, LostSpan, Window, continued
from gpuscope.judge.reports.gpu_identities import GpuIdentities

TimeSpan = tuple[int, int]


@dataclass(slots=True)
class Episode(LostSpan):
    seen_ms: int = 0
    """When the expression first saw it."""


def episodes_by_subject(
    windows: Sequence[Window],
    checks: Iterable[Check],
    identities: GpuIdentities,
    start_ms: int,
    end_ms: int,
    only: Collection[SubjectKey] | None = None,
) -> Iterator[tuple[Check, SubjectKey, list[Episode]]]:
    """Windows in the order of their times; `only` leaves out other subjects."""
    by_kind = {check.kind: check for check in checks}
    spans = _spans_by_subject(windows, identities, only)
    joining = _Joining(identities, spans, _first_seen(windows), end_ms)
    for subject, found in spans.items():
        check = by_kind.get(subject.kind)
        if check is None or (only is not None and subject not in only):
            continue
        episodes = joining.join(subject, found, check.lead_seconds)
        if check.subject in (Subject.NODE, Subject.SLURM_NODE) and check.share is not Share.NONE:
            episodes = _without(episodes, _counted_elsewhere(check, subject, windows, identities))
        clipped = (_clip(episode, start_ms, end_ms) for episode in episodes)
        if inside := [episode for episode in clipped if episode.end_ms > episode.start_ms]:
            yield check, subject, inside


def _first_seen(windows: Iterable[Window]) -> dict[GpuKey, int]:
    begins: dict[GpuKey, int] = {}
    for window in windows:
        for key, spans in window.observed.items():
            begins.setdefault(key, spans[0].start_ms)
    return begins


def _spans_by_subject(
    windows: Sequence[Window], identities: GpuIdentities, only: Collection[SubjectKey] | None
) -> dict[SubjectKey, list[LostSpan]]:
    """With `only`, those and the others of the same boards."""
    boards = None if only is None else {identities.board(subject.gpu) for subject in only}
    spans: dict[SubjectKey, list[LostSpan]] = defaultdict(list)
    for window in windows:
        for subject, found in window.spans.items():
            if boards is None or identities.board(subject.gpu) in boards:
                spans[subject] += found
    return spans


class _Joining:
    """Makes episodes of spans. Time in which the expression did not see an episode yet, or in which nothing was
    seen, costs as much as the span after it, but no more than nothing else has claimed."""

    def __init__(
        self,
        identities: GpuIdentities,
        spans: Mapping[SubjectKey, Iterable[LostSpan]],
        begins: Mapping[GpuKey, int],
        end_ms: int,
    ) -> None:
        self._identities = identities
        self._begins = begins
        self._end_ms = end_ms
        self._claims: dict[GpuKey, list[tuple[GpuKey, LostSpan]]] = defaultdict(list)
        """By board: what has claimed its time, or that of its instances."""
        for subject, found in spans.items():
            for span in found if subject.uuid else ():
                if span.lost_seconds:
                    self._claim(subject.gpu, span)

    def join(self, subject: SubjectKey, spans: Iterable[LostSpan], lead_seconds: float) -> list[Episode]:
        """Spans in the order of their times. One whose own age reaches back to the one before continues it."""
        key = subject.gpu
        joined: list[Episode] = []
        for span in continued([], spans):  # a window that ends does not end an episode
            lead_ms = int(1000 * (span.age_seconds or lead_seconds))
            before = joined[-1] if joined else None
            rate = span.lost_seconds / span.seconds
            if before is not None and _continues(span, before, lead_ms):
                unseen = max(0, span.start_ms - before.end_ms) / 1000 if lead_ms else 0.0
                before.lost_seconds += span.lost_seconds
                before.lost_seconds += self._grant(key, rate * unseen, before.end_ms, span.start_ms)
                before.end_ms = max(before.end_ms, span.end_ms)
                continue
            begin_ms = max(span.start_ms - lead_ms, min(span.start_ms, self._begins.get(key, 0)))
            # Its beginning is exact, and its end, if it is over, half a step before it did not hold.
            over = STEP_MS / 2000 if lead_ms and span.end_ms < self._end_ms else 0.0
            unseen = (span.start_ms - begin_ms) / 1000 - over
            lost = span.lost_seconds + self._grant(key, rate * unseen, begin_ms, span.start_ms)
            joined.append(Episode(begin_ms, span.end_ms, lost, seen_ms=span.start_ms))
        return joined

    def _grant(self, key: GpuKey, wanted: float, start_ms: int, end_ms: int) -> float:
        if wanted <= 0 or not key[1]:
            return wanted
        granted = min(wanted, max(0.0, self._left(key, start_ms, end_ms)))
        if granted:
            self._claim(key, LostSpan(start_ms, end_ms, granted))
        return granted

    def _claim(self, key: GpuKey, span: LostSpan) -> None:
        self._claims[self._identities.board(key)].append((key, span))

    def _left(self, key: GpuKey, start_ms: int, end_ms: int) -> float:
        """What nothing has claimed yet: of the GPU or instance, and of its board."""
        board, weight, seconds = (
            self._identities.board(key),
            self._identities.weight(key[1]),
            (end_ms - start_ms) / 1000,
        )
        own = used = 0.0
        for claimant, span in self._claims[board]:
            if span.end_ms > start_ms and span.start_ms < end_ms:
                lost = span.lost_within(start_ms, end_ms)
                own += lost if claimant in (key, board) else 0.0
                used += lost * self._identities.weight(claimant[1])
        return seconds - own if not weight else min(seconds - own, (seconds - used) / weight)


def _continues(span: LostSpan, before: Episode, lead_ms: int) -> bool:
    """The end of an episode is known to a step."""
    return span.start_ms - before.end_ms <= STEP_MS or span.start_ms - lead_ms < before.end_ms - STEP_MS


def seconds_within(spans: Iterable[LostSpan], start_ms: int, end_ms: int) -> float:
    """Spans of several reporters may touch or overlap by a step."""
    seconds, until_ms = 0.0, start_ms
    for span in sorted(spans, key=lambda one: one.start_ms):
        begin = max(span.start_ms if span.start_ms - until_ms > STEP_MS else until_ms, until_ms)
        until = min(span.end_ms, end_ms)
        if until > begin:
            seconds, until_ms = seconds + (until - begin) / 1000, until
    return seconds


def longest_run(spans: Iterable[LostSpan]) -> float:
    """In seconds: of spans that touch or overlap."""
    longest = begin_ms = until_ms = 0
    for span in sorted(spans, key=lambda one: one.start_ms):
        if span.start_ms - until_ms > STEP_MS:
            begin_ms = span.start_ms
        until_ms = max(until_ms, span.end_ms)
        longest = max(longest, until_ms - begin_ms)
    return longest / 1000


def _counted_elsewhere(
    check: Check, subject: SubjectKey, windows: Sequence[Window], identities: GpuIdentities
) -> list[TimeSpan]:
    """When what a node loses is not lost, or is another finding's: each of its GPUs has another reporter, as
    when it also pushes; or the node of Slurm is one whose own agent is known to be down."""
    if check.subject is Subject.NODE:
        others = [identities.other_reporters(board) for board in identities.boards(subject.instance)]
        instances = {instance for keys in others for instance, _ in keys}
        # Of a node that is down under two addresses, the first by name has the loss.
        earlier = [
            SubjectKey(check.kind, instance, "", ()) for instance in instances if instance < subject.instance
        ]
        return _reported(windows, others) + _times(windows, earlier if all(others) else ())
    explaining = [
        SubjectKey(kind, instance, "", ())
        for kind in check.explained_by
        for instance in identities.instances(subject.instance)
    ]
    return _times(windows, explaining)


def _times(windows: Iterable[Window], subjects: Sequence[SubjectKey]) -> list[TimeSpan]:
    return [
        (span.start_ms, span.end_ms)
        for window in windows
        for subject in subjects
        for span in window.spans.get(subject, ())
    ]


def _reported(windows: Sequence[Window], other_reporters: Iterable[Sequence[GpuKey]]) -> list[TimeSpan]:
    """When each of the GPUs has another reporter."""
    reported: list[TimeSpan] | None = None
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
    return reported or []


def _without(episodes: Iterable[Episode], spans: Iterable[TimeSpan]) -> list[Episode]:
    left = list(episodes)
    for start_ms, end_ms in spans:
        left = [
            part
            for episode in left
            for part in (_clip(episode, episode.start_ms, start_ms), _clip(episode, end_ms, episode.end_ms))
            if part.end_ms > part.start_ms
        ]
    return left


def _overlaps(spans: Iterable[TimeSpan], others: Sequence[TimeSpan]) -> list[TimeSpan]:
    found = [(max(start, begin), min(end, until)) for start, end in spans for begin, until in others]
    return [(start_ms, end_ms) for start_ms, end_ms in found if start_ms < end_ms]


def _clip(episode: Episode, start_ms: int, end_ms: int) -> Episode:
    start, end = max(episode.start_ms, start_ms), min(episode.end_ms, end_ms)
    if (start, end) == (episode.start_ms, episode.end_ms):
        return episode
    return Episode(start, end, episode.lost_within(start, end), seen_ms=max(episode.seen_ms, start))
