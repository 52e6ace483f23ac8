"""Processes become sessions: since when, whose, and whether they do anything.

Goes in what the driver lists; comes out the same processes with start time, owner and state. A process that
ended before `/proc` could be asked keeps what the driver said of it and has no owner. Simulated processes bring
their owners along and are never looked up. Idle is a finding of our own: the driver was asked all the while and
saw no SM activity; where it cannot be asked, as under MIG, the state is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from gpuscope.collect.owner_places import place_of
from gpuscope.errors import SourceError
from gpuscope.owners.attribute import Containers, owner_of
from gpuscope.owners.lookup import Found, ProcessKey, ProcessLookup, keys_of
from gpuscope.owners.pods import NO_PODS, Pods
from gpuscope.owners.proc import Proc
from gpuscope.readings import ABSENT, ACTIVE, IDLE, UNKNOWN, Maybe, Owner, Process, Uuid

WAIT_SECONDS: Final = 0.25  # for a new process' owner; longer only a hanging user database takes


class Names(Protocol):
    """Pods and containers as last heard from Kubernetes and the container runtimes."""

    def pods(self) -> Pods: ...

    def containers(self, wanted: frozenset[str]) -> Containers: ...


_NOT_FOUND: Final = Found()
_NO_CONTAINERS: Final[Containers] = {}


class NoNames:
    def pods(self) -> Pods:
        return NO_PODS

    def containers(self, wanted: frozenset[str]) -> Containers:
        return _NO_CONTAINERS


@dataclass(slots=True)
class _Watched:
    """How long one session has been watched, and when it last did something; monotonic."""

    since: float
    active_at: float | None = None


SessionKey = tuple[int, Maybe[float], Uuid]


class StateBook:
    """Active, idle or unknown: remembers when each session last used the SMs."""

    def __init__(self, idle_after: float) -> None:
        self._idle_after = idle_after
        self._watched: dict[SessionKey, _Watched] = {}

    def advance(self, processes: Sequence[Process], now: float, monotonic: float) -> list[Process]:
        watched: dict[SessionKey, _Watched] = {}
        done = []
        for process in processes:
            key = (int(process.pid), process.started_at, place_of(process))
            if process.sm_ratio is ABSENT:
                done.append(process)
                continue
            session = self._watched.get(key) or _Watched(since=monotonic)
            watched[key] = session
            if process.sm_ratio > 0:
                session.active_at = monotonic
            done.append(self._judge(process, session, now, monotonic))
        self._watched = watched  # whoever is not there any more is forgotten
        return done

    def _judge(self, process: Process, session: _Watched, now: float, monotonic: float) -> Process:
        quiet_since = session.since if session.active_at is None else session.active_at
        quiet = monotonic - quiet_since
        if quiet >= self._idle_after and not (process.sm_ratio is not ABSENT and process.sm_ratio > 0):
            return replace(process, state=IDLE, idle_since=now - quiet)
        # Seen for too short a time and never at work: it may have worked just before we came.
        return replace(process, state=UNKNOWN if session.active_at is None else ACTIVE)


class Sessions:
    """`poke` wakes the lookup's worker and waits for it a little."""

    def __init__(
        self,
        idle_after: float = 60.0,
        proc: Proc | None = None,
        lookup: ProcessLookup | None = None,
        poke: Callable[[], object] = lambda: None,
        names: Names | None = None,
    ) -> None:
        self._states = StateBook(idle_after)
        self._proc = proc
        self._lookup = lookup
        self._poke = poke
        self._names = names or NoNames()
        self._owners: dict[ProcessKey, _Made] = {}
        self._failures: Counter[str] = Counter()
        self._trusted = proc is None or proc.sees_the_machine()

    def failures(self) -> Mapping[str, int]:
        """Lookups that failed since the start, by what could not be known."""
        return {**self._failures, **(self._lookup.failures if self._lookup else {})}

    def advance(
        self, processes: Sequence[Process], *, simulated: bool, now: float, monotonic: float
    ) -> tuple[Process, ...]:
        if not simulated and self._proc is not None:
            processes = self._identify(processes, self._proc)
        return tuple(self._states.advance(processes, now, monotonic))

    def _identify(self, processes: Sequence[Process], proc: Proc) -> list[Process]:
        keys = keys_of({int(process.pid) for process in processes}, proc)
        if self._lookup is not None and self._lookup.want([key for key, _ in keys.values()]):
            self._poke()
        known: Mapping[ProcessKey, Found] = self._lookup.known if self._lookup else {}
        pods = self._names.pods()
        containers = self._names.containers(_container_ids(known.values()))
        done, owners = [], {}
        for process in processes:
            key, comm = keys.get(int(process.pid), (None, ""))
            if key is None:
                self._failures["process"] += 1
                done.append(process)
                continue
            if not self._trusted and not same_program(process, comm):
                self._failures["pid_mismatch"] += 1
                done.append(process)
                continue
            found = known.get(key, _NOT_FOUND)
            owners[key] = made = self._make_owner(key, found, pods, containers)
            done.append(_with_facts(process, self._started_at(key), comm, found, made.owner))
        self._owners = owners
        return done

    def _started_at(self, key: ProcessKey) -> Maybe[float]:
        try:
            return ABSENT if self._proc is None else self._proc.started_at(key.start_ticks)
        except (OSError, SourceError):
            self._failures["boot_time"] += 1
            return ABSENT

    def _make_owner(self, key: ProcessKey, found: Found, pods: Pods, containers: Containers) -> _Made:
        known = self._owners.get(key)
        if known and known.found is found and known.pods is pods and known.containers is containers:
            return known
        owner = owner_of(found, pods, containers)
        # The same object as long as it says the same: labels are kept by it.
        return _Made(found, pods, containers, known.owner if known and known.owner == owner else owner)


@dataclass(frozen=True, slots=True)
class _Made:
    """An owner, and what it was made of."""

    found: Found
    pods: Pods
    containers: Containers
    owner: Owner


def _with_facts(process: Process, started_at: Maybe[float], comm: str, found: Found, owner: Owner) -> Process:
    command = process.command if process.command is not ABSENT else (comm or ABSENT)
    if found.command_line is not ABSENT:
        command = found.command_line
    return replace(process, started_at=started_at, command=command, owner=owner)


def _container_ids(found: Iterable[Found]) -> frozenset[str]:
    return frozenset(
        one.place.container_id
        for one in found
        if one.place.container_id is not ABSENT and one.place.pod_uid is ABSENT
    )


def same_program(process: Process, comm: str) -> bool:
    """Whether `/proc`'s name fits the driver's: in a PID namespace of our own the number may be another's."""
    if process.command is ABSENT:
        return False
    return process.command[:15] == comm[:15]
