"""Samples of small fleets, for tests of findings."""

from __future__ import annotations

from gpuscope.judge.checks.facts import FleetFacts, Sample
from gpuscope.judge.checks.slurm_join import NodesOfCluster

NOW = 1_800_000_000.0
HOUR = 3600.0


def node(name: str = "n1", at: float = NOW, **numbers: float) -> list[Sample]:
    instance = {"instance": f"{name}:9400"}
    return [
        ("gpuscope_agent_info", {**instance, "node": name, "simulated": "false"}, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", instance, at),
        ("gpuscope_agent_snapshot_age_seconds", instance, max(0.0, NOW - at)),
        *((f"gpuscope_{metric}", instance, value) for metric, value in numbers.items()),
    ]


def gpu_labels(index: str, name: str = "n1") -> dict[str, str]:
    return {"instance": f"{name}:9400", "gpu": index, "uuid": f"GPU-{name}-{index}"}


def gpu(index: str, name: str = "n1", *, up: float = 1.0, busy: float | None = None) -> list[Sample]:
    labels = gpu_labels(index, name)
    samples: list[Sample] = [
        ("gpuscope_gpu_info", {**labels, "node": name, "model": "NVIDIA H100"}, 1.0),
        ("gpuscope_gpu_up", labels, up),
    ]
    if up:
        samples.append(("gpuscope_gpu_processes", {**labels, "state": "idle"}, 0.0))
    if busy is not None:
        samples.append(("gpuscope_gpu_utilization_ratio", labels, busy))
    return samples


def of_gpu(index: str, metric: str, value: float, name: str = "n1", **labels: str) -> Sample:
    return f"gpuscope_gpu_{metric}", {**gpu_labels(index, name), **labels}, value


def process(
    index: str,
    pid: str = "7",
    *,
    name: str = "n1",
    idle_for: float | None = None,
    started: float = NOW - 3 * HOUR,
    at: float = NOW,
    program: str = "",
    **owner: str,
) -> list[Sample]:
    """A process that works, or has been idle for `idle_for` seconds."""
    labels = {**gpu_labels(index, name), "pid": pid, **owner}
    known = {**gpu_labels(index, name), "pid": pid, "program": program or f"pid-{pid}"}
    return [
        ("gpuscope_process_memory_bytes", labels, 1e9),
        ("gpuscope_process_start_time_seconds", labels, started),
        ("gpuscope_process_age_seconds", labels, at - started),
        ("gpuscope_process_active", labels, 1.0 if idle_for is None or idle_for < 60 else 0.0),
        ("gpuscope_process_idle_seconds", labels, idle_for or 0.0),
        ("gpuscope_process_info", known, 1.0),
    ]


def join_slurm(fleet: FleetFacts) -> None:
    """Adds the allocations of each cluster to the nodes whose agents have none."""
    for cluster in fleet.slurm.values():
        nodes = NodesOfCluster(cluster)
        for node in fleet.nodes.values():
            nodes.join(node)
