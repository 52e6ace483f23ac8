"""Adds to each GPU process what the driver does not know: start time, owner, state and stable labels.

Input: the processes the driver lists; output: the same processes with these facts. A process that ended before
`/proc` was read keeps what the driver said about it and has no owner; one that is ending keeps what was known.
Simulated processes bring their owners and are never looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpuscope.agent.owners.attribution import ContainerInfos, StableLabels, needs_job, owner_of, program_of
from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.agent.owners.gpu_units import unit_of
from gpuscope.agent.owners.gpu_work import working
from gpuscope.agent.owners.node_jobs import NO_JOBS, NodeJobs
from gpuscope.agent.owners.pods import NO_PODS, Pods
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_lookup import FactsByProcess, KernelFacts, ProcessKey, keys_of
from gpuscope.agent.owners.process_work import ProcessWorkReader
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import (  # fmt: skip
    ABSENT,
    ACTIVE,
    IDLE,
    NO_WORK,
    UNKNOWN,
    Device,
    Maybe,
    Owner,
    Process,
    ProcessLabels,
    ProcessWork,
    Uuid,
)

# Active, idle or unknown: what a process does on a GPU, judged by when it last worked (`gpu_work`).
#
# A process is idle only if the driver was read all the time and reported no work. Where the driver does not
# report it, as under MIG, the state is unknown; so it is until a process has been watched for long enough.

MAX_GAP_SECONDS: Final = 180.0
"""After a longer time without a reading, it is not known what a process did meanwhile."""

ActivityKey = tuple[int, Maybe[float], Uuid]
"""PID, start time, and the GPU or instance."""


@dataclass(slots=True)
class _ObservedActivity:
    """Since when a process has been watched, and when it last worked; monotonic."""

    since: float
    active_at: float | None = None


class ProcessActivity(NamedTuple):
    state: str
    idle_seconds: Maybe[float] = ABSENT
    """Whole seconds without work: 0 while it works."""


class ActivityStates:
    """Call `state_of` once for every present process between `begin` and `end`; the others are forgotten."""

    def __init__(self, idle_after: float) -> None:
        self._idle_after = idle_after
        self._watched: dict[ActivityKey, _ObservedActivity] = {}
        self._seen: dict[ActivityKey, _ObservedActivity] = {}
        self._monotonic = 0.0

    def __len__(self) -> int:
        return len(self._watched)

    def begin(self, monotonic: float) -> None:
        if not 0 <= monotonic - self._monotonic <= MAX_GAP_SECONDS:
            self._watched = {}
        self._monotonic, self._seen = monotonic, {}

    def end(self) -> None:
        self._watched = self._seen

    def state_of(self, key: ActivityKey, works: Maybe[bool]) -> ProcessActivity:
        if works is ABSENT:
            return ProcessActivity(UNKNOWN)
        watched = self._watched.get(key)
        if watched is None:
            watched = _ObservedActivity(self._monotonic)
        self._seen[key] = watched
        if works:
            watched.active_at = self._monotonic
            return ProcessActivity(ACTIVE, 0.0)
        quiet = self._monotonic - (watched.since if watched.active_at is None else watched.active_at)
        if quiet >= self._idle_after:
            return ProcessActivity(IDLE, float(int(quiet)))
        if watched.active_at is None:  # watched for too short a time: it may have been active just before
            return ProcessActivity(UNKNOWN)
        return ProcessActivity(ACTIVE, float(int(quiet)))


class Names(Protocol):
    """Names of pods and containers, as Kubernetes and the container runtimes last gave them."""

    def pods(self) -> Pods: ...

    def containers(self, outside_pods: frozenset[str], in_pods: frozenset[str]) -> ContainerInfos:
        """By container id. The same object until something changes."""
        ...

    def is_pending(self, cgroup: CgroupFacts, since: float) -> bool:
        """Whether a lookup that may know this pod or container has not answered since then (monotonic)."""
        ...

    def jobs(self, without_job: Collection[ProcessKey]) -> NodeJobs:
        """Jobs on this node; those processes need one. The same object until something changes."""
        ...

    def job_is_pending(self, key: ProcessKey) -> bool:
        """Whether the job of such a process may still be learned."""
        ...


class Lookup(Protocol):
    """Facts about processes, found in another thread; those of a new process may come with a later call."""

    def facts_of(self, keys: Collection[ProcessKey]) -> FactsByProcess: ...

    def failures(self) -> Mapping[str, int]: ...


_NO_FACTS: Final = KernelFacts()
_NO_CONTAINERS: Final[ContainerInfos] = {}


class NoNames:
    """For a machine without Kubernetes and without container runtimes."""

    def pods(self) -> Pods:
        return NO_PODS

    def containers(self, outside_pods: frozenset[str], in_pods: frozenset[str]) -> ContainerInfos:
        return _NO_CONTAINERS

    def is_pending(self, cgroup: CgroupFacts, since: float) -> bool:
        return False

    def jobs(self, without_job: Collection[ProcessKey]) -> NodeJobs:
        return NO_JOBS

    def job_is_pending(self, key: ProcessKey) -> bool:
        return False


class ProcessEnricher:
    """Without `proc` or `lookup` only states are judged."""

    def __init__(
        self,
        idle_after: float = 60.0,
        proc: Proc | None = None,
        lookup: Lookup | None = None,
        names: Names | None = None,
        work: ProcessWorkReader | None = None,
    ) -> None:
        self._work = work
        self._states = ActivityStates(idle_after)
        self._labels = StableLabels()
        self._known: dict[int, _KnownProcess] = {}  # by PID, of the last cycle
        self._proc = proc
        self._lookup = lookup
        self._names = names or NoNames()
        self._owners: dict[ProcessKey, _CachedOwner] = {}
        self._failures: Counter[str] = Counter()
        self._pids_are_the_machines = proc is None or proc.sees_the_machine()

    def kept(self) -> int:
        """How many records it keeps about processes."""
        return len(self._known) + len(self._owners) + len(self._states) + len(self._work or ())

    def failures(self) -> Mapping[str, int]:
        """Lookups that failed since the start, by what could not be learned."""
        return {**self._failures, **(self._lookup.failures() if self._lookup else {})}

    def stop_waiting(self) -> None:
        self._labels.stop_waiting()

    def advance(
        self,
        processes: Sequence[Process],
        devices: Sequence[Device] = (),
        *,
        simulated: bool,
        now: float,
        monotonic: float,
    ) -> tuple[Process, ...]:
        """`devices` are the GPUs of the same cycle: not all work is reported by process."""
        looked_up = None if simulated or self._proc is None else self._identify(processes, self._proc)
        work = {} if looked_up is None else self._read_work(looked_up, monotonic)
        self._states.begin(monotonic)
        self._labels.begin(monotonic)
        works = working(processes, devices)
        done = []
        for number, process in enumerate(processes):
            known = looked_up[number] if looked_up is not None else None
            if known is None:
                known = _KnownProcess(process.started_at, process.command, process.owner)
            done_on_cpu = process.work if known.key is None else work.get(known.key, NO_WORK)
            unit = unit_of(process)
            key = (int(process.pid), known.started_at, unit)
            activity = self._states.state_of(key, works[number])
            labels = self._labels_of(process, unit, known)
            age = self._age_of(process, known.key, simulated=simulated, now=now)
            done.append(_enriched(process, known, done_on_cpu, activity, age, now, *labels))
        self._states.end()
        self._labels.end()
        return tuple(done)

    def _age_of(self, process: Process, key: ProcessKey | None, *, simulated: bool, now: float) -> Maybe[float]:
        if key is not None and self._proc is not None:
            return self._proc.age_seconds(key.start_ticks)
        # A simulated process starts and ages by the same clock.
        if not simulated or process.started_at is ABSENT:
            return ABSENT
        return float(max(0, int(now - process.started_at)))

    def _read_work(
        self, looked_up: Iterable[_KnownProcess | None], monotonic: float
    ) -> Mapping[ProcessKey, ProcessWork]:
        if self._work is None:
            return {}
        keys = dict.fromkeys(
            lookup.key for lookup in looked_up if lookup is not None and lookup.key is not None
        )
        return self._work.advance(keys, monotonic)

    def _labels_of(
        self, process: Process, unit: Uuid, known: _KnownProcess
    ) -> tuple[Maybe[ProcessLabels], bool]:
        """The labels of its series, and whether its owner was looked up."""
        key, facts = known.key, known.facts
        if key is None:  # nothing to look up, and nothing to recognise it by in the next cycle
            return ABSENT, True

        def is_pending(since: float) -> bool:
            if facts is None or self._names.is_pending(facts.cgroup, since):
                return True
            return needs_job(facts) and self._names.job_is_pending(key)

        labels = self._labels.labels_of(process, unit, key, known.command, known.owner, is_pending)
        return labels, labels is not ABSENT

    def _identify(self, processes: Sequence[Process], proc: Proc) -> list[_KnownProcess | None]:
        """What is known about each process; None for one that is gone or is not the driver's."""
        keys = keys_of({int(process.pid) for process in processes}, proc)
        facts: FactsByProcess = {}
        if self._lookup is not None:
            facts = self._lookup.facts_of([key for key, _ in keys.values()])
        pods = self._names.pods()
        containers = self._names.containers(*_container_ids(facts.values()))
        jobs = self._names.jobs([key for key, one in facts.items() if needs_job(one)])
        named = _Named(pods, containers, jobs)
        result: list[_KnownProcess | None] = []
        owners = {}
        for process in processes:
            key, comm = keys.get(int(process.pid), (None, ""))
            if key is None:
                self._failures["process"] += 1
                # The driver still lists a process that is ending: it must not lose its owner before it goes.
                result.append(self._known.get(int(process.pid)))
            elif not self._pids_are_the_machines and not is_same_program(process, comm):
                self._failures["pid_mismatch"] += 1
                result.append(None)
            else:
                answer = facts.get(key) if self._lookup is not None else _NO_FACTS
                own_facts = answer or _NO_FACTS
                owners[key] = cached = self._make_owner(key, own_facts, named)
                command = _command(process, comm, own_facts)
                result.append(_KnownProcess(self._started_at(key), command, cached.owner, key, answer))
        self._owners = owners
        self._known = {
            int(process.pid): one for process, one in zip(processes, result, strict=True) if one is not None
        }
        return result

    def _started_at(self, key: ProcessKey) -> Maybe[float]:
        try:
            return ABSENT if self._proc is None else self._proc.started_at(key.start_ticks)
        except (OSError, SourceError):
            self._failures["boot_time"] += 1
            return ABSENT

    def _make_owner(self, key: ProcessKey, facts: KernelFacts, named: _Named) -> _CachedOwner:
        cached = self._owners.get(key)
        if cached and cached.facts is facts and cached.named.is_same(named):
            return cached
        owner = owner_of(facts, named.pods, named.containers, named.jobs, key.pid)
        if cached and owner.pod is ABSENT and cached.owner.pod is not ABSENT:
            owner = cached.owner  # a running process stays in its pod while the kubelet does not answer
        # The same object while nothing changes: label sets are cached by it.
        return _CachedOwner(facts, named, cached.owner if cached and cached.owner == owner else owner)


