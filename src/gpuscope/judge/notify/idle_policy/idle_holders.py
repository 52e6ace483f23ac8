"""Who holds idle GPUs now: Slurm jobs and pods with all of their GPUs, and how long each has been idle.

A GPU is idle if an episode that says so is open for it in the server's judgement, as findings show it, and if
the agent's account of the holder, `gpuscope_owner_idle_seconds`, agrees: the account says which GPUs a holder
has, and can be verified. A GPU whose work is not known is never idle, nor one whose last sample is old. Anybody
who may send samples can write such a series, so each GPU also has whether its account is verified; an episode
alone makes nobody idle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpuscope.history.engines.query_engine import LabelledValue, QueryEngine, labelled_values
from gpuscope.history.store.tick import belongs_to_node
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.judgement import JudgedMoment, without_explained
from gpuscope.judge.checks.thresholds import IDLE_FINDING_SECONDS
from gpuscope.judge.checks.use_checks import IDLE_KINDS
from gpuscope.judge.notify.idle_policy.job_nodes import (
    UNPLACED,
    JobNodes,
    NodesOfJobs,
    claimed_names,
    host_of,
    read_nodes_of_jobs,
)

MAX_HOLDERS: Final = 20_000
MAX_PROCESSES: Final = 320_000
_KINDS: Final = 'kind=~"job|pod"'
MAX_AGE_SECONDS: Final = 180.0
"""An engine shows a sample for five minutes: meanwhile the holder may have worked."""
MAX_SKEW_SECONDS: Final = 120.0
"""Between the clocks of slurmctld and of this server."""

DECIDING_CHECKS: Final = tuple(
    dict.fromkeys(CHECKS[kind] for idle in IDLE_KINDS for kind in (idle, *CHECKS[idle].explained_by))
)
"""And those that explain them: a GPU that waits for a disk, or whose node is silent, is not left idle."""

IsVerified = Callable[[Mapping[str, str]], bool]
"""Whether the series with these labels, `__name__` included, can only come from the node it names."""


@dataclass(frozen=True, slots=True)
class HolderKey:
    kind: str
    name: str
    namespace: str = ""
    cluster: str = ""
    """The label `cluster` of its series, where the operator has set one: job numbers are not unique."""

    @property
    def text(self) -> str:
        words = f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"
        return f"{words} of cluster {self.cluster}" if self.cluster else words


@dataclass(slots=True)
class IdleHolder:
    key: HolderKey
    idle_seconds: dict[str, float] = field(default_factory=dict)
    """By GPU, `node/0`: only GPUs whose work is known."""
    held: set[str] = field(default_factory=set)
    """The same GPUs, and those whose work is not known."""
    allocated: float | None = None
    """How many GPUs Slurm has given to the job; None if no agent that reads Slurm says so."""
    unverified: set[str] = field(default_factory=set)
    """Those of `idle_seconds` that somebody else may have written."""
    placement: JobNodes = UNPLACED
    """Of a job: the nodes that Slurm has given it."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Of a job, by instance: the node that it is. Others do not count."""
    strangers: set[str] = field(default_factory=set)
    """Instances that report the job and are none of its nodes."""
    self_named: set[str] = field(default_factory=set)
    """Instances of which nobody but they themselves says that they are one of its nodes."""
    clusters: frozenset[str] = frozenset()
    """All that report holders of this kind now."""
    uids: set[str] = field(default_factory=set)
    """Of the pods with this name that have processes on GPUs, as far as they are known."""
    array_task: str = ""
    """`40_3` if the job is a task of an array: one of the tasks has the number of the whole array."""
    het_job: str = ""
    """The leader of the heterogeneous job that the job is a part of."""
    user: str = ""
    other_user: str = ""
    """Another user that a verified series names."""
    account: str = ""
    partition: str = ""
    are_labels_known: bool = False
    """A verified series has the labels of the pod."""
    described_by: list[Mapping[str, str]] = field(default_factory=list)
    """The labels of every series that describes it, verified or not: one of them is enough for an exception."""

    @property
    def command_name(self) -> str:
        """What names this holder, and nothing else, in a command."""
        return self.array_task or self.key.name

    @property
    def longest_idle(self) -> float:
        return max(self.idle_seconds.values(), default=0.0)

    @property
    def shortest_idle(self) -> float:
        """Of the GPUs whose work is known."""
        return min(self.idle_seconds.values(), default=0.0)

    @property
    def silent_nodes(self) -> frozenset[str]:
        """Nodes of the job whose GPUs are not reported. A node without GPUs has nothing to report."""
        placed = self.placement
        knows_all = self.allocated is not None and sum(placed.gpus.values()) >= self.allocated
        needed = placed.nodes & placed.gpus.keys() if knows_all else placed.nodes
        return needed - {self.nodes.get(_instance(gpu), "") for gpu in self.idle_seconds}

    def gpus_on(self, node: str) -> int:
        """Those that are known; one that two agents of the node report is one."""
        on_node = [gpu for gpu in self.idle_seconds if self.nodes.get(_instance(gpu)) == node]
        return len({gpu.rpartition("/")[2] for gpu in on_node})

    def place(self, placement: JobNodes, claimed: Mapping[str, set[str]]) -> None:
        """Forgets the idle time on GPUs of nodes that are not the job's. `claimed` are the names that nodes
        have for themselves, by instance."""
        self.placement = placement
        if not placement.nodes:
            return
        for instance in {_instance(gpu) for gpu in self.held}:
            node = placement.node_of([host_of(instance)])
            if not node and (node := placement.node_of(claimed.get(instance, ()))):
                self.self_named.add(instance)
            if node:
                self.nodes[instance] = node
            else:
                self.strangers.add(instance)
        self.idle_seconds = {
            gpu: idle for gpu, idle in self.idle_seconds.items() if _instance(gpu) in self.nodes
        }

    def forget_idle_beyond(self, seconds: float) -> None:
        """The job was requeued and has the same number: a longer idle time is that of its run before."""
        self.idle_seconds = {gpu: idle for gpu, idle in self.idle_seconds.items() if idle <= seconds}

    def limit_idle(self, seconds: float) -> None:
        """Its name was another holder's before: longer than this it has not been here."""
        self.idle_seconds = {gpu: min(idle, seconds) for gpu, idle in self.idle_seconds.items()}

    @property
    def hosts(self) -> frozenset[str]:
        """The nodes that report it. A pod has all of its GPUs on one."""
        return frozenset(host_of(_instance(gpu)) or _instance(gpu) for gpu in self.held)

    def idle_gpus(self, seconds: float) -> list[str]:
        return sorted(gpu for gpu, idle in self.idle_seconds.items() if idle >= seconds)


