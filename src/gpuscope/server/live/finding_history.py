"""What the history knows of findings, in PromQL, from the embedded store or another engine.

Output: when an idle process last worked, when a condition began, who was on a GPU that is lost. The answers
reach back one day. A subquery with a step of five minutes over windows of five minutes misses no activity; its
result is the end of the window, so an idle time is never longer than the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from gpuscope.go_quote import quote
from gpuscope.health.check import Subject
from gpuscope.health.checks import CHECKS
from gpuscope.health.facts import ProcessFacts
from gpuscope.health.finding import Finding, FindingOwner
from gpuscope.health.finding_details import one_of
from gpuscope.health.finding_owners import main_owner
from gpuscope.health.idle_times import ProcessKey
from gpuscope.health.thresholds import WORKING_RATIO
from gpuscope.server.live.gone_history import HistoryQuery

MAX_UUIDS_PER_QUERY: Final = 100
_COARSE: Final = "1d:5m"
_FINE: Final = "10m:10s"
_BY_PROCESS: Final = "by (instance, uuid, pid)"
T = TypeVar("T")


async def last_worked(
    query_history: HistoryQuery, wanted: Mapping[ProcessKey, bool], now: float
) -> dict[ProcessKey, float]:
    """When each process last worked; of one that never did, when it was first seen."""
    found: dict[ProcessKey, float] = {}
    for uuids in _batches(sorted({uuid for _, uuid, _ in wanted})):
        only = _matcher(uuids)
        for window in (_FINE, _COARSE):
            seen = f"min_over_time(timestamp(gpuscope_process_memory_bytes{only})[{window}])"
            for labels, at in await query_history(f"min {_BY_PROCESS} ({seen})", now):
                found[_process(labels)] = min(at, found.get(_process(labels), at))
        for labels, at in await query_history(
            _last_time(_BY_PROCESS, f"gpuscope_process_active{only}", "== 1"), now
        ):
            found[_process(labels)] = at
        if any(wanted.values()):
            working = _last_time("by (instance, uuid)", f"gpuscope_gpu_sm_active_ratio{only}", _WORKS)
            by_gpu = {_gpu(labels): at for labels, at in await query_history(working, now)}
            for key, is_inferred in wanted.items():
                if is_inferred and key[:2] in by_gpu:
                    found[key] = by_gpu[key[:2]]
    return found


_WORKS: Final = f">= {WORKING_RATIO:g}"


def _last_time(by: str, series: str, condition: str) -> str:
    within = f"timestamp(max {by} (max_over_time({series}[5m])) {condition})"
    return f"max_over_time(({within})[{_COARSE}])"


async def beginnings(query_history: HistoryQuery, findings: Sequence[Finding], now: float) -> dict[str, float]:
    """When each finding began, by its id: the last time its condition did not hold."""
    by_kind: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_kind[finding.kind].append(finding)
    began: dict[str, float] = {}
    for kind, found in by_kind.items():
        for some in _batches(found):
            began |= await _beginnings_of_kind(query_history, kind, some, now)
    return began


async def _beginnings_of_kind(
    query_history: HistoryQuery, kind: str, findings: Sequence[Finding], now: float
) -> dict[str, float]:
    check = CHECKS[kind]
    instances = sorted({finding.instance for finding in findings})
    only = f"instance=~{quote(one_of(instances))}"
    if check.subject is Subject.NODE:
        labels, subject = "instance", f"gpuscope_agent_info{{{only}}}"
    else:
        uuids = sorted({uuid for finding in findings for uuid in finding.uuids})
        labels = "instance, uuid"
        subject = f'{{__name__=~"gpuscope_(gpu|mig)_info",{only},uuid=~{quote(one_of(uuids))}}}'
    healthy = f"timestamp({subject}) unless on ({labels}) ({check.promql})"
    names = labels.split(", ")
    # As far as the history reaches; a coarse step may hit no sample of a history of some minutes.
    first_seen = f"min_over_time(timestamp({subject})"
    times = await _times(query_history, f"{first_seen}[{_FINE}])", names, now, min)
    for key, at in (await _times(query_history, f"{first_seen}[{_COARSE}])", names, now, min)).items():
        times[key] = min(at, times.get(key, at))
    for window in (_COARSE, _FINE):  # the later of the two knows better
        times |= await _times(query_history, f"max_over_time(({healthy})[{window}])", names, now, max)
    return {
        # Without any sample in the history it is known since now.
        finding.id: min((times[key] for key in _subjects(finding, check.subject) if key in times), default=now)
        for finding in findings
    }


async def _times(
    query_history: HistoryQuery,
    query: str,
    names: Sequence[str],
    now: float,
    choose: Callable[[float, float], float],
) -> dict[tuple[str, ...], float]:
    """By subject; of several series of one subject, the earliest or the latest."""
    times: dict[tuple[str, ...], float] = {}
    for labels, at in await query_history(query, now):
        key = tuple(labels.get(name, "") for name in names)
        times[key] = choose(at, times.get(key, at))
    return times


def _subjects(finding: Finding, subject: Subject) -> Iterator[tuple[str, ...]]:
    if subject is Subject.NODE:
        yield (finding.instance,)
    else:
        yield from ((finding.instance, uuid) for uuid in finding.uuids)


async def owner_at(query_history: HistoryQuery, instance: str, uuid: str, at: float) -> FindingOwner | None:
    """Who was on a GPU at a time: the owner of the process with the most memory."""
    only = f"instance={quote(instance)},uuid={quote(uuid)}"
    found = await query_history(f"last_over_time(gpuscope_process_memory_bytes{{{only}}}[2m])", at)
    return main_owner(
        [
            ProcessFacts(labels=dict(labels), plain={"gpuscope_process_memory_bytes": value})
            for labels, value in found
        ]
    )


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), MAX_UUIDS_PER_QUERY):
        yield items[start : start + MAX_UUIDS_PER_QUERY]


def _matcher(uuids: Iterable[str]) -> str:
    return "{uuid=~" + quote(one_of(uuids)) + "}"


def _process(labels: Mapping[str, str]) -> ProcessKey:
    return labels.get("instance", ""), labels.get("uuid", ""), labels.get("pid", "")


def _gpu(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("instance", ""), labels.get("uuid", "")
