"""The native metrics of NCCL jobs, one row each; `collective_metrics.py` fills them.

The numbers of a job are exported by the one agent that asks it, which is that of its lowest rank. `host` and
`host_pid` are an address and a PID as the job itself has them: they identify a rank over all nodes.
"""

from __future__ import annotations

from gpuscope.model.native_metric import NativeMetric

OWNER_LABELS = ("user", "namespace", "pod", "container", "slurm_job")
_JOB = ("nccl_job", *OWNER_LABELS)


def _job(name: str, help_text: str, unit: str = "count") -> NativeMetric:
    return NativeMetric(f"gpuscope_nccl_job_{name}", "gauge", "", help_text, _JOB, unit)


JOB_INFO = NativeMetric(
    "gpuscope_nccl_job_info",
    "info",
    "",
    "An NCCL job with processes on this node, named by its lowest process; the value is always 1.",
    ("nccl_job", "version"),
)
JOB_RANKS = _job("ranks", "Ranks of the job's largest communicator.")
JOB_MISSING = _job("missing_ranks", "Ranks whose process does not answer NCCL.")
JOB_BEHIND = _job("behind_ranks", "Ranks that have launched fewer operations than others; normal for a moment.")
JOB_FAILED = _job("failed_ranks", "Ranks with an error of NCCL.")
JOB_COMMUNICATORS = _job("communicators", "Communicators of the job.")
JOB_STALLED = _job(
    "stalled_seconds",
    "How long ranks have waited for others without any new operation in a communicator; 0 while it works.",
    "seconds",
)
RANK_INFO = NativeMetric(
    "gpuscope_nccl_rank_info",
    "info",
    "",
    "A rank of an NCCL job on this node: its process and GPU; the value is always 1.",
    ("nccl_job", "uid", "host", "host_pid", "rank", "pid", "gpu", "uuid"),
)
RANK_OPERATIONS = NativeMetric(
    "gpuscope_nccl_rank_operations_total",
    "counter",
    "",
    "Collective operations that a rank on this node has launched in the job's largest communicator.",
    ("nccl_job", "rank", "pid", "gpu", "uuid"),
)
STALLED_RANK = NativeMetric(
    "gpuscope_nccl_stalled_rank_seconds",
    "gauge",
    "",
    "How long the others have waited for this rank, wherever it runs, because it is behind, silent (its "
    "process does not answer) or dead; from one minute on.",
    ("nccl_job", "uid", "rank", "host", "host_pid", "reason", *OWNER_LABELS),
)
STALLED_RANK_INFO = NativeMetric(
    "gpuscope_nccl_stalled_rank_info",
    "info",
    "",
    "Which operation the others wait in, and how many they are; the value is always 1.",
    (
        "nccl_job", "rank", "host", "host_pid", "communicator", "operation", "launched", "furthest", "waiting",
    ),
)  # fmt: skip
REQUESTS = NativeMetric(
    "gpuscope_nccl_requests_total", "counter", "", "Requests to NCCL jobs on this machine.", ("result",)
)

COLLECTIVE_METRICS: tuple[NativeMetric, ...] = (
    JOB_INFO, JOB_RANKS, JOB_MISSING, JOB_BEHIND, JOB_FAILED, JOB_COMMUNICATORS, JOB_STALLED, RANK_INFO,
    RANK_OPERATIONS, STALLED_RANK, STALLED_RANK_INFO, REQUESTS,
)  # fmt: skip
