"""Whose series count for a GPU, and when: one reporter per GPU and time.

A reporter is an agent that is scraped or pushes, by `instance` and `job`. A node that is pushed and scraped has
two; a GPU that moved to another node has one after the other. A GPU stays with its reporter until that one
falls silent, then goes to the first by name of those that report it, or to the next one that does. At the start
of a range it is with the first by name. A GPU with one reporter has no turns: all of its series count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gpuscope.base.go_quote import quote
from gpuscope.history.promql.frame import Bools, Ints
from gpuscope.judge.checks.finding_details import one_of
from gpuscope.model.series import Labels

Reporter = tuple[str, str]
"""Instance and job."""
SILENT_MS: Final = 300_000
"""A sample that is older does not answer a query of now; a reporter with shorter pauses keeps its GPU."""


@dataclass(frozen=True, slots=True)
class ReportedSpan:
    """A reporter's samples of a GPU without a long pause."""

    reporter: Reporter
    start_ms: int
    """The first sample: what a counter grows after it can be counted alone."""
    end_ms: int
    began_ms: int
    """From when on the first sample counts: the agent's start, or the last sample before a pause."""


@dataclass(frozen=True, slots=True)
class Turn:
    """From when to when the series of one reporter count."""

    reporter: Reporter
    start_ms: int
    end_ms: int
    is_cut: tuple[bool, bool] = (False, False)
    """Whether the reporter has samples before the start and after the end, which do not count."""

    def overlaps(self, starts_ms: Ints, ends_ms: Ints) -> Bools:
        """Which of the steps are at least in part in it."""
        found: Bools = (self.start_ms < ends_ms) & (self.end_ms > starts_ms)
        return found


def take_turns(spans: Iterable[ReportedSpan], start_ms: int, end_ms: int, edges_ms: Ints) -> list[Turn]:
    """The turns of one GPU. A change between two that both report it is put on one of the edges (ascending) of
    the chunks that counters are read in, if there is one: any time is as right, and this one costs no query."""
    waiting = sorted(spans, key=lambda span: (span.start_ms, span.reporter))
    present = [span for span in waiting if span.start_ms <= start_ms]
    span = min(present, key=lambda one: one.reporter) if present else waiting[0]
    begin_ms = start_ms if present else max(start_ms, span.began_ms)
    changes = [(begin_ms, span.reporter, False)]
    while span.end_ms < end_ms:
        last_ms = max(span.end_ms, begin_ms)
        present = [one for one in waiting if one.start_ms <= last_ms < one.end_ms]
        later = [one for one in waiting if one.start_ms > last_ms]
        if present:
            span = min(present, key=lambda one: one.reporter)
            begin_ms, is_cut = _edge(edges_ms, max(span.start_ms, begin_ms), last_ms), True
        elif later:
            span = later[0]
            is_cut = span.began_ms < last_ms
            begin_ms = span.start_ms if is_cut else span.began_ms
        else:
            break
        if span.reporter != changes[-1][1]:
            changes.append((begin_ms, span.reporter, is_cut))
    ends_ms = [begin_ms for begin_ms, _, _ in changes[1:]] + [end_ms]
    return [
        Turn(reporter, begin_ms, until_ms, (is_cut, any(_is_after(one, reporter, until_ms) for one in waiting)))
        for (begin_ms, reporter, is_cut), until_ms in zip(changes, ends_ms, strict=True)
        if begin_ms < until_ms
    ]


def _is_after(span: ReportedSpan, reporter: Reporter, at_ms: int) -> bool:
    return span.reporter == reporter and span.end_ms > at_ms


def _edge(edges_ms: Ints, first_ms: int, last_ms: int) -> int:
    """The last of the edges between the two times, or the second one."""
    number = int(np.searchsorted(edges_ms, last_ms, side="right")) - 1
    return int(edges_ms[number]) if number >= 0 and edges_ms[number] >= first_ms else last_ms


@dataclass(frozen=True, slots=True)
class GpuReporters:
    turns: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    """By UUID of a GPU with several reporters, in the order of time."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """UUIDs of GPUs, by UUID of their MIG instances."""

    def turns_of(self, labels: Labels) -> Sequence[Turn] | None:
        """The turns in which a series counts; None if it always does."""
        if not self.turns:
            return None
        values = dict(labels)
        uuid = values.get("uuid", "")
        turns = self.turns.get(self.parents.get(uuid, uuid))
        if turns is None:
            return None
        reporter = reporter_of(values)
        return [turn for turn in turns if turn.reporter == reporter]

    def changing(self, start_ms: int, end_ms: int) -> set[str]:
        """UUIDs of GPUs and instances whose reporter changes between the two times."""
        boards = {
            uuid
            for uuid, turns in self.turns.items()
            if any(start_ms < turn.start_ms < end_ms for turn in turns[1:])
        }
        return boards | {uuid for uuid, parent in self.parents.items() if parent in boards}


ALL_REPORTERS: Final = GpuReporters()


def uuid_matcher(uuids: Iterable[str]) -> str:
    return f"uuid=~{quote(one_of(sorted(uuids)))}"


def reporter_of(labels: Mapping[str, str]) -> Reporter:
    return labels.get("instance", ""), labels.get("job", "")
