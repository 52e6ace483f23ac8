"""What is known of a fleet at one moment, sorted by subject: the input of every live judgement.

Input: samples of the native family from any origin (this process's snapshots, the embedded store, another
engine). Output: nodes, GPUs, MIG instances and GPU processes with their numbers. A number that is not in the
samples is ABSENT. Nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from gpuscope.agent.owners.gpu_work import is_service_program
from gpuscope.base.errors import GpuscopeError
from gpuscope.judge.checks.thresholds import STALE_SECONDS
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.vendor import UNLABELLED, catalogues

Labels = Mapping[str, str]


@dataclass(slots=True)
class KnownJob:
    """Labels of its info series (user, account, partition, name, array and het job), and its end."""

    labels: Labels = field(default_factory=dict)
    ends_at: float | None = None


@dataclass(slots=True)
class SlurmFacts:
    """Of a cluster, from the one agent that reads it, or of a node's jobs, from the node's own agent. Several
    clusters may be in one fleet: each is kept by the agent that reads it."""

    jobs: dict[str, KnownJob] = field(default_factory=dict)
    """By job id: those that hold resources, as far as they have series."""
    gpus: list[Labels] = field(default_factory=list)
    """Labels of each GPU that a job holds: slurm_job, node, gres, model, index."""
    nodes_of_jobs: list[tuple[str, str]] = field(default_factory=list)
    gpus_of_nodes: Counter[str] = field(default_factory=Counter)
    """How many GPUs Slurm has on each node, MIG instances counted as GPUs."""
    allocated_on_nodes: Counter[str] = field(default_factory=Counter)
    """How many of them Slurm gave to jobs; which ones is not always known."""

    def job(self, labels: Labels) -> KnownJob:
        return self.jobs.setdefault(labels.get("slurm_job", ""), KnownJob())


AddToSlurm = Callable[[SlurmFacts, Labels, float], None]


def _add_job(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.job(labels).labels = labels


def _add_end(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.job(labels).ends_at = value


def _add_gpu(facts: SlurmFacts, labels: Labels, value: float) -> None:
    if labels.get("slurm_job"):  # a series of somebody else may have this name
        facts.gpus.append(labels)


def _add_node_of_job(facts: SlurmFacts, labels: Labels, value: float) -> None:
    facts.nodes_of_jobs.append((labels.get("slurm_job", ""), labels.get("node", "")))


def _add_node_gpus(facts: SlurmFacts, labels: Labels, value: float) -> None:
    if labels.get("gres") == "gpu" and isfinite(value):
        facts.gpus_of_nodes[labels.get("node", "")] += int(value)
        if labels.get("state") == "allocated":
            facts.allocated_on_nodes[labels.get("node", "")] += int(value)


SLURM_ADDERS: Final[Mapping[str, AddToSlurm]] = {
    "gpuscope_slurm_job_info": _add_job,
    "gpuscope_slurm_job_end_timestamp_seconds": _add_end,
    "gpuscope_slurm_job_gres_info": _add_gpu,
    "gpuscope_slurm_job_node_info": _add_node_of_job,
    "gpuscope_slurm_node_gpus": _add_node_gpus,
}
"""Metrics of a cluster, by the agent that reads it."""
NODE_JOB_METRICS: Final[Mapping[str, AddToSlurm]] = {
    "gpuscope_job_info": _add_job,
    "gpuscope_job_end_timestamp_seconds": _add_end,
}
"""Metrics of a compute node about its own jobs."""


Sample = tuple[str, Mapping[str, str], float]
"""Metric name, labels, value."""

ERROR_AGES: Final = {errors.age_metric: (errors.key,) for errors in catalogues()}
"""How long ago each error happened; the label of its code."""
AGENT_AGE: Final = "gpuscope_agent_snapshot_age_seconds"
TAKEN_AT: Final = "gpuscope_agent_snapshot_timestamp_seconds"
IDLE_SECONDS: Final = "gpuscope_process_idle_seconds"

LABELLED: Final[dict[str, tuple[str, ...]]] = {
    "gpuscope_gpu_throttle_reason": ("reason",),
    **ERROR_AGES,
    "gpuscope_gpu_ecc_errors_total": ("error", "lifetime"),
    "gpuscope_gpu_temperature_celsius": ("sensor",),
    "gpuscope_gpu_temperature_threshold_celsius": ("threshold",),
    "gpuscope_gpu_power_limit_watts": ("limit",),
    "gpuscope_gpu_row_remap_banks": ("availability",),
    "gpuscope_gpu_retired_pages": ("cause",),
    "gpuscope_gpu_fan_speed_ratio": ("fan",),
    "gpuscope_gpu_processes": ("state",),
    "gpuscope_owner_unattributed_memory_bytes": ("kind",),
    "gpuscope_source_up": ("source",),
    "gpuscope_source_duration_seconds": ("source",),
}
"""Metrics with labels besides their GPU's or node's, and which: several numbers of one subject."""
MAX_PROCESS_COUNT: Final = 1 << 22
"""The most PIDs that Linux has."""


@dataclass(slots=True)
class Facts:
    """Numbers of one subject."""

    labels: dict[str, str] = field(default_factory=dict)
    """The labels that identify it, and those of its info series."""
    plain: dict[str, float] = field(default_factory=dict)
    by_label: dict[str, dict[str, float]] = field(default_factory=dict)
    """By metric, then by the values of its further labels, joined with a comma."""

    def number(self, metric: str, label: str = "") -> Maybe[float]:
        if label:
            return self.by_label.get(metric, {}).get(label, ABSENT)
        return self.plain.get(metric, ABSENT)

    def add(self, metric: str, labels: Mapping[str, str], value: float) -> None:
        further = LABELLED.get(metric)
        if further is None:
            self.plain[metric] = value
        else:
            key = ",".join([labels.get(name, "") for name in further])
            self.by_label.setdefault(metric, {})[key] = value


@dataclass(slots=True)
class ProcessFacts(Facts):
    """A process on one GPU or MIG instance."""

    has_owner_labels: bool = False

    @property
    def is_service(self) -> bool:
        return is_service_program(self.labels.get("type", ""), self.labels.get("command", ""))

    @property
    def is_active(self) -> bool | None:
        """Whether it used the SMs lately; None where the driver does not report it."""
        active = self.plain.get("gpuscope_process_active")
        return None if active is None else active == 1


@dataclass(slots=True)
class GpuFacts(Facts):
    processes: list[ProcessFacts] = field(default_factory=list)
    allocations: list[Facts] = field(default_factory=list)
    may_be_allocated: bool = False
    """Slurm gave away more GPUs of the node than those that are known by their index."""
    is_split: bool = False
    """It has MIG instances, which have its processes."""

    @property
    def process_count(self) -> Maybe[int]:
        """ABSENT if its process list could not be read. A process whose owner is being looked up counts,
        although it has no facts of its own yet."""
        by_state = self.by_label.get("gpuscope_gpu_processes")
        if by_state is None:
            return len(self.processes) if self.processes or self.is_split else ABSENT
        counted = sum(by_state.values())
        if not 0 <= counted < MAX_PROCESS_COUNT:  # a node may send anything
            return len(self.processes) or ABSENT
        return max(int(counted), len(self.processes))  # the count may be a few seconds older

    @property
    def holders(self) -> list[ProcessFacts]:
        """Without services of the node, such as a display server: they hold nothing."""
        return [process for process in self.processes if not process.is_service]

    @property
    def idle_seconds(self) -> Maybe[float]:
        """Since the last of its holders worked; ABSENT unless all of them are known to be idle."""
        times = [process.plain.get(IDLE_SECONDS) for process in self.holders]
        known = [seconds for seconds in times if seconds]
        return min(known) if known and len(known) == len(times) else ABSENT

    @property
    def busy_ratio(self) -> Maybe[float]:
        """Utilisation; a MIG instance has none, so its SM activity is used instead."""
        busy = self.plain.get("gpuscope_gpu_utilization_ratio")
        return self.number("gpuscope_gpu_sm_active_ratio") if busy is None else busy

    @property
    def vendor(self) -> str:
        return self.labels.get("vendor", UNLABELLED)

    @property
    def parent_uuid(self) -> str:
        """The board of a MIG instance; empty for a whole GPU."""
        return self.labels.get("parent_uuid", "")


@dataclass(slots=True)
class NodeFacts(Facts):
    read_at: float = 0.0
    """When its samples became known, by this machine's clock."""
    gpus: list[GpuFacts] = field(default_factory=list)
    slurm: SlurmFacts = field(default_factory=SlurmFacts)
    """What the node's own agent knows of its jobs."""


