"""What a cluster's own clients say, counted in the plainest way: one command and one split for each number.

Nothing here uses gpuscope's parsers or its command lines, so that a mistake there shows as a difference.
"""

from __future__ import annotations

import re
from collections import Counter

from tests.slurm_lab.cluster import SlurmCluster
from tests.slurm_lab.native_truth import gpus_with_shares

NODE_STATES = {"alloc": "alloc", "comp": "comp", "down": "down", "drain": "drain", "idle": "idle", "mix": "mix"}


def expected_samples(cluster: SlurmCluster) -> dict[str, float]:
    """Samples of the `slurm` family by their text, without those of sdiag and sshare."""
    return {**_job_samples(cluster), **_node_samples(cluster)}


def _job_samples(cluster: SlurmCluster) -> dict[str, float]:
    found: Counter[str] = Counter()
    queue = ("PENDING", "RUNNING", "SUSPENDED", "CANCELLED", "COMPLETING", "COMPLETED", "CONFIGURING", "FAILED",
             "TIMEOUT", "PREEMPTED", "NODE_FAIL")  # fmt: skip
    found.update({f"slurm_queue_{state.lower()}": 0 for state in queue})
    found["slurm_queue_pending_dependency"] = 0
    for line in cluster.run("squeue", "-a", "-r", "-h", "-t", "all", "-o", "%u;%a;%T;%C;%P;%r").splitlines():
        user, account, state, cpus, partitions, reason = line.split(";")
        found[f"slurm_queue_{state.lower()}"] += 1
        found["slurm_queue_pending_dependency"] += state == "PENDING" and reason == "Dependency"
        if state in ("PENDING", "RUNNING", "SUSPENDED"):
            found[f'slurm_user_jobs_{state.lower()}{{user="{user}"}}'] += 1
            found[f'slurm_account_jobs_{state.lower()}{{account="{account}"}}'] += 1
        if state == "RUNNING":
            found[f'slurm_user_cpus_running{{user="{user}"}}'] += int(cpus)
            found[f'slurm_account_cpus_running{{account="{account}"}}'] += int(cpus)
        if state == "PENDING":
            for partition in partitions.split(","):
                found[f'slurm_partition_jobs_pending{{partition="{partition}"}}'] += 1
    return dict(found)


def _node_samples(cluster: SlurmCluster) -> dict[str, float]:
    found: dict[str, float] = {f"slurm_nodes_{name}": 0 for name in NODE_STATES.values()}
    text = cluster.run("scontrol", "-d", "-o", "show", "nodes")
    total = sum(int(count) for gres in re.findall(r" Gres=(\S+)", text) for count in _gpus(gres))
    uses = re.findall(r" GresUsed=(\S+)", text)
    used = sum(int(count) for gres in uses for count in _gpus(gres))
    used += sum(gpus_with_shares(gres).total() for gres in uses)
    found |= {"slurm_gpus_total": total, "slurm_gpus_alloc": used, "slurm_gpus_idle": total - used}
    found["slurm_gpus_utilization"] = used / total
    for line in cluster.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N;%T;%C;%m").splitlines():
        node, state, cpus, memory = line.split(";")
        labels = f'{{node="{node}",status="{state}"}}'
        for name, count in zip(("alloc", "idle", "other", "total"), cpus.split("/"), strict=True):
            found[f"slurm_node_cpu_{name}{labels}"] = int(count)
        found[f"slurm_node_mem_total{labels}"] = int(memory)
        allocated = re.search(rf"NodeName={node} .*? AllocMem=(\d+)", text)
        found[f"slurm_node_mem_alloc{labels}"] = int(allocated[1]) if allocated else -1
        for beginning, name in NODE_STATES.items():
            found[f"slurm_nodes_{name}"] += state.startswith(beginning)
    sums = cluster.run("sinfo", "-a", "-h", "-o", "%R;%C").split()
    for line in sums:
        partition, cpus = line.split(";")
        for name, count in zip(("allocated", "idle", "other", "total"), cpus.split("/"), strict=True):
            if int(count):
                found[f'slurm_partition_cpus_{name}{{partition="{partition}"}}'] = int(count)
            if partition == "all":
                found[f"slurm_cpus_{name.replace('allocated', 'alloc')}"] = int(count)
    return found


def _gpus(gres: str) -> list[str]:
    return re.findall(r"(?:^|,)gpu:(?:[\w.]+:)?(\d+)", gres)