@dataclass(frozen=True, slots=True)
class IdleReading:
    """The fleet at one moment."""

    holders: list[IdleHolder] = field(default_factory=list)
    accounted: frozenset[tuple[str, str]] = frozenset()
    """(kind, GPU): the node reports that each process on the GPU has an owner of this kind. A holder of the
    kind that does not hold the GPU has no process there."""


async def read_idle_holders(
    engine: QueryEngine,
    at_ms: int,
    judged: JudgedMoment | None,
    is_verified: IsVerified,
    slurm_agents: Collection[str] = (),
) -> IdleReading:
    """`judged` has the open episodes; None before the first evaluation. `slurm_agents`: the hosts or instances
    that are trusted to read Slurm; if empty, every verified one."""

    def is_slurm(labels: Mapping[str, str]) -> bool:
        instance = labels.get("instance", "")
        is_named = any(belongs_to_node(instance, agent) for agent in slurm_agents)
        return (is_named or not slurm_agents) and is_verified(labels)

    async def query(series: str) -> list[LabelledValue]:
        fresh = f"{series} and time() - timestamp({series}) < {MAX_AGE_SECONDS:g}"
        return labelled_values(await engine.instant(fresh, at_ms, max_series=MAX_HOLDERS * 16))

    async def from_slurm(name: str) -> list[Mapping[str, str]]:
        return [
            labels for labels, value in await query(name) if value and is_slurm({**labels, "__name__": name})
        ]

    holders = _read_owners(
        await query(f"gpuscope_owner_idle_seconds{{{_KINDS}}}"),
        await query(f"gpuscope_owner_processes{{{_KINDS}}}"),
        is_verified,
    )
    _take_episodes(holders, _idle_by_episode(judged, at_ms / 1000))
    for labels, _ in await query("gpuscope_slurm_job_suspended"):
        if suspended := holders.get(_job_key(labels)):
            suspended.idle_seconds.clear()  # Slurm has stopped it; its GPUs are still held
    for labels, started_at in await query("gpuscope_slurm_job_start_timestamp_seconds"):
        if started := holders.get(_job_key(labels)):
            started.forget_idle_beyond(at_ms / 1000 - started_at + MAX_SKEW_SECONDS)
    nodes_of_jobs = read_nodes_of_jobs(
        await from_slurm("gpuscope_slurm_up"),
        await from_slurm("gpuscope_slurm_job_node_info"),
        await from_slurm("gpuscope_slurm_job_gres_info"),
    )
    names = 'group by (instance, node) (gpuscope_gpu_info{node!=""})'
    claimed = claimed_names(labelled_values(await engine.instant(names, at_ms, max_series=MAX_HOLDERS)))
    _place(holders, nodes_of_jobs, claimed)
    pods = 'group by (instance, uuid, pid, namespace, pod, cluster) (gpuscope_process_memory_bytes{pod!=""})'
    uids = 'group by (instance, uuid, pid, pod_uid) (gpuscope_process_info{pod_uid!=""})'
    _read_uids(
        holders,
        labelled_values(await engine.instant(pods, at_ms, max_series=MAX_PROCESSES)),
        labelled_values(await engine.instant(uids, at_ms, max_series=MAX_PROCESSES)),
    )
    records = await query("gpuscope_slurm_job_info")
    _read_slurm(holders, records, await query("gpuscope_slurm_job_gpus"), is_slurm)
    accounted = await query(f"gpuscope_owner_unattributed_processes{{{_KINDS}}}")
    jobs = await query("gpuscope_job_info")
    _describe(holders, jobs, records, await query("gpuscope_pod_labels"), is_verified)
    return IdleReading(
        list(holders.values()),
        frozenset(
            (labels.get("kind", ""), _gpu(labels))
            for labels, count in accounted
            if count == 0 and is_verified({**labels, "__name__": "gpuscope_owner_unattributed_processes"})
        ),
    )