class _Named(NamedTuple):
    """What the lookups know now; each part is the same object until it changes."""

    pods: Pods
    containers: ContainerInfos
    jobs: NodeJobs

    def is_same(self, other: _Named) -> bool:
        return self.pods is other.pods and self.containers is other.containers and self.jobs is other.jobs


@dataclass(frozen=True, slots=True)
class _CachedOwner:
    """An owner, and what it was made from."""

    facts: KernelFacts
    named: _Named
    owner: Owner


class _KnownProcess(NamedTuple):
    started_at: Maybe[float]
    command: Maybe[str]
    owner: Owner
    key: ProcessKey | None = None  # None: not in /proc, or simulated
    facts: KernelFacts | None = None  # None: the lookup has not answered yet


def _command(process: Process, comm: str, facts: KernelFacts) -> Maybe[str]:
    if facts.command_line is not ABSENT:
        return facts.command_line
    return process.command if process.command is not ABSENT else (comm or ABSENT)


def _enriched(
    process: Process,
    known: _KnownProcess,
    work: ProcessWork,
    activity: ProcessActivity,
    age_seconds: Maybe[float],
    now: float,
    labels: Maybe[ProcessLabels],
    looked_up: bool,
) -> Process:
    """`dataclasses.replace` costs five times as much, and this runs for every process every second."""
    idle = activity.idle_seconds
    return Process(
        pid=process.pid,
        gpu_uuid=process.gpu_uuid,
        instance_uuid=process.instance_uuid,
        kind=process.kind,
        command=known.command,
        driver_name=process.driver_name,
        started_at=known.started_at,
        memory_bytes=process.memory_bytes,
        sm_ratio=process.sm_ratio,
        memory_ratio=process.memory_ratio,
        encoder_ratio=process.encoder_ratio,
        decoder_ratio=process.decoder_ratio,
        jpeg_ratio=process.jpeg_ratio,
        ofa_ratio=process.ofa_ratio,
        work=work,
        owner=known.owner,
        program=_program(process, known),
        state=activity.state,
        age_seconds=age_seconds,
        idle_seconds=idle,
        idle_since=now - idle if activity.state == IDLE and idle is not ABSENT else ABSENT,
        labels=labels,
        looked_up=looked_up,
    )


def _program(process: Process, known: _KnownProcess) -> str:
    if process.program is not ABSENT:  # a simulated process brings it
        return process.program
    launcher = ABSENT if known.facts is None else known.facts.launcher
    return program_of(known.owner, launcher, int(process.pid))


def _container_ids(facts: Iterable[KernelFacts]) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of containers outside pods, and in pods: Docker knows no useful name for the latter."""
    outside: set[str] = set()
    in_pods: set[str] = set()
    for fact in facts:
        if fact.cgroup.container_id is not ABSENT:
            (outside if fact.cgroup.pod_uid is ABSENT else in_pods).add(fact.cgroup.container_id)
    return frozenset(outside), frozenset(in_pods)


def is_same_program(process: Process, comm: str) -> bool:
    """Whether `/proc`'s name fits the driver's: in another PID namespace the PID is another process'."""
    if process.command is ABSENT:
        return False
    return process.command[:15] == comm[:15]
