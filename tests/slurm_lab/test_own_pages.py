"""slurmctld's own metrics pages (25.11 and newer) against the native metrics that the commands give."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from tests.slurm_lab.cluster import CONTROLLER_PORT, SlurmCluster
from tests.slurm_lab.conftest import OWN_PAGES
from tests.slurm_lab.native_truth import MIB, Samples
from tests.slurm_lab.test_every_native_metric import MOMENTS
from tests.slurm_lab.test_live import by_commands, parsed_samples, samples

pytestmark = pytest.mark.slow

PAGES = ("jobs", "nodes", "partitions", "jobs-users-accts", "scheduler")
JOB_STATES = ("pending", "running", "suspended", "cancelled", "completed", "failed", "timeout", "completing")
NODE_STATES = {"mixed": "mixed", "idle": "idle", "down": "down", "unknown": "unknown", "allocated": "alloc"}
NODE_FLAGS = {"not_responding": "noresp", "planned": "planned", "maint": "maint", "reserved": "resv"}
SCHEDULER = {
    'scheduler_jobs_total{event="submitted"}': "slurm_sdiag_jobs_submitted",
    'scheduler_jobs_total{event="started"}': "slurm_sdiag_jobs_started",
    'scheduler_jobs_total{event="canceled"}': "slurm_sdiag_jobs_canceled",
    'scheduler_cycles_total{scheduler="main"}': "slurm_schedule_cycle_cnt",
    'scheduler_cycles_total{scheduler="backfill"}': "slurm_bf_cycle_cnt",
    'scheduler_queue_length{scheduler="main"}': "slurm_schedule_queue_len",
    'scheduler_exits_total{scheduler="main",reason="End of job queue"}': "slurm_sched_exit_end",
    "backfilled_jobs_total": "slurm_backfilled_jobs",
    "agent_queue_size": "slurm_agent_queue_size",
    "dbd_agent_queue_size": "slurm_slurmdbd_queue_size",
}
ONE_PARTITION = ("cpu", "mps")
"""The pages count a job that waits for several partitions in one of them."""


def page_samples(cluster: SlurmCluster) -> Samples:
    """Read by curl, and not by gpuscope."""
    found: Samples = {}
    for page in PAGES:
        url = f"http://127.0.0.1:{CONTROLLER_PORT}/metrics/{page}"
        command = ["nsenter", f"--net=/run/netns/{cluster.namespace}", "curl", "-sSf", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found |= parsed_samples(done.stdout)
    return found


def compared(found: Samples, pages: Samples) -> dict[str, tuple[float, float]]:
    """(on the pages, as the commands give it), by the name on the pages."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in found.items():
        metric, _, inside = name.removeprefix("gpuscope_slurm_").partition("{")
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inside))
        state = labels.get("state", "")
        if metric == "jobs" and state in JOB_STATES:
            sums[f"slurm_jobs_{state}"] += value
        elif metric == "user_jobs" and state in JOB_STATES:
            sums[f'slurm_user_jobs_{state}{{username="{labels["user"]}"}}'] += value
        elif metric == "partition_jobs" and state in JOB_STATES and labels["partition"] in ONE_PARTITION:
            sums[f'slurm_partition_jobs_{state}{{partition="{labels["partition"]}"}}'] += value
        elif metric == "node_state" and state in NODE_STATES:
            sums[f"slurm_nodes_{NODE_STATES[state]}"] += value
        elif metric == "node_flag" and labels["flag"] in NODE_FLAGS:
            sums[f"slurm_nodes_{NODE_FLAGS[labels['flag']]}"] += value
        elif metric == "node_cpus" and state == "allocated":
            sums[f'slurm_node_cpus_alloc{{node="{labels["node"]}"}}'] = value
        elif metric in ("node_memory_bytes", "node_memory_allocated_bytes"):
            # The pages give MiB under the name of bytes.
            page = metric.replace("allocated", "alloc")
            sums[f'slurm_{page}{{node="{labels["node"]}"}}'] = value / MIB
    sums |= {page: found[f"gpuscope_slurm_{name}"] for name, page in SCHEDULER.items()}
    return {name: (pages[name], value) for name, value in sums.items()}


def test_the_commands_give_what_the_pages_show(cluster: SlurmCluster) -> None:
    if OWN_PAGES not in (cluster.outside / "slurm.conf").read_text():
        pytest.skip("this version of Slurm has no metrics pages")
    cluster.wait_for_nodes()
    for _ in range(MOMENTS):
        both = compared(samples(by_commands(cluster), SlurmMetrics()), page_samples(cluster))
        differing = {name: values for name, values in both.items() if values[0] != values[1]}
        if not differing:
            break
    assert differing == {}
    metrics = {name.partition("{")[0] for name in both}
    assert {"slurm_jobs_running", "slurm_user_jobs_pending", "slurm_partition_jobs_running"} <= metrics
    assert {"slurm_nodes_mixed", "slurm_nodes_noresp", "slurm_node_cpus_alloc"} <= metrics
