"""Reads slurmctld's own metrics pages (Slurm 25.11 and newer): counts, but no list of jobs and no node states.

Input: `http://CONTROLLER:6817`; output: counts of jobs by state, user, account and partition, each node's CPUs,
memory and GPUs, and scheduler statistics. Job series, pending reasons, reservations, shares, licences and drain
reasons are not there: slurmctld does not serve them. The pages are refused where PrivateData is set. slurmctld
prints labels as they are, so where users may choose any account (without slurmdbd) its name may hold lines.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuscope.agent.sources.slurm.http_client import HttpClient
from gpuscope.agent.sources.slurm.slurm_source import Query
from gpuscope.agent.sources.slurm.values import MAX_TEXT_CHARACTERS, MAX_VALUE
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import Gres, JobCounts, SchedulerStats, SlurmNode

log = logging.getLogger("gpuscope.source")

Parts = Mapping[str, Any]
Values = dict[str, dict[str, float]]
"""By metric name, then by the value of its one label (empty if it has none)."""

MIB: Final = 1 << 20
MAX_PAGE_BYTES: Final = 32 << 20  # 10,000 nodes have 9 MB
_LINE = re.compile(r'^(\w+)(?:\{\w+="((?:[^"\\\n]|\\.)*)"\})? (\S+)$', re.MULTILINE)
_STATES = {
    "pending": "PENDING", "running": "RUNNING", "suspended": "SUSPENDED", "cancelled": "CANCELLED",
    "completing": "COMPLETING", "completed": "COMPLETED", "configuring": "CONFIGURING", "failed": "FAILED",
    "timeout": "TIMEOUT", "preempted": "PREEMPTED", "node_failed": "NODE_FAIL", "bootfail": "BOOT_FAIL",
    "deadline": "DEADLINE", "outofmemory": "OUT_OF_MEMORY",
}  # fmt: skip
_NODE_STATES = {
    "alloc": "alloc", "completing": "comp", "down": "down", "drained": "drain", "draining": "drain",
    "fail": "fail", "idle": "idle", "maint": "maint", "resv": "resv",
}  # fmt: skip
_SERVER = {
    "Server thread count": "slurm_server_thread_cnt", "Agent queue size": "slurm_agent_queue_size",
    "Agent count": "slurm_agent_cnt", "Agent thread count": "slurm_agent_thread_cnt",
    "DBD Agent queue size": "slurm_slurmdbd_queue_size", "Jobs submitted": "slurm_sdiag_jobs_submitted",
    "Jobs started": "slurm_sdiag_jobs_started", "Jobs completed": "slurm_sdiag_jobs_completed",
    "Jobs canceled": "slurm_sdiag_jobs_canceled", "Jobs failed": "slurm_sdiag_jobs_failed",
}  # fmt: skip
_MAIN = {
    "Last cycle": "slurm_schedule_cycle_last", "Max cycle": "slurm_schedule_cycle_max",
    "Total cycles": "slurm_schedule_cycle_cnt", "Mean cycle": "slurm_sched_mean_cycle",
    "Mean depth cycle": "slurm_sched_mean_depth_cycle", "Last queue length": "slurm_schedule_queue_len",
}  # fmt: skip
_BACKFILL = {
    "Total backfilled jobs (since last slurm start)": "slurm_backfilled_jobs",
    "Total backfilled jobs (since last stats cycle start)": "slurm_last_backfilled_jobs",
    "Total backfilled heterogeneous job components": "slurm_backfilled_het_jobs",
    "Total cycles": "slurm_bf_cycle_cnt", "Last cycle": "slurm_bf_cycle_last",
    "Max cycle": "slurm_bf_cycle_max", "Mean cycle": "slurm_bf_mean_cycle",
    "Depth Mean": "slurm_bf_depth_mean", "Last queue length": "slurm_bf_queue_len",
}  # fmt: skip


def parse_page(text: str) -> Values:
    """Raises SourceError for a page without any sample."""
    values: Values = defaultdict(dict)
    for match in _LINE.finditer(text):
        try:
            value = float(match[3])
        except ValueError:
            continue
        if abs(value) <= MAX_VALUE:  # not for NaN
            values[match[1]][_unescaped(match[2] or "")[:MAX_TEXT_CHARACTERS]] = value
    if not values:
        raise SourceError("slurmctld's metrics page is empty; MetricsType is not set, or PrivateData is")
    return values


def has_forged_lines(text: str) -> bool:
    """Whether a label of the page holds line breaks.

    Each account is in a series of every state, so the lines that its name adds stand in the page several times;
    a page without such a name has no line twice.
    """
    lines = [line for line in text.split("\n") if line]
    return len(set(lines)) < len(lines)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text) if "\\" in text else text


class SlurmMetricsPages:
    """The backend `metrics`."""

    mode = "metrics"

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self._http = HttpClient(address, "--slurm-metrics", timeout_seconds, {}, max_body_bytes=MAX_PAGE_BYTES)
        self.queries = (
            Query("jobs", ("job_counts",), self._jobs),
            Query("nodes", ("nodes", "node_counts"), self._nodes),
            Query("scheduler", ("scheduler",), self._scheduler),
        )
        self._episode = EpisodeLog(log, "source slurm: users and accounts", recovered="are counted again")

    def ping(self) -> str:
        """The landing page of slurmctld's port; it does not say its version."""
        self._http.get("/metrics")
        return ""

    def close(self) -> None:
        pass

    def _page(self, name: str) -> Values:
        return parse_page(self._text(name))

    def _text(self, name: str) -> str:
        return self._http.get(f"/metrics/{name}").decode("utf-8", "replace")

    def _jobs(self, parts: Parts) -> Parts:
        jobs, owners, partitions = self._page("jobs"), self._owners_page(), self._page("partitions")
        return {"job_counts": to_job_counts(jobs, owners, partitions)}

    def _owners_page(self) -> Values:
        """Empty if an account's name imitates lines: then no number can be told from a forged one."""
        text = self._text("jobs-users-accts")
        if has_forged_lines(text):
            self._episode.failed("the name of an account has lines in it; see scontrol show job", kind="forged")
            return {}
        self._episode.succeeded()
        return parse_page(text)

    def _scheduler(self, parts: Parts) -> Parts:
        return {"scheduler": to_scheduler(self._page("scheduler"))}

    def _nodes(self, parts: Parts) -> Parts:
        page = self._page("nodes")
        return {"nodes": without_future(page, tuple(to_nodes(page))), "node_counts": to_node_counts(page)}


