"""What the history knows of nodes that are gone, in PromQL, from the embedded store or another engine.

A subquery with a step of a minute finds the time of a series' last sample: `since` may be a minute early, never
late; the first try of a target that never answered may be a minute late. A GPU belongs to the last picture of a
node if it was seen at most one look-back (5 min) before the node itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gpuscope.base.go_quote import quote
from gpuscope.judge.checks.facts import Sample
from gpuscope.judge.checks.finding_details import one_of

DAY_SECONDS: Final = 86400.0
SNAPSHOT_METRIC: Final = "gpuscope_agent_snapshot_timestamp_seconds"
LOOK_BACK_SECONDS: Final = 300.0
# A little more than a day, to tell what began before the day from what began in its first minute.
_WINDOW: Final = "1d5m"
# A step of a minute over the day; a finer one over the last minutes, where a coarse step may hit no sample.
_WINDOWS: Final = (f"{_WINDOW}:1m", "10m:5s")
_GPU_IDENTITY: Final = ("gpuscope_gpu_info", "gpuscope_mig_info")
_IDENTITY: Final = ("gpuscope_agent_info", *_GPU_IDENTITY)

T = TypeVar("T")
Found = tuple[Mapping[str, str], float]
HistoryQuery = Callable[[str, float], Awaitable[Iterable[Found]]]
"""An instant query at a time: labels and values."""


@dataclass(slots=True)
class LastSeen:
    """What history knows of one instance; times in seconds since the epoch."""

    answered: bool = False  # a scrape succeeded within the day
    up_at: float | None = None  # when the last one did
    first_try: float | None = None  # the first scrape within the day
    was_scraped: bool = False
    node_at: float = 0.0  # the last sample of its agent; 0: it never was a node
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class LastRead:
    """The GPUs an instance had when they were last read; without any, the time is 0."""

    read_at: float = 0.0
    samples: list[Sample] = field(default_factory=list)


async def last_seen_nodes(query_history: HistoryQuery, now: float) -> dict[str, str]:
    """The job of every node seen within a day, by instance."""
    found = await query_history(f"count_over_time(gpuscope_agent_info[{_WINDOW}])", now)
    return {labels.get("instance", ""): labels.get("job", "") for labels, _ in found}


async def look_up(query_history: HistoryQuery, instances: Collection[str], now: float) -> dict[str, LastSeen]:
    """Each query names all the instances."""
    seen: dict[str, LastSeen] = {instance: LastSeen() for instance in instances}
    await _look_up_scrapes(query_history, _matcher(instances), now, seen)
    await _look_up_identity(query_history, _matcher(instances), now, seen)
    return seen


async def last_read_gpus(
    query_history: HistoryQuery, instances: Collection[str], now: float
) -> dict[str, LastRead]:
    """Each query names all the instances."""
    read: dict[str, LastRead] = {instance: LastRead() for instance in instances}
    for name in _GPU_IDENTITY:  # whole GPUs first: the last of them says when it was
        times = await _last_times(query_history, f"timestamp({name}{_matcher(instances)})", now)
        latest = {_key(labels): (labels, at) for labels, at in times}
        for one, _, at in _of_instances(read, latest.values()):
            one.read_at = max(one.read_at, at)
        for one, labels, at in _of_instances(read, latest.values()):
            if at > one.read_at - LOOK_BACK_SECONDS:
                one.samples.append((name, labels, 1.0))
    return read


def _of_instances(
    wanted: Mapping[str, T], found: Iterable[Found]
) -> Iterator[tuple[T, Mapping[str, str], float]]:
    """Leaves out instances that were not asked for: an engine may answer with anything."""
    for labels, value in found:
        one = wanted.get(labels.get("instance", ""))
        if one is not None:
            yield one, labels, value


def _matcher(instances: Iterable[str]) -> str:
    return "{instance=~" + quote(one_of(instances)) + "}"


async def _look_up_scrapes(
    query_history: HistoryQuery, only: str, now: float, seen: dict[str, LastSeen]
) -> None:
    up = f"up{only}"
    found = await query_history(f"max_over_time({up}[{_WINDOW}])", now)
    for one, _, best in _of_instances(seen, found):
        one.answered |= best == 1
    found = await _last_times(query_history, f"timestamp({up}) and {up} == 1", now)
    for one, _, at in _of_instances(seen, found):
        one.up_at = at if one.up_at is None else max(one.up_at, at)
    for window in _WINDOWS:
        found = await query_history(f"min_over_time(timestamp({up})[{window}])", now)
        for one, _, at in _of_instances(seen, found):
            one.first_try = at if one.first_try is None else min(one.first_try, at)
    found = await query_history(f"count_over_time(scrape_duration_seconds{only}[{_WINDOW}])", now)
    for one, _, _ in _of_instances(seen, found):
        one.was_scraped = True


async def _look_up_identity(
    query_history: HistoryQuery, only: str, now: float, seen: dict[str, LastSeen]
) -> None:
    for name in _IDENTITY:  # the agent first: its last sample says which GPUs were there to the end
        series = f"{name}{only}"
        found = list(await query_history(f"count_over_time({series}[{_WINDOW}])", now))
        times = {
            _key(labels): at for labels, at in await _last_times(query_history, f"timestamp({series})", now)
        }
        for one, labels, _ in _of_instances(seen, found):
            at = times.get(_key(labels), one.node_at)
            one.node_at = max(one.node_at, at)
            if at > one.node_at - LOOK_BACK_SECONDS:
                one.samples.append((name, labels, 1.0))
    for instance, one in seen.items():
        if one.node_at:
            one.samples.append((SNAPSHOT_METRIC, {"instance": instance}, one.node_at))


async def _last_times(query_history: HistoryQuery, times: str, now: float) -> list[Found]:
    """The latest of each series of timestamps."""
    found = []
    for window in _WINDOWS:
        found += list(await query_history(f"max_over_time(({times})[{window}])", now))
    return sorted(found, key=lambda one: one[1])


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in labels.items() if name != "__name__")