def _read_owners(
    idle_times: list[LabelledValue], processes: list[LabelledValue], is_verified: IsVerified
) -> dict[HolderKey, IdleHolder]:
    holders: dict[HolderKey, IdleHolder] = {}
    for labels, idle in idle_times:
        key, gpu = _owner_key(labels), _gpu(labels)
        holder = holders.setdefault(key, IdleHolder(key))
        # Two series of one GPU: the busier one counts.
        holder.idle_seconds[gpu] = min(idle, holder.idle_seconds.get(gpu, idle))
        holder.held.add(gpu)
        if not is_verified({**labels, "__name__": "gpuscope_owner_idle_seconds"}):
            holder.unverified.add(gpu)
    for labels, _ in processes:
        key = _owner_key(labels)
        holders.setdefault(key, IdleHolder(key)).held.add(_gpu(labels))
    return holders


def _idle_by_episode(judged: JudgedMoment | None, now: float) -> dict[tuple[HolderKey, str], float]:
    """By holder, without its cluster, and GPU: how long its open episode has lasted, as far as it says so.
    Empty while one of the checks that decide is not known, or all of them were evaluated long ago."""
    if judged is None or not 0 <= now - judged.at <= MAX_AGE_SECONDS:
        return {}
    if any(check.kind in judged.not_known for check in DECIDING_CHECKS):
        return {}
    idle: dict[tuple[HolderKey, str], float] = {}
    for episode in without_explained(judged.episodes):
        labels = episode.condition.labels
        if episode.condition.subject.kind not in IDLE_KINDS:
            continue
        for key in (_job_key(labels), _pod_key(labels)):
            if key.name:
                idle[key, _gpu(labels)] = math.inf if episode.since is None else now - episode.since
    return idle


def _take_episodes(
    holders: Mapping[HolderKey, IdleHolder], by_episode: Mapping[tuple[HolderKey, str], float]
) -> None:
    """Of an account that says "idle for long" without an episode, the work is not known."""
    for key, holder in holders.items():
        for gpu, idle in list(holder.idle_seconds.items()):
            if idle <= IDLE_FINDING_SECONDS:
                continue
            seconds = by_episode.get((replace(key, cluster=""), gpu))
            if seconds is None:
                del holder.idle_seconds[gpu]
            else:
                holder.idle_seconds[gpu] = min(idle, seconds)


