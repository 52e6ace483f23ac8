"""The native metrics of a Slurm cluster, one row each. `reading` is empty: `slurm_metrics.py` fills them.

A job's number is `slurm_job`, as in the metrics of processes: `job` is Prometheus' own label.
"""

from __future__ import annotations

from gpuscope.model.native_metric import NativeMetric


def _gauge(name: str, help_text: str, *labels: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_slurm_{name}", "gauge", "", help_text, labels, unit)


def _counter(name: str, help_text: str, *labels: str) -> NativeMetric:
    return NativeMetric(f"gpuscope_slurm_{name}_total", "counter", "", help_text, labels)


def _info(name: str, help_text: str, *labels: str) -> NativeMetric:
    return NativeMetric(f"gpuscope_slurm_{name}_info", "info", "", help_text, labels)


UP = _gauge("up", "1 if slurmctld answers; read by the one agent that watches the cluster.", unit="0 or 1")
VERSION = _info("version", "Slurm's version and how it is read; the value is always 1.", "version", "mode")
QUERY_SUCCESS = _gauge(
    "query_success", "1 if the last request of this kind to Slurm succeeded.", "query", unit="0 or 1"
)
QUERY_DURATION = _gauge("query_duration_seconds", "How long the last request of this kind took.", "query")
QUERY_LAST_SUCCESS = _gauge(
    "query_last_success_timestamp_seconds", "When a request of this kind last succeeded.", "query"
)
QUERIES = _counter("queries", "Requests sent to Slurm: how much load this agent is for slurmctld.", "query")
QUERY_FAILURES = _counter("query_failures", "Requests to Slurm that failed.", "query")

_GPU_HELP = (
    "GPUs (gres=gpu) or shards and MPS shares of them, by state: allocated, idle, drained, down; "
    "the states add up to the total. A MIG profile is a model."
)
NODE_GPUS = _gauge("node_gpus", _GPU_HELP, "node", "gres", "model", "state", unit="count")
PARTITION_GPUS = _gauge(
    "partition_gpus",
    "As node_gpus, by partition; a node in two partitions counts in both.",
    "partition", "gres", "model", "state", unit="count",
)  # fmt: skip
GPUS = _gauge("gpus", "As node_gpus, of the whole cluster.", "gres", "model", "state", unit="count")
USER_GPUS = _gauge(
    "user_gpus_allocated", "GPUs that a user's jobs hold.", "user", "account", "gres", "model", unit="count"
)
ACCOUNT_GPUS = _gauge(
    "account_gpus_allocated", "GPUs that an account's jobs hold.", "account", "gres", "model", unit="count"
)
PENDING_GPUS = _gauge(
    "partition_gpus_requested",
    "GPUs that pending jobs ask for; a job that waits for two partitions counts in both.",
    "partition", "gres", "model", unit="count",
)  # fmt: skip

JOBS = _gauge("jobs", "Jobs by state; finished ones until Slurm forgets them.", "state", unit="count")
PARTITION_JOBS = _gauge("partition_jobs", "Jobs by partition and state.", "partition", "state", unit="count")
USER_JOBS = _gauge("user_jobs", "Jobs by user, account and state.", "user", "account", "state", unit="count")
PENDING_JOBS = _gauge("partition_jobs_pending", "Pending jobs by reason.", "partition", "reason", unit="count")
OLDEST_PENDING = _gauge(
    "partition_oldest_pending_seconds",
    "How long the pending job that is eligible for the longest time has been eligible to start.",
    "partition",
)
WAITING_JOBS = _gauge(
    "partition_jobs_waiting",
    "Pending jobs that have been eligible for at most `within` seconds; cumulative like histogram buckets.",
    "partition", "within", unit="count",
)  # fmt: skip

NODE_STATE = _gauge("node_state", "1 for the base state the node is in.", "node", "state", unit="0 or 1")
NODE_FLAG = _gauge(
    "node_flag", "1 while the node has this flag: drain, maint, not_responding.", "node", "flag", unit="0 or 1"
)
NODE_REASON = _info(
    "node_reason", "Why the node is drained or down, and who said so; the value is 1.", "node", "reason", "by"
)
NODE_REASON_TIME = _gauge("node_reason_timestamp_seconds", "When the node's reason was set.", "node")
NODE_CPUS = _gauge("node_cpus", "CPUs by state: allocated, idle, other.", "node", "state", unit="count")
NODE_MEMORY = _gauge("node_memory_bytes", "Memory configured on the node.", "node")
NODE_MEMORY_ALLOCATED = _gauge("node_memory_allocated_bytes", "Memory allocated to jobs.", "node")
NODE_MEMORY_FREE = _gauge("node_memory_free_bytes", "Memory that the node's kernel reports as free.", "node")
NODE_LOAD = _gauge("node_cpu_load", "Load average that slurmd reports.", "node", unit="processes")
NODE_PARTITION = _info("node_partition", "A partition the node is in; the value is 1.", "node", "partition")

RESERVATION = _info(
    "reservation",
    "A reservation, and who may use it; the value is 1.",
    "reservation", "partition", "users", "accounts", "flags", "nodes",
)  # fmt: skip
RESERVATION_ACTIVE = _gauge(
    "reservation_active", "1 while the reservation is active.", "reservation", unit="0 or 1"
)
RESERVATION_START = _gauge("reservation_start_timestamp_seconds", "When the reservation starts.", "reservation")
RESERVATION_END = _gauge("reservation_end_timestamp_seconds", "When the reservation ends.", "reservation")
RESERVATION_NODES = _gauge("reservation_nodes", "Nodes in the reservation.", "reservation", unit="count")
RESERVATION_GPUS = _gauge(
    "reservation_gpus", "GPUs on the nodes of the reservation.", "reservation", unit="count"
)

FAIR_SHARE = _gauge(
    "fair_share_ratio",
    "Fair-share factor, 0 to 1; under Fair Tree only users (not accounts) have one.",
    "account", "user",
)  # fmt: skip
SHARES = _gauge("shares_ratio", "Share of the cluster that was promised.", "account", "user")
USAGE = _gauge("usage_ratio", "Share of the cluster's usage, decayed over time.", "account", "user")
RAW_USAGE = _gauge("usage_seconds", "Billing seconds used, decayed over time.", "account", "user")

LICENSES = _gauge("licenses", "Licences configured.", "license", unit="count")
LICENSES_USED = _gauge("licenses_used", "Licences in use.", "license", unit="count")
LICENSES_RESERVED = _gauge("licenses_reserved", "Licences in reservations.", "license", unit="count")

SERVER_THREADS = _gauge("server_threads", "Threads of slurmctld that serve requests.", unit="count")
AGENT_QUEUE = _gauge("agent_queue_size", "Messages that wait to be sent to nodes.", unit="count")
DBD_QUEUE = _gauge("dbd_agent_queue_size", "Records that wait for slurmdbd.", unit="count")
SCHEDULER_EVENTS = _counter("scheduler_jobs", "Jobs since sdiag's last reset, by event.", "event")
CYCLE_LAST = _gauge("scheduler_last_cycle_seconds", "Duration of the last cycle.", "scheduler")
CYCLE_MEAN = _gauge("scheduler_mean_cycle_seconds", "Mean duration of a cycle since the reset.", "scheduler")
CYCLE_MAX = _gauge("scheduler_max_cycle_seconds", "Longest cycle since the reset.", "scheduler")
CYCLES = _counter("scheduler_cycles", "Scheduling cycles since the reset.", "scheduler")
QUEUE_LENGTH = _gauge("scheduler_queue_length", "Jobs in the last cycle's queue.", "scheduler", unit="count")
DEPTH_MEAN = _gauge("scheduler_depth_mean", "Mean number of jobs tried in a cycle.", "scheduler", unit="count")
BACKFILLED = _counter("backfilled_jobs", "Jobs started by the backfill scheduler since slurmctld started.")
SCHEDULER_EXITS = _counter(
    "scheduler_exits", "Why scheduling cycles ended, since the reset.", "scheduler", "reason"
)
RPCS = _counter("rpcs", "Requests that slurmctld served, by message type, since the reset.", "type")
RPC_SECONDS = _counter("rpc_seconds", "Time slurmctld spent on requests, by message type.", "type")
USER_RPCS = _counter("user_rpcs", "Requests that slurmctld served, by user, since the reset.", "user")
USER_RPC_SECONDS = _counter("user_rpc_seconds", "Time slurmctld spent on requests, by user.", "user")

JOB = _info(
    "job",
    "A job that holds resources, those with GPUs first, up to --slurm-job-series; the value is 1.",
    "slurm_job", "array_job", "array_task", "het_job", "name", "user", "account", "partition", "qos",
)  # fmt: skip
JOB_GPUS = _gauge("job_gpus", "GPUs the job holds.", "slurm_job", unit="count")
JOB_SUBMIT = _gauge("job_submit_timestamp_seconds", "When the job was submitted.", "slurm_job")
JOB_START = _gauge("job_start_timestamp_seconds", "When the job started.", "slurm_job")
JOB_END = _gauge("job_end_timestamp_seconds", "When the job's time limit ends it.", "slurm_job")
JOB_SUSPENDED = _gauge(
    "job_suspended", "1 while the job is suspended; absent while it runs.", "slurm_job", unit="0 or 1"
)
JOB_NODE = _info("job_node", "A node the job runs on; the value is 1.", "slurm_job", "node")
JOB_GRES = _info(
    "job_gres",
    "A GPU the job holds; `index` is its number on the node in the order of gres.conf.",
    "slurm_job", "node", "gres", "model", "index",
)  # fmt: skip
PENDING_JOB = _info(
    "pending_job",
    "A job that waits, those that have waited longest first, up to --slurm-pending-series; the value is 1.",
    "slurm_job", "array_job", "het_job", "name", "user", "account", "partition", "qos", "reason",
)  # fmt: skip
PENDING_JOB_GPUS = _gauge("pending_job_gpus", "GPUs the job asks for.", "slurm_job", unit="count")
PENDING_JOB_TASKS = _gauge("pending_job_tasks", "Tasks of an array that wait.", "slurm_job", unit="count")
PENDING_JOB_ELIGIBLE = _gauge(
    "pending_job_eligible_timestamp_seconds", "Since when the job could have started.", "slurm_job"
)
JOBS_WITHOUT_SERIES = _gauge(
    "jobs_without_series", "Jobs that hold resources and have no series of their own.", unit="count"
)

SLURM_CLUSTER_METRICS: tuple[NativeMetric, ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, NativeMetric)
)
"""Every row above, in its order."""

QUEUE_METRICS: tuple[str, ...] = tuple(
    row.name
    for row in (
        UP, PARTITION_JOBS, PARTITION_GPUS, PENDING_GPUS, OLDEST_PENDING, PENDING_JOB, PENDING_JOB_GPUS,
        PENDING_JOB_TASKS, PENDING_JOB_ELIGIBLE, NODE_REASON, NODE_REASON_TIME, RESERVATION, RESERVATION_ACTIVE,
        RESERVATION_START, RESERVATION_END,
    )
)  # fmt: skip
"""What a page of the queue shows."""
