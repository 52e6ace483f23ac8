"""Since when each process is idle: the last time it worked, not the start of the process or of the agent.

An agent that restarts knows only the time since its own start; this memory, and the history at the server's
start, know more. Where the driver reports no activity per process (MIG), the SM activity of the GPU or the
instance decides: while that is below one percent, none of its processes works. The facts are changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuscope.health.facts import FleetFacts, GpuFacts, ProcessFacts
from gpuscope.health.thresholds import MAX_GAP_SECONDS, UNEVEN_SECONDS, WORKING_RATIO
from gpuscope.health.use_checks import IDLE_SINCE
from gpuscope.readings import ABSENT

ProcessKey = tuple[str, str, str]
"""Instance, UUID and PID."""
_ACTIVE = "gpuscope_process_active"
_START = "gpuscope_process_start_time_seconds"


@dataclass(slots=True)
class _ProcessIdleness:
    started_at: float | None
    worked_at: float | None = None
    """The last time we saw it work; None: never."""
    idle_since: float | None = None
    is_looked_up: bool = False
    is_inferred: bool = False
    """Its activity is that of its GPU or instance."""


class IdleTimes:
    def __init__(self) -> None:
        self._watched: dict[str, dict[ProcessKey, _ProcessIdleness]] = {}  # by instance
        self._updated_at: float | None = None

    def begin(self, now: float) -> bool:
        """Begins an update of the fleet. True if all nodes must be applied again: something may have happened
        unseen since the last update."""
        is_gap = self._updated_at is None or not 0 <= now - self._updated_at <= MAX_GAP_SECONDS
        if is_gap:
            self._watched = {}
        self._updated_at = now
        return is_gap

    def apply(self, fleet: FleetFacts) -> None:
        """Completes `gpuscope_process_active` and `gpuscope_process_idle_since_seconds` of every process of
        these nodes."""
        for instance, node in fleet.nodes.items():
            known = self._watched.get(instance, {})
            seen: dict[ProcessKey, _ProcessIdleness] = {}
            for gpu in node.gpus:
                if gpu.processes:
                    infer_activity = all(process.is_active is None for process in gpu.processes)
                    for process in gpu.processes:
                        key = instance, gpu.labels["uuid"], process.labels.get("pid", "")
                        watched = seen[key] = _watch(known.get(key), process)
                        watched.is_inferred = infer_activity
                        if infer_activity:
                            _infer(gpu, process, watched, fleet.now)
                        _keep_earliest(process, watched, fleet.now)
            self._watched[instance] = seen

    def forget(self, instance: str) -> None:
        """A node that has left."""
        self._watched.pop(instance, None)

    def unknown(self) -> dict[ProcessKey, bool]:
        """Idle processes that we never saw at work, and whether their activity is that of their GPU.

        The history may know when they last worked."""
        return {
            key: one.is_inferred
            for watched in list(self._watched.values())
            for key, one in watched.items()
            if one.idle_since is not None and one.worked_at is None and not one.is_looked_up
        }

    def learn(self, last_worked: Mapping[ProcessKey, float], asked: Iterable[ProcessKey]) -> set[str]:
        """What the history says; a process without an entry stays as it is. The instances of nodes that must
        be applied again."""
        changed = set()
        for key in asked:
            watched, at = self._watched.get(key[0], {}).get(key), last_worked.get(key)
            if watched is None:
                continue
            watched.is_looked_up = True
            if at is not None and watched.idle_since is not None:
                earliest = at if watched.started_at is None else max(at, watched.started_at)
                watched.idle_since = min(watched.idle_since, earliest)
                changed.add(key[0])
        return changed


def _watch(known: _ProcessIdleness | None, process: ProcessFacts) -> _ProcessIdleness:
    started_at = process.plain.get(_START)
    # A PID is used again by another process.
    if known is None or (started_at is not None and known.started_at not in (None, started_at)):
        return _ProcessIdleness(started_at)
    return known


def _infer(gpu: GpuFacts, process: ProcessFacts, watched: _ProcessIdleness, now: float) -> None:
    busy = gpu.busy_ratio
    if busy is ABSENT:
        return
    if busy >= WORKING_RATIO:
        watched.worked_at, watched.idle_since = now, None
        if len(gpu.processes) == 1:  # of several, one works; which one is not known
            process.plain[_ACTIVE] = 1.0
    elif watched.worked_at is not None and now - watched.worked_at < UNEVEN_SECONDS:
        if len(gpu.processes) == 1:
            process.plain[_ACTIVE] = 1.0
    else:
        process.plain[_ACTIVE] = 0.0
        since = watched.worked_at if watched.worked_at is not None else watched.idle_since
        process.plain[IDLE_SINCE] = now if since is None else since


def _keep_earliest(process: ProcessFacts, watched: _ProcessIdleness, now: float) -> None:
    if process.is_active:
        if not watched.is_inferred:
            watched.worked_at = now
        watched.idle_since, watched.is_looked_up = None, True
        return
    reported = process.plain.get(IDLE_SINCE)
    if reported is None:
        return  # not known at the moment: an agent that just started
    if watched.idle_since is None or reported < watched.idle_since:
        watched.idle_since = reported
    process.plain[IDLE_SINCE] = watched.idle_since
