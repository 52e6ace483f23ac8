"""Source `nccl-ras`: which ranks of the NCCL jobs on this machine are missing or behind, from NCCL itself.

NCCL since 2.24 answers on a local port for the whole job. The source looks at the GPU processes of the last
snapshot, asks each service it finds, and keeps asking only if this node has the job's lowest rank: one agent
asks per job, at most every 15 seconds, without talking to the others. A service that does not answer as NCCL
does is named in the log once and asked again later.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.agent.owners.proc import Proc
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Reading, Snapshot, Uuid
from gpuscope.model.readings.snapshot import CollectiveJob, CollectiveReading
from gpuscope.model.source import SourceSpec, Tier
from gpuscope.vendors.nvidia.nccl_ras.endpoints import EndpointFinder, RasEndpoint
from gpuscope.vendors.nvidia.nccl_ras.job_watch import JobWatch, ThisNode, is_followed_here, job_name
from gpuscope.vendors.nvidia.nccl_ras.ras_protocol import ReplyTooLarge, ask_status, connect, own_network
from gpuscope.vendors.nvidia.nccl_ras.ras_status import RasStatus, parse_json, parse_text

log = logging.getLogger("gpuscope.source")

# 17, not 15: with the rare requests of the other nodes it is still at most one in 15 seconds for a job.
ASKED_EVERY_SECONDS: Final = 17.0
OTHERS_ASK_SECONDS: Final = 600.0  # a node that does not follow the job, in case the one that does is gone
OTHERS_ASK_SECONDS_PER_NODE: Final = 150.0
FAILED_AGAIN_SECONDS: Final = 600.0
KEPT_SECONDS: Final = 60.0  # how long a job that is followed counts without a new answer
MAX_CPU_SHARE: Final = 0.001
MAX_JOBS: Final = 16
COMPUTING: Final = ("C", "M")  # kinds of processes: CUDA, and CUDA through MPS

Ask = Callable[[RasEndpoint, bool], bytes]
"""The status document of an endpoint, as JSON if it is wanted."""


@dataclass(slots=True)
class _Service:
    """An endpoint, and when it is asked next."""

    endpoint: RasEndpoint
    log: EpisodeLog
    pids: tuple[int, ...] = ()
    due: float = 0.0
    wait: float = ASKED_EVERY_SECONDS  # between the last answer and the next question
    unfollowed: int = 0  # answers in a row that were of jobs which other nodes follow
    failures: int = 0  # in a row
    json: bool = True
    jobs: dict[str, JobWatch] = field(default_factory=dict)


class NcclRas:
    def __init__(self, proc: Proc, ask: Ask, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._finder = EndpointFinder(proc)
        self._ask = ask
        self._node = node
        self._clock = clock
        self._gpus: dict[int, list[Uuid]] = {}
        self._services: dict[tuple[int, int, int], _Service] = {}
        self._requests: Counter[str] = Counter({"answered": 0, "failed": 0})

    def observe(self, snapshot: Snapshot) -> None:
        """Takes the processes that compute on GPUs."""
        index = {device.uuid: device.index for device in snapshot.devices}
        gpus: dict[int, set[Uuid]] = {}
        for process in () if snapshot.processes is ABSENT or snapshot.simulated else snapshot.processes:
            if process.gpu_uuid in index and process.kind in COMPUTING:
                gpus.setdefault(int(process.pid), set()).add(process.gpu_uuid)
        self._gpus = {pid: sorted(uuids, key=lambda uuid: index[uuid]) for pid, uuids in gpus.items()}

    def read(self, due: frozenset[Tier]) -> Reading:
        self._find_services()
        for service in self._services.values():
            if self._clock() >= service.due:
                self._ask_service(service)
        jobs = [job for service in self._services.values() for job in self._jobs(service)]
        return Reading(
            collectives=CollectiveReading(jobs=tuple(jobs[:MAX_JOBS]), requests=dict(self._requests))
        )

    def close(self) -> None:
        pass

    def _find_services(self) -> None:
        services: dict[tuple[int, int, int], _Service] = {}
        for endpoint in self._finder.find(self._gpus):
            service = self._services.get(endpoint.key) or _Service(endpoint, self._log_of(endpoint))
            service.endpoint = endpoint
            pids = tuple(process.pid for process in endpoint.processes)
            if set(pids) - set(service.pids):  # somebody came: perhaps another job
                service.due, service.unfollowed = min(service.due, self._clock()), 0
            service.pids = pids
            services[endpoint.key] = service
        self._services = services

    def _log_of(self, endpoint: RasEndpoint) -> EpisodeLog:
        pid = endpoint.processes[0].pid
        return EpisodeLog(
            log,
            f"source nccl-ras: port {endpoint.port} of process {pid}",
            recovered="answers",
            clock=self._clock,
        )

    def _ask_service(self, service: _Service) -> None:
        began, cpu = self._clock(), time.thread_time()
        try:
            document = self._ask(service.endpoint, service.json)
            status = parse_json(document) if document.lstrip().startswith(b"{") else parse_text(document)
        except ReplyTooLarge as error:
            if service.json:  # the text is much shorter
                service.json = False
                self._requests["failed"] += 1
                service.due = began + ASKED_EVERY_SECONDS
            else:
                self._failed(service, error, began)
        except SourceError as error:
            self._failed(service, error, began)
        else:
            self._requests["answered"] += 1
            service.failures = 0
            service.log.succeeded()
            followed, nodes = self._update(service, status)
            service.unfollowed = 0 if followed else service.unfollowed + 1
            spent = time.thread_time() - cpu
            service.wait = max(self._wait(service, nodes), spent / MAX_CPU_SHARE)
            service.due = began + service.wait

    def _failed(self, service: _Service, error: SourceError, began: float) -> None:
        self._requests["failed"] += 1
        service.failures += 1
        service.log.failed(f"{error}; the ranks of its job are not known", kind="failed")
        service.due = began + min(FAILED_AGAIN_SECONDS, ASKED_EVERY_SECONDS * 2 ** (service.failures - 1))

    @staticmethod
    def _wait(service: _Service, nodes: int) -> float:
        if not service.unfollowed:
            return ASKED_EVERY_SECONDS
        # The first answers may come before the job has its communicators.
        rarely = max(OTHERS_ASK_SECONDS, OTHERS_ASK_SECONDS_PER_NODE * nodes)
        return float(min(rarely, ASKED_EVERY_SECONDS * 2 ** min(service.unfollowed, 20)))

    def _update(self, service: _Service, status: RasStatus) -> tuple[bool, int]:
        """Whether this node follows the job that answered, and on how many nodes the job runs."""
        if not status.communicators:
            return False, 1
        here = ThisNode(
            service.endpoint, self._finder.local_addresses(service.endpoint), self._gpus, self._node
        )
        name, followed = job_name(status, here), is_followed_here(status, here)
        watch = service.jobs.get(name)
        if watch is None:
            job = CollectiveJob(name=name, uid=service.endpoint.uid, pids=(), followed=followed)
            watch = service.jobs[name] = JobWatch(job, self._clock())
        watch.update(status, here, self._clock(), name=name, followed=followed)
        return followed, watch.nodes

    def _jobs(self, service: _Service) -> Sequence[CollectiveJob]:
        """Jobs that still count: several may share a port, and each request is answered by one of them."""
        now, running = self._clock(), set(service.pids)
        for name, watch in list(service.jobs.items()):
            if now - watch.asked_at > max(KEPT_SECONDS, 3 * service.wait) or not running & set(watch.job.pids):
                del service.jobs[name]
        return [watch.job for watch in service.jobs.values()]


def open_nccl_ras(settings: Settings) -> NcclRas:
    proc, own = Proc(settings.path_procfs), own_network()

    def ask(endpoint: RasEndpoint, json: bool) -> bytes:
        pid = endpoint.processes[0].pid
        namespace = None if endpoint.network == own else f"{proc.root}/{pid}/ns/net"
        with connect(endpoint.address, endpoint.port, namespace) as connection:
            return ask_status(connection, json=json)

    return NcclRas(proc, ask, settings.node_name())


SOURCE = SourceSpec(
    name="nccl-ras",
    summary="ranks of NCCL jobs, from NCCL's own service",
    open=open_nccl_ras,
    interval_seconds=lambda settings: max(5.0, settings.interval),
    deadline_seconds=lambda settings: max(120.0, 4 * settings.interval),
)
