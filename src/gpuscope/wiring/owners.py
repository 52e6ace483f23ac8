"""Builds what finds owners: the lookup of processes, and a worker for each outside thing that can hang."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuscope.clock import Clock
from gpuscope.collect.allocations import Allocations, Claims
from gpuscope.collect.collector import Planned
from gpuscope.collect.owner_counters import OwnerCounters
from gpuscope.collect.ownership import OwnershipBook
from gpuscope.collect.runner import Runner
from gpuscope.collect.sessions import WAIT_SECONDS, Sessions
from gpuscope.owners.attribute import ContainerName, Containers
from gpuscope.owners.cgroup import Place
from gpuscope.owners.lookup import ProcessLookup, lookup_spec
from gpuscope.owners.pods import NO_PODS, Pods
from gpuscope.owners.proc import Proc
from gpuscope.owners.users import UserBook
from gpuscope.readings import ABSENT
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec

AskContainers = Callable[[frozenset[str], frozenset[str]], Containers]
_UNNAMED = ContainerName()


def build_ownership(
    settings: Settings, clock: Clock, environment: Mapping[str, str] = os.environ
) -> tuple[OwnershipBook, list[Planned]]:
    """What joins processes and owners, and the workers it needs: only for what this machine has."""
    proc = Proc(settings.path_procfs)
    lookup = ProcessLookup(proc, UserBook(settings.path_rootfs), settings.full_commands)
    runner = Runner(lookup_spec(lookup), settings, clock)

    def poke() -> None:
        if runner.start_cycle_if_due():
            runner.wait(WAIT_SECONDS)

    outside = _outside(settings, environment)
    allocations = Allocations(outside.claims, outside.pods) if outside.claims else None
    sessions = Sessions(settings.idle_after, proc, lookup, poke, outside)
    counters = OwnerCounters(longest_gap_seconds=max(30.0, 10 * settings.interval))
    workers = [runner, *(Runner(spec, settings, clock) for spec in outside.specs)]
    return OwnershipBook(sessions, counters, allocations), [Planned(worker) for worker in workers]


def build_demo_allocations(settings: Settings, clock: Clock) -> tuple[Allocations | None, list[Planned]]:
    """Who simulated GPUs were given to, where a kubelet or a folder of jobs speaks of them.

    Their processes have simulated owners, so nothing else is asked; and in a pod without the kubelet's socket
    nothing at all.
    """
    outside = _outside(replace(settings, container_sockets=(), cri_sockets=()), {})
    if not outside.claims:
        return None, []
    workers = [Planned(Runner(spec, settings, clock)) for spec in outside.specs]
    return Allocations(outside.claims, outside.pods), workers


def on_kubernetes(settings: Settings, environment: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environment or Path(settings.kubelet_socket).parent.is_dir()


@dataclass(slots=True)
class _Outside:
    """Names and claims, as far as there is somebody to ask; nothing where there is not."""

    ask_pods: Callable[[], Pods] = lambda: NO_PODS
    ask_containers: list[AskContainers] = field(default_factory=list)
    claims: list[Callable[[], Claims]] = field(default_factory=list)
    specs: list[SourceSpec] = field(default_factory=list)
    pending: list[Callable[[Place, float], bool]] = field(default_factory=list)
    _told: list[Containers] = field(default_factory=list)
    _names: Containers = field(default_factory=dict)

    def pods(self) -> Pods:
        return self.ask_pods()

    def is_pending(self, place: Place, since: float) -> bool:
        return any(one(place, since) for one in self.pending)

    def containers(self, wanted: frozenset[str], in_pods: frozenset[str]) -> Containers:
        """The same object until a runtime says something new: owners are made again when it is another."""
        told = [ask(wanted, in_pods) for ask in self.ask_containers]
        if [id(one) for one in told] != [id(one) for one in self._told]:
            self._told = told
            # A runtime that does not know a container must not hide the name another has for it.
            self._names = {key: name for names in told for key, name in names.items() if name != _UNNAMED}
        return self._names


def is_unanswered(place: Place, known: Containers) -> bool:
    """Whether a runtime has still to say whether it knows the container."""
    return place.container_id is not ABSENT and place.container_id not in known


def _outside(settings: Settings, environment: Mapping[str, str]) -> _Outside:
    # Imported where they are used: an agent on a plain machine never loads them.
    outside = _Outside()
    if on_kubernetes(settings, environment):
        from gpuscope.owners.kubelet import build_kubelet, kubelet_spec
        from gpuscope.owners.pod_book import build_pod_book, pod_book_spec

        kubelet, book = build_kubelet(settings), build_pod_book(settings)
        outside.ask_pods = book.pods
        outside.claims.append(kubelet.claims)
        outside.pending.append(book.is_pending)
        outside.specs += [kubelet_spec(kubelet), pod_book_spec(book)]
    if settings.container_sockets:
        from gpuscope.owners.containers import ContainerNames, containers_spec

        containers = ContainerNames(settings.container_sockets)
        outside.ask_containers.append(lambda wanted, in_pods: containers.want(wanted))
        outside.pending.append(
            lambda place, since: place.pod_uid is ABSENT and is_unanswered(place, containers.known)
        )
        outside.specs.append(containers_spec(containers))
    if settings.cri_sockets:
        from gpuscope.owners.cri import CriNames, cri_spec

        cri = CriNames(settings.cri_sockets, settings.path_rootfs)
        # The agent's own pod shows without its UID: those are asked for as well.
        outside.ask_containers.append(lambda wanted, in_pods: cri.want(wanted | in_pods))
        outside.pending.append(lambda place, since: is_unanswered(place, cri.known))
        outside.specs.append(cri_spec(cri))
    if settings.job_map_dir:
        from gpuscope.owners.job_files import JobFiles, job_files_spec

        files = JobFiles(settings.job_map_dir)
        outside.claims.append(lambda: files.claims)
        outside.specs.append(job_files_spec(files))
    return outside