def node_name(node: NodeFacts) -> str:
    named = (gpu.labels.get("node") for gpu in node.gpus)
    return node.labels.get("node") or next(filter(None, named), "") or node.labels["instance"]


def numbers_from(node: NodeFacts) -> Maybe[float]:
    """When its numbers were taken: by the agent's own count where it has one, because a node's clock may be
    wrong. ABSENT if it is not an agent."""
    age, taken_at = node.number(AGENT_AGE), node.number(TAKEN_AT)
    return taken_at if taken_at is ABSENT or age is ABSENT else node.read_at - age


def is_stale(node: NodeFacts, now: float) -> bool:
    taken_at = numbers_from(node)
    return taken_at is ABSENT or not now - taken_at <= STALE_SECONDS


class FleetTooLarge(GpuscopeError):
    """There are more nodes, GPUs, MIG instances and processes than there is room for."""


@dataclass(slots=True)
class FleetFacts:
    now: float
    read_at: float
    """When the samples became known; earlier than `now` if they were sorted before."""
    max_subjects: int | None = None
    """FleetTooLarge if there are more nodes, GPUs, instances and processes."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    """By the label `instance`."""
    gpus: dict[tuple[str, str], GpuFacts] = field(default_factory=dict)
    """By `instance` and `uuid`."""
    processes: dict[tuple[str, str, str], ProcessFacts] = field(default_factory=dict)
    """By `instance`, `uuid` and `pid`."""
    slurm: dict[str, SlurmFacts] = field(default_factory=dict)
    """Slurm clusters, by the `instance` of the agent that reads one."""

    @property
    def subjects(self) -> int:
        return len(self.nodes) + len(self.gpus) + len(self.processes)

    def _check_size(self) -> None:
        if self.max_subjects is not None and self.subjects >= self.max_subjects:
            raise FleetTooLarge(f"more than {self.max_subjects} nodes, GPUs and processes")

    def node(self, labels: Mapping[str, str]) -> NodeFacts:
        instance = labels.get("instance", "")
        node = self.nodes.get(instance)
        if node is None:
            self._check_size()
            node = self.nodes[instance] = NodeFacts({"instance": instance}, read_at=self.read_at)
        return node

    def gpu(self, labels: Mapping[str, str]) -> GpuFacts:
        key = labels.get("instance", ""), labels.get("uuid", "")
        gpu = self.gpus.get(key)
        if gpu is None:
            self._check_size()
            gpu = self.gpus[key] = GpuFacts({"instance": key[0], "uuid": key[1], "gpu": labels.get("gpu", "")})
            self.node(labels).gpus.append(gpu)
        return gpu

    def process(self, labels: Mapping[str, str]) -> ProcessFacts:
        key = labels.get("instance", ""), labels.get("uuid", ""), labels.get("pid", "")
        process = self.processes.get(key)
        if process is None:
            self._check_size()
            process = self.processes[key] = ProcessFacts()
            self.gpu(labels).processes.append(process)
        return process


Add = Callable[[FleetFacts, str, Mapping[str, str], float], None]


_INFOS: Final[dict[str, Callable[[FleetFacts, Mapping[str, str]], Facts]]] = {
    "gpuscope_gpu_info": FleetFacts.gpu,
    "gpuscope_mig_info": FleetFacts.gpu,
    "gpuscope_process_info": FleetFacts.process,
    "gpuscope_agent_info": FleetFacts.node,
}
"""Whose labels a series has."""


def _add_info(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    _INFOS[metric](fleet, labels).labels.update(labels)


def _add_process(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    process = fleet.process(labels)
    if not process.has_owner_labels:  # all series of a process but its info series have the same labels
        process.labels.update(labels)
        process.has_owner_labels = True
    process.plain[metric] = value


def _add_allocation(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    fleet.gpu(labels).allocations.append(Facts(dict(labels), {metric: value}))


def _add_plain_of_gpu(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    subject = fleet.gpu(labels) if "uuid" in labels else fleet.node(labels)
    subject.plain[metric] = value


def _add_labelled(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    (fleet.gpu(labels) if "uuid" in labels else fleet.node(labels)).add(metric, labels, value)


def _add_slurm(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    SLURM_ADDERS[metric](fleet.slurm.setdefault(labels.get("instance", ""), SlurmFacts()), labels, value)


def _add_node_job(fleet: FleetFacts, metric: str, labels: Mapping[str, str], value: float) -> None:
    NODE_JOB_METRICS[metric](fleet.node(labels).slurm, labels, value)


_ADDERS: Final[dict[str, Add]] = {
    **dict.fromkeys(_INFOS, _add_info),
    "gpuscope_allocation_used": _add_allocation,
    **dict.fromkeys(SLURM_ADDERS, _add_slurm),
    **dict.fromkeys(NODE_JOB_METRICS, _add_node_job),
}


def _adder(metric: str) -> Add:
    if metric.startswith("gpuscope_process_"):
        return _ADDERS.get(metric, _add_process)
    return _ADDERS.get(metric, _add_labelled if metric in LABELLED else _add_plain_of_gpu)


def sort_samples(
    samples: Iterable[Sample], now: float, max_subjects: int | None = None, read_at: float | None = None
) -> FleetFacts:
    fleet = FleetFacts(now, now if read_at is None else read_at, max_subjects)
    adders: dict[str, Add] = {}
    for metric, labels, value in samples:
        adder = adders.get(metric)
        if adder is None:
            adder = adders[metric] = _adder(metric)
        adder(fleet, metric, labels, value)
    for (instance, _), gpu in fleet.gpus.items():
        if gpu.parent_uuid and (board := fleet.gpus.get((instance, gpu.parent_uuid))) is not None:
            board.is_split = True
    return fleet


@dataclass(frozen=True, slots=True)
class Gone:
    """Since when a node or target sends nothing, and the scrape error where there is one."""

    since: float
    why: str = ""
    answered: bool = True
    """False for a target that never answered; `since` is then the first try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneTarget:
    job: str
    instance: str
    url: str
    gone: Gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What the samples of now lack. The server finds it in the scraper's state and in the history."""

    samples: Sequence[Sample] = ()
    """The last known identity of the missing nodes and GPUs."""
    nodes: Mapping[str, Gone] = field(default_factory=dict)
    """By instance."""
    targets: Sequence[GoneTarget] = ()
    unread: Mapping[str, float] = field(default_factory=dict)
    """By instance: when its GPUs were last read."""


NOTHING_MISSING: Final = Missing()
