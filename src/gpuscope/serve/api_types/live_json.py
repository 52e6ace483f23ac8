"""The answer of `GET /api/live`: the fleet as the page shows it."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuscope.serve.api_types.findings_json import FindingJson

GpuStateName = Literal["lost", "gone", "stale", "sick", "throttled", "held", "allocated", "busy", "idle"]
ProcessState = Literal["active", "idle", "unknown"]


class GoneJson(TypedDict):
    """A node or target that sends nothing."""

    since: float
    """The last scrape that succeeded, or the last sample of a node that pushed."""
    why: str
    """The scrape error; empty if it is not known."""
    answered: bool
    """False for a target that never answered; `since` is then the first try."""


class GoneTargetJson(TypedDict):
    """A scrape target that does not answer."""

    job: str
    instance: str
    url: str
    since: float
    """The last scrape that succeeded."""
    why: str
    """The scrape error."""
    answered: bool
    """False for a target that never answered; `since` is then the first try."""


class LiveSource(TypedDict):
    """A source of numbers on a node."""

    name: str
    up: bool


class LiveNode(TypedDict):
    """A node with a gpuscope agent."""

    name: str
    instance: str
    """Label `instance` of its series."""
    job: NotRequired[str]
    """Label `job` of its series; absent if this process collects the node itself."""
    version: NotRequired[str]
    """Of its agent."""
    taken_at: NotRequired[float]
    """When its newest numbers were read."""
    stale: bool
    """True if they are older than 30 s."""
    sources: list[LiveSource]
    gpus_seen: NotRequired[float]
    gpus_expected: NotRequired[float]
    cpu: NotRequired[float]
    """Share of the CPU time that is busy, 0 to 1."""
    load1: NotRequired[float]
    memory_used: NotRequired[float]
    """Bytes of main memory."""
    memory_total: NotRequired[float]
    gone: NotRequired[GoneJson]
    """Only of a node that sends nothing now."""


class LiveGpu(TypedDict):
    """A GPU or a MIG instance."""

    uuid: str
    gpu: str
    """The driver's index, `0_7_0` for a MIG instance."""
    node: str
    model: NotRequired[str]
    parent: NotRequired[str]
    """UUID of the board of a MIG instance."""
    profile: NotRequired[str]
    """MIG profile."""
    state: GpuStateName
    why: NotRequired[str]
    """The reason of the state in a word: an XID, a throttle reason, a kind of finding, a scrape error; of a
    `stale` GPU that answers `processes_unknown` or `allocation_unknown`: nobody knows whether it is free."""
    since: NotRequired[float]
    """When the state began."""
    busy: NotRequired[float]
    """Utilisation, 0 to 1."""
    memory_used: NotRequired[float]
    """Bytes."""
    memory_total: NotRequired[float]
    power: NotRequired[float]
    """Watts."""
    power_limit: NotRequired[float]
    temperature: NotRequired[float]
    """Degrees Celsius."""
    sm: NotRequired[float]
    """Share of the SMs that are active, 0 to 1."""
    tensor: NotRequired[float]
    dram: NotRequired[float]
    users: list[str]
    """Users of the processes on it."""
    jobs: NotRequired[list[str]]
    """Slurm jobs that it is allocated to; `LivePicture.jobs` has more about them."""
    pods: NotRequired[list[str]]
    """Pods that it is allocated to, as `namespace/name`."""
    processes: NotRequired[int]
    """Absent if its process list could not be read."""
    in_use: bool
    """True if a process or an allocation is on it; false if that is not known (lost, gone, stale)."""


class LiveSession(TypedDict):
    """A process on one GPU or MIG instance."""

    uuid: str
    gpu: str
    node: str
    pid: int | str
    """A text only if the label is not a number."""
    type: NotRequired[str]
    command: NotRequired[str]
    user: NotRequired[str]
    namespace: NotRequired[str]
    pod: NotRequired[str]
    container: NotRequired[str]
    job: NotRequired[str]
    """Slurm job; `LivePicture.jobs` has more about it."""
    memory: NotRequired[float]
    """Bytes."""
    sm: NotRequired[float]
    """Share of the SMs' time, 0 to 1."""
    since: NotRequired[float]
    """When the process started."""
    cpu: NotRequired[float]
    """CPU time as a share of one core, over the last minute."""
    run: NotRequired[float]
    """Share of the last minute in which its main thread ran."""
    busiest_thread: NotRequired[float]
    """Share of the last minute in which its busiest thread, or a child, ran or waited for a core."""
    io_wait: NotRequired[float]
    """Share of the last minute in which it, or the child that waits most, was blocked by I/O."""
    network_wait: NotRequired[float]
    """The same for data from the network."""
    resident_memory: NotRequired[float]
    """Bytes of main memory."""
    children: NotRequired[float]
    """Number of child processes."""
    children_cpu: NotRequired[float]
    """Their CPU time as a share of one core."""
    idle_since: NotRequired[float]
    """When it last worked; only of an idle process."""
    state: ProcessState


class LiveJob(TypedDict):
    """A Slurm job that holds or uses GPUs of the fleet."""

    job: str
    """Slurm's own number."""
    array: NotRequired[str]
    """`9_1`: the array's job and the task in it."""
    name: NotRequired[str]
    user: NotRequired[str]
    account: NotRequired[str]
    partition: NotRequired[str]
    ends_at: NotRequired[float]
    """When its time limit ends it, in seconds since the epoch."""


class LiveCounts(TypedDict):
    """How many there are. A unit is a GPU that is not split, or a MIG instance; each counts once, however many
    processes, pods or jobs share it."""

    gpus: int
    """GPUs, split or not."""
    instances: int
    """MIG instances."""
    units: int
    in_use: int
    """Units that a process or an allocation is on."""
    free: int
    """Units in state `idle`."""
    states: dict[str, int]
    """Units by state; a state that no unit has is left out."""


class LivePicture(TypedDict):
    """The fleet at one moment; made at most once a second and shared by all clients."""

    now: float
    """The server's time, in seconds since the epoch."""
    taken_at: NotRequired[float]
    """When the newest numbers were read."""
    simulated: bool
    """True in a demo."""
    source: str
    """Where the numbers come from: `this process`, `store` or the URL of an engine."""
    counts: LiveCounts
    left_out: int
    """Nodes for which there is no room (`live_max_subjects`): they are in no list and no count. Nodes that this
    server reads itself, and those whose write token is bound to them, come first."""
    not_known: int
    """Checks that say nothing of now: they cannot be evaluated, or the history is still filled in.
    `/api/findings` says which, and why."""
    nodes: list[LiveNode]
    gpus: list[LiveGpu]
    sessions: list[LiveSession]
    jobs: list[LiveJob]
    """Slurm jobs on the GPUs above."""
    targets: list[GoneTargetJson]
    """Scrape targets that do not answer."""
    findings: list[FindingJson]
    """The same list as in `/api/findings`."""