def to_job_counts(jobs: Values, owners: Values, partitions: Values) -> JobCounts:
    """From three pages, each of which is read only for what it is about."""

    def by_state(page: Values, prefix: str) -> dict[tuple[str, str], int]:
        return {
            (name, state): int(count)
            for ending, state in _STATES.items()
            for name, count in page.get(f"{prefix}_{ending}", {}).items()
        }

    def sums(metric: str) -> dict[str, int]:
        return {name: int(count) for name, count in owners.get(metric, {}).items()}

    return JobCounts(
        by_state={state: count for (_, state), count in by_state(jobs, "slurm_jobs").items()},
        by_user=by_state(owners, "slurm_user_jobs"),
        by_account=by_state(owners, "slurm_account_jobs"),
        by_partition=by_state(partitions, "slurm_partition_jobs"),
        cpus_by_user=sums("slurm_user_jobs_cpus_alloc"),
        cpus_by_account=sums("slurm_account_jobs_cpus_alloc"),
        gpus_by_user=sums("slurm_user_jobs_gpus_alloc"),
        gpus_by_account=sums("slurm_account_jobs_gpus_alloc"),
    )


def without_future(page: Values, nodes: tuple[SlurmNode, ...]) -> Maybe[tuple[SlurmNode, ...]]:
    """The nodes that sinfo shows: not those whose state is FUTURE, which the page counts without naming them.

    They have no allocated CPUs and no free memory. ABSENT if other nodes have neither: they look the same.
    """
    future = int(page.get("slurm_nodes_future", {}).get("", 0))
    if not future:
        return nodes
    unused = {node.name for node in nodes if node.cpus_allocated == 0 and node.memory_free_bytes == 0}
    return tuple(node for node in nodes if node.name not in unused) if len(unused) == future else ABSENT


def to_nodes(page: Values) -> Iterator[SlurmNode]:
    """`_bytes` of these pages are MiB. Their idle CPUs include those of nodes that are down: not taken over."""
    for name, cpus in page.get("slurm_node_cpus", {}).items():

        def value(metric: str, scale: int = 1, name: str = name) -> Maybe[int]:
            found = page.get(f"slurm_node_{metric}", {}).get(name)
            return ABSENT if found is None else int(found) * scale

        gpus, used = value("gpus"), value("gpus_alloc")
        yield SlurmNode(
            name=name,
            long_state="",
            cpus=int(cpus),
            cpus_allocated=value("cpus_alloc"),
            memory_bytes=value("memory_bytes", MIB),
            memory_allocated_bytes=value("memory_alloc_bytes", MIB),
            memory_free_bytes=value("memory_free_bytes", MIB),
            gres=() if gpus is ABSENT or not gpus else (Gres("gpu", "", gpus),),
            gres_used=() if used is ABSENT or not used else (Gres("gpu", "", used),),
        )


def to_node_counts(page: Values) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for ending, name in _NODE_STATES.items():
        counts[name] += int(page.get(f"slurm_nodes_{ending}", {}).get("", 0))
    # A draining node counts as mixed too: slurmctld counts base states and flags apart.
    counts["mix"] = int(page.get("slurm_nodes_mixed", {}).get("", 0))
    return dict(counts)


def to_scheduler(page: Values) -> SchedulerStats:
    def renamed(names: Mapping[str, str]) -> dict[str, float]:
        found = {name: page.get(metric, {}).get("") for name, metric in names.items()}
        return {name: value for name, value in found.items() if value is not None}

    return SchedulerStats(server=renamed(_SERVER), main=renamed(_MAIN), backfill=renamed(_BACKFILL))