def _read_uids(
    holders: Mapping[HolderKey, IdleHolder], processes: list[LabelledValue], infos: list[LabelledValue]
) -> None:
    """By process: no series has both the name of a pod and its UID."""

    def process(labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(labels.get(name, "") for name in ("instance", "uuid", "pid"))

    uids = {process(labels): labels.get("pod_uid", "") for labels, _ in infos}
    for labels, _ in processes:
        uid = uids.get(process(labels), "")
        if uid and (holder := holders.get(_pod_key(labels))):
            holder.uids.add(uid)


def _place(
    holders: Mapping[HolderKey, IdleHolder], nodes_of_jobs: NodesOfJobs, claimed: Mapping[str, set[str]]
) -> None:
    clusters = {"job": set(nodes_of_jobs.readers), "pod": set[str]()}
    for key in holders:
        clusters[key.kind].add(key.cluster)
    for key, holder in holders.items():
        holder.clusters = frozenset(clusters[key.kind])
        if key.kind == "job":
            holder.place(nodes_of_jobs.of(key.cluster, key.name), claimed)


def _read_slurm(
    holders: Mapping[HolderKey, IdleHolder],
    records: list[LabelledValue],
    counts: list[LabelledValue],
    is_verified: IsVerified,
) -> None:
    """What is not verified can protect a job, by more GPUs or as a part of a heterogeneous job. The number of
    its GPUs and its name are only taken from an agent that reads Slurm and is verified."""
    recorded, counted = set(), set()
    for labels, _ in records:
        holder = holders.get(_job_key(labels))
        if holder is None:
            continue
        holder.het_job = labels.get("het_job", "") or holder.het_job
        if is_verified({**labels, "__name__": "gpuscope_slurm_job_info"}):
            recorded.add(holder.key)
            if array := labels.get("array_job", ""):
                holder.array_task = f"{array}_{labels.get('array_task', '')}"
    for labels, count in counts:
        holder = holders.get(_job_key(labels))
        if holder is None:
            continue
        holder.allocated = max(count, holder.allocated or 0.0)
        if is_verified({**labels, "__name__": "gpuscope_slurm_job_gpus"}):
            counted.add(holder.key)
    for key in holders.keys() - (recorded & counted):
        holders[key].allocated = None


def _owner_key(labels: Mapping[str, str]) -> HolderKey:
    return HolderKey(*(labels.get(name, "") for name in ("kind", "name", "namespace", "cluster")))


def _job_key(labels: Mapping[str, str]) -> HolderKey:
    return HolderKey("job", labels.get("slurm_job", ""), cluster=labels.get("cluster", ""))


def _pod_key(labels: Mapping[str, str]) -> HolderKey:
    return HolderKey("pod", *(labels.get(name, "") for name in ("pod", "namespace", "cluster")))


def _gpu(labels: Mapping[str, str]) -> str:
    return f"{labels.get('instance', '')}/{labels.get('gpu', '')}"


def _instance(gpu: str) -> str:
    return gpu.rpartition("/")[0]


def _describe(
    holders: Mapping[HolderKey, IdleHolder],
    jobs: list[LabelledValue],
    records: list[LabelledValue],
    pods: list[LabelledValue],
    is_verified: IsVerified,
) -> None:
    about: dict[HolderKey, list[Mapping[str, str]]] = defaultdict(list)
    # Slurm's record comes last: a process may be of another user, and says itself which job it is of.
    for name, series in (("gpuscope_job_info", jobs), ("gpuscope_slurm_job_info", records)):
        for labels, _ in series:
            about[_job_key(labels)].append({**labels, "__name__": name})
    for labels, _ in pods:
        key = _pod_key(labels)
        about[key].append({**labels, "__name__": "gpuscope_pod_labels"})
    for key, holder in holders.items():
        holder.described_by = about[key]
        if key.kind != "job":
            holder.are_labels_known = any(map(is_verified, about[key]))
            continue
        # For a holder that a command may end, only verified series give the words of the command.
        is_any = holder.unverified >= holder.idle_seconds.keys()
        for described in (labels for labels in about[key] if is_any or is_verified(labels)):
            user = described.get("user", "")
            if user and holder.user not in ("", user):
                holder.other_user = holder.user
            holder.user = user or holder.user
            holder.account = described.get("account", "") or holder.account
            holder.partition = described.get("partition", "") or holder.partition
