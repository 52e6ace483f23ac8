"""Processes become sessions: since when, whose, and whether they do anything.

Goes in what the driver lists; comes out the same processes with start time, owner and state. A process that
ended before `/proc` could be asked keeps what the driver said of it and has no owner. Simulated processes bring
their owners along and are never looked up. A process that is just ending keeps what was known of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpuscope.collect.owner_places import place_of
from gpuscope.collect.process_labels import LabelKeeper
from gpuscope.collect.session_states import StateBook
from gpuscope.errors import SourceError
from gpuscope.owners.attribute import Containers, owner_of
from gpuscope.owners.cgroup import Place
from gpuscope.owners.lookup import Found, ProcessKey, ProcessLookup, keys_of
from gpuscope.owners.pods import NO_PODS, Pods
from gpuscope.owners.proc import Proc
from gpuscope.readings import ABSENT, Maybe, Owner, Process, ProcessLabels, Uuid

WAIT_SECONDS: Final = 0.25  # for a new process' owner; longer only a hanging user database takes


class Names(Protocol):
    """Pods and containers as last heard from Kubernetes and the container runtimes."""

    def pods(self) -> Pods: ...

    def containers(self, wanted: frozenset[str], in_pods: frozenset[str]) -> Containers:
        """Of those outside pods and of those in them, by container id."""
        ...

    def is_pending(self, place: Place, since: float) -> bool:
        """Whether somebody who may know this place has not answered since then (monotonic)."""
        ...


_NOT_FOUND: Final = Found()
_NO_CONTAINERS: Final[Containers] = {}


class NoNames:
    def pods(self) -> Pods:
        return NO_PODS

    def containers(self, wanted: frozenset[str], in_pods: frozenset[str]) -> Containers:
        return _NO_CONTAINERS

    def is_pending(self, place: Place, since: float) -> bool:
        return False


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
        self._labels = LabelKeeper()
        self._facts: dict[int, _Facts] = {}  # by PID, of the last cycle
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

    def stop_waiting(self) -> None:
        self._labels.stop_waiting()

    def advance(
        self, processes: Sequence[Process], *, simulated: bool, now: float, monotonic: float
    ) -> tuple[Process, ...]:
        facts = None if simulated or self._proc is None else self._identify(processes, self._proc)
        self._states.begin(now, monotonic)
        self._labels.begin(monotonic)
        done = []
        for number, process in enumerate(processes):
            known = facts[number] if facts is not None else None
            if known is None:
                known = _Facts(process.started_at, process.command, process.owner)
            place = place_of(process)
            key = (int(process.pid), known.started_at, place)
            state, idle_since = self._states.judge(key, process.sm_ratio)
            done.append(_session(process, known, state, idle_since, *self._labelled(process, place, known)))
        self._states.end()
        self._labels.end()
        return tuple(done)

    def _labelled(self, process: Process, place: Uuid, facts: _Facts) -> tuple[Maybe[ProcessLabels], bool]:
        """The labels of its series, and whether it may have any yet."""
        key, found = facts.key, facts.found
        if key is None:  # nothing to look up, and nothing to know it by in the next cycle
            return ABSENT, True

        def is_pending(since: float) -> bool:
            return found is None or self._names.is_pending(found.place, since)

        labels = self._labels.labels_of(process, place, key, facts.command, facts.owner, is_pending)
        return labels, labels is not ABSENT

    def _identify(self, processes: Sequence[Process], proc: Proc) -> list[_Facts | None]:
        """What could be learned of each process; None of one that is gone or another than the driver's."""
        keys = keys_of({int(process.pid) for process in processes}, proc)
        if self._lookup is not None and self._lookup.want([key for key, _ in keys.values()]):
            self._poke()
        known: Mapping[ProcessKey, Found] = self._lookup.known if self._lookup else {}
        pods = self._names.pods()
        containers = self._names.containers(*_container_ids(known.values()))
        facts: list[_Facts | None] = []
        owners = {}
        for process in processes:
            key, comm = keys.get(int(process.pid), (None, ""))
            if key is None:
                self._failures["process"] += 1
                # The driver still lists one that is ending: it must not turn into somebody without an owner.
                facts.append(self._facts.get(int(process.pid)))
            elif not self._trusted and not same_program(process, comm):
                self._failures["pid_mismatch"] += 1
                facts.append(None)
            else:
                answer = known.get(key) if self._lookup is not None else _NOT_FOUND
                found = answer or _NOT_FOUND
                owners[key] = made = self._make_owner(key, found, pods, containers)
                command = _command(process, comm, found)
                facts.append(_Facts(self._started_at(key), command, made.owner, key, answer))
        self._owners = owners
        self._facts = {
            int(process.pid): one for process, one in zip(processes, facts, strict=True) if one is not None
        }
        return facts

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
        if known and owner.pod is ABSENT and known.owner.pod is not ABSENT:
            owner = known.owner  # a running process stays in its pod while the kubelet does not answer
        # The same object as long as it says the same: labels are kept by it.
        return _Made(found, pods, containers, known.owner if known and known.owner == owner else owner)


@dataclass(frozen=True, slots=True)
class _Made:
    """An owner, and what it was made of."""

    found: Found
    pods: Pods
    containers: Containers
    owner: Owner


class _Facts(NamedTuple):
    started_at: Maybe[float]
    command: Maybe[str]
    owner: Owner
    key: ProcessKey | None = None  # None: not in /proc, or simulated
    found: Found | None = None  # None: the lookup has not answered yet


def _command(process: Process, comm: str, found: Found) -> Maybe[str]:
    if found.command_line is not ABSENT:
        return found.command_line
    return process.command if process.command is not ABSENT else (comm or ABSENT)


def _session(
    process: Process,
    facts: _Facts,
    state: str,
    idle_since: Maybe[float],
    labels: Maybe[ProcessLabels],
    looked_up: bool,
) -> Process:
    """`dataclasses.replace`, at a fifth of its cost: this is done for every process every second."""
    return Process(
        pid=process.pid,
        gpu_uuid=process.gpu_uuid,
        instance_uuid=process.instance_uuid,
        kind=process.kind,
        command=facts.command,
        driver_name=process.driver_name,
        started_at=facts.started_at,
        memory_bytes=process.memory_bytes,
        sm_ratio=process.sm_ratio,
        memory_ratio=process.memory_ratio,
        encoder_ratio=process.encoder_ratio,
        decoder_ratio=process.decoder_ratio,
        owner=facts.owner,
        state=state,
        idle_since=idle_since,
        labels=labels,
        looked_up=looked_up,
    )


def _container_ids(found: Iterable[Found]) -> tuple[frozenset[str], frozenset[str]]:
    """Outside pods, and in them: Docker has nothing good to say of the latter."""
    alone: set[str] = set()
    in_pods: set[str] = set()
    for one in found:
        if one.place.container_id is not ABSENT:
            (alone if one.place.pod_uid is ABSENT else in_pods).add(one.place.container_id)
    return frozenset(alone), frozenset(in_pods)


def same_program(process: Process, comm: str) -> bool:
    """Whether `/proc`'s name fits the driver's: in a PID namespace of our own the number may be another's."""
    if process.command is ABSENT:
        return False
    return process.command[:15] == comm[:15]
