"""The history that a server has of a situation: agents scraped at each moment, with gaps, restarts and delays.

Series end with a stale marker where a scrape does not have them, as in Prometheus. Scrape times are the
server's; a node's own clock may be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from gpuscope.model.exposition.sample import LabelSet, MetricFamily
from gpuscope.model.readings import Snapshot
from gpuscope.model.series import Labels, Series
from tests.judgement.agents import SimulatedAgent
from tests.judgement.schedules import parse_schedule
from tests.judgement.situation import Node, Situation
from tests.promql.memory import STALE

SeriesPoints: TypeAlias = list[tuple[float, float]]
"""Seconds of the situation and values."""
Points: TypeAlias = dict[Labels, SeriesPoints]


@dataclass(frozen=True)
class ScrapedHistory:
    """The series that a server has at the end, and those that arrive late, after it was asked once."""

    series: list[Series]
    late: list[Series]

    @cached_property
    def complete(self) -> list[Series]:
        return [*self.series, *self.late]


class _Scrapes:
    """Series of one target, with stale markers."""

    def __init__(self, target: Mapping[str, str], start: float) -> None:
        self._target = dict(target)
        self._start = start
        self._points: Points = defaultdict(list)
        self._families: dict[str, tuple[list[LabelSet], list[SeriesPoints]]] = {}
        """By name, as in the last scrape."""

    def add(self, at: float, families: Iterable[MetricFamily]) -> None:
        before, self._families = self._families, {}
        for family in families:
            labels = [labels for labels, _ in family.samples]
            known = before.get(family.name)
            if known is None or known[0] != labels:  # builders share label sets between two snapshots
                known = labels, [self._points[self._labels(family.name, one)] for one in labels]
            self._families[family.name] = known
            for points, (_, value) in zip(known[1], family.samples, strict=True):
                points.append((at, float(value)))
        self._end_others(at, before)

    def add_own(self, at: float, name: str, value: float) -> None:
        """A sample that the scraper itself writes."""
        self._points[self._labels(name, LabelSet(()))].append((at, value))

    def fail(self, at: float) -> None:
        before, self._families = self._families, {}
        self._end_others(at, before)

    def _end_others(self, at: float, before: Mapping[str, tuple[list[LabelSet], list[SeriesPoints]]]) -> None:
        """Marks the end of the series that this scrape does not have."""
        for name, known in before.items():
            if self._families.get(name) is not known:
                for points in known[1]:
                    if points[-1][0] != at:
                        points.append((at, STALE))

    def _labels(self, name: str, labels: LabelSet) -> Labels:
        own = {f"exported_{key}" if key in self._target else key: text for key, text in labels.pairs}
        pairs = {**own, **self._target, "__name__": name}
        return tuple(sorted((key, text) for key, text in pairs.items() if text))

    def series(self) -> Iterator[Series]:
        for labels, points in self._points.items():
            times = np.array([round(1000 * (self._start + at)) for at, _ in points], np.int64)
            yield Series(labels, times, np.array([value for _, value in points]))


def scrape(situation: Situation) -> ScrapedHistory:
    """Everything that the server scraped."""
    series, late = [], []
    for node in situation.nodes.values():
        found = list(_scrape_node(situation, node).series())
        if any(situation.of_kind("scraped_twice", node.name)):
            found += [replace(one, labels=_of_another_job(one.labels)) for one in found]
        spans = [one.span for one in situation.of_kind("late", node.name)]
        for one in found:
            seconds = one.timestamps / 1000 - situation.start
            is_late = np.zeros(len(seconds), bool)
            for span in spans:
                is_late |= (seconds >= span.begin) & (seconds < span.end)
            if is_late.any():
                late.append(Series(one.labels, one.timestamps[is_late], one.values[is_late]))
            if not is_late.all():
                series.append(Series(one.labels, one.timestamps[~is_late], one.values[~is_late]))
    for row in situation.others:
        target = _Scrapes({"job": row["job"], "instance": row["instance"]}, situation.start)
        up = parse_schedule(row.get("up", 1), situation.lasts)
        for at in situation.moments:
            if not situation.is_during("server_down", True, at):
                target.add_own(at, "up", up.at(at))
        series += target.series()
    return ScrapedHistory(series, late)


def _of_another_job(labels: Labels) -> Labels:
    return tuple((name, "gpu-nodes" if name == "job" else text) for name, text in labels)


def _scrape_node(situation: Situation, node: Node) -> _Scrapes:
    agent = SimulatedAgent(situation, node)
    target = _Scrapes({"job": "gpuscope", "instance": node.instance}, situation.start)
    restarts = sorted(one.span.begin for one in situation.of_kind("agent_restarts", node.name))
    snapshot: Snapshot | None = None
    since = situation.moments[0] - agent.cycle_seconds
    for moment in situation.moments:
        while restarts and restarts[0] <= moment:
            agent.restart(restarts[0])
            since = max(since, restarts.pop(0))
        is_down = situation.is_during("node_down", node.name, moment)
        if is_down:  # the machine is off: its agent starts with it
            agent.restart(moment)
            since = moment
        elif not situation.is_during("agent_stuck", node.name, moment):
            cycles = max(1, round((moment - since) / agent.cycle_seconds))
            for number in range(1, cycles + 1):
                at = since + (moment - since) * number / cycles
                snapshot = agent.read(at, since + (moment - since) * (number - 1) / cycles)
            since = moment
        if situation.is_during("server_down", True, moment):
            continue
        if situation.is_during("scrape_gap", node.name, moment):
            continue
        target.add_own(moment, "up", 0.0 if is_down else 1.0)
        target.add_own(moment, "scrape_duration_seconds", 0.01)
        if is_down or snapshot is None:
            target.fail(moment)
        else:
            target.add(moment, agent.families(snapshot, moment - since))
    return target
