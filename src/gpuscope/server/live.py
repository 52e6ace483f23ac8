"""The live picture of `/api/live`, from the judged facts of a fleet. Only shapes JSON; judges nothing.

The same function serves this process's snapshots, the embedded store and another engine, so the page shows the
same over all of them. A number that is not known has no key. A node that is gone, and its GPUs, stay in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

from gpuscope.health.facts import FleetFacts, GpuFacts, NodeFacts, ProcessFacts
from gpuscope.health.finding import Finding
from gpuscope.health.findings import GpuState, is_stale, node_name
from gpuscope.health.missing import Gone, Missing
from gpuscope.health.states import State
from gpuscope.health.use_checks import IDLE_SINCE, idle_since
from gpuscope.readings import ABSENT, Maybe
from gpuscope.server.api_types.findings_json import FindingJson
from gpuscope.server.api_types.live_json import (
    GoneJson,
    GoneTargetJson,
    LiveGpu,
    LiveNode,
    LivePicture,
    LiveSession,
    ProcessState,
)
from gpuscope.server.fleet_judge import JudgedFleet

T = TypeVar("T")
_TAKEN_AT: Final = "gpuscope_agent_snapshot_timestamp_seconds"

GpuNumber = Literal["busy", "memory_used", "memory_total", "power", "sm", "tensor", "dram"]
_GPU_NUMBERS: Final[tuple[tuple[GpuNumber, str], ...]] = (
    ("busy", "gpuscope_gpu_utilization_ratio"),
    ("memory_used", "gpuscope_gpu_memory_used_bytes"),
    ("memory_total", "gpuscope_gpu_memory_total_bytes"),
    ("power", "gpuscope_gpu_power_watts"),
    ("sm", "gpuscope_gpu_sm_active_ratio"),
    ("tensor", "gpuscope_gpu_tensor_active_ratio"),
    ("dram", "gpuscope_gpu_dram_active_ratio"),
)
NodeNumber = Literal["gpus_seen", "gpus_expected", "cpu", "load1", "memory_total"]
_NODE_NUMBERS: Final[tuple[tuple[NodeNumber, str], ...]] = (
    ("gpus_seen", "gpuscope_gpus_seen"),
    ("gpus_expected", "gpuscope_gpus_expected"),
    ("cpu", "gpuscope_node_cpu_utilization_ratio"),
    ("load1", "node_load1"),
    ("memory_total", "node_memory_MemTotal_bytes"),
)
SessionNumber = Literal["memory", "sm", "since"]
_SESSION_NUMBERS: Final[tuple[tuple[SessionNumber, str], ...]] = (
    ("memory", "gpuscope_process_memory_bytes"),
    ("sm", "gpuscope_process_sm_ratio"),
    ("since", "gpuscope_process_start_time_seconds"),
)
SessionText = Literal["type", "command", "user", "namespace", "pod", "container", "job"]
_SESSION_TEXTS: Final[tuple[tuple[SessionText, str], ...]] = (
    ("type", "type"),
    ("command", "command"),
    ("user", "user"),
    ("namespace", "namespace"),
    ("pod", "pod"),
    ("container", "container"),
    ("job", "slurm_job"),  # the label `job` is the scrape job's, in every Prometheus
)
_EARLIER_STATES: Final[dict[str, ProcessState]] = {"active": "active", "idle": "idle", "unknown": "unknown"}
"""Agents of earlier versions have the state in a label."""


def live_picture(judged: JudgedFleet, source: str) -> LivePicture:
    fleet, missing = judged.fleet, judged.missing
    nodes = _nodes(fleet, missing)
    shown = {node["instance"]: node for node in nodes}
    sessions = [
        _session(process, key, shown[key[0]]["name"])
        for key, process in fleet.processes.items()
        if key[0] in shown
    ]
    picture: LivePicture = {
        "now": fleet.now,
        "simulated": any(node.labels.get("simulated") == "true" for node in fleet.nodes.values()),
        "source": source,
        "nodes": sorted(nodes, key=lambda node: node["name"]),
        "gpus": _gpus(judged, shown),
        "sessions": sorted(sessions, key=lambda row: (row["node"], row["gpu"], str(row["pid"]))),
        "targets": [_target(one.job, one.instance, one.url, one.gone) for one in missing.targets],
        "findings": findings_json(judged.findings),
    }
    if taken := [node["taken_at"] for node in nodes if "taken_at" in node]:
        picture["taken_at"] = max(taken)
    return picture


def findings_json(findings: Iterable[Finding]) -> list[FindingJson]:
    return [_finding(finding) for finding in findings]


def _finding(finding: Finding) -> FindingJson:
    owner = finding.owner
    return {
        "id": finding.id,
        "kind": finding.kind,
        "severity": finding.severity.value,
        "node": finding.node,
        "gpus": list(finding.gpus),
        "uuids": list(finding.uuids),
        "owner": {"kind": owner.kind, "namespace": owner.namespace, "name": owner.name, "user": owner.user},
        "since": finding.since,
        "until": finding.until,
        "cost_gpu_hours": finding.cost_gpu_hours,
        "why": finding.why,
        "why_key": finding.why_key,
        "args": dict(finding.args),
        "next": finding.next,
        "next_key": finding.next_key,
        "evidence": finding.evidence,
    }


def _nodes(fleet: FleetFacts, missing: Missing) -> list[LiveNode]:
    nodes = [
        _node(instance, node, fleet.now, missing.nodes.get(instance))
        for instance, node in fleet.nodes.items()
        if _TAKEN_AT in node.plain or instance in missing.nodes
    ]
    nodes += [
        _node(instance, NodeFacts({"instance": instance}), fleet.now, gone)
        for instance, gone in missing.nodes.items()
        if instance not in fleet.nodes
    ]
    here = {node["name"] for node in nodes if "gone" not in node}
    # A node that came back under another address is not gone.
    return [node for node in nodes if "gone" not in node or node["name"] not in here]


def _node(instance: str, node: NodeFacts, now: float, gone: Gone | None) -> LiveNode:
    stale = is_stale(node, now)
    sources = node.by_label.get("gpuscope_source_up", {})
    shown: LiveNode = {
        "name": node_name(node),
        "instance": instance,
        "stale": stale,
        "sources": [{"name": name, "up": up == 1} for name, up in sources.items()],
    }
    taken_at = node.plain.get(_TAKEN_AT)
    if taken_at is not None:
        shown["taken_at"] = taken_at
    for key, metric in _NODE_NUMBERS:
        if metric in node.plain:
            shown[key] = node.plain[metric]
    available = node.plain.get("node_memory_MemAvailable_bytes")
    if available is not None and "memory_total" in shown:
        shown["memory_used"] = shown["memory_total"] - available
    if gone is not None:
        shown["gone"] = _gone(gone)
    return shown


def _gone(gone: Gone) -> GoneJson:
    return {"since": gone.since, "why": gone.why, "answered": gone.answered}


def _target(job: str, instance: str, url: str, gone: Gone) -> GoneTargetJson:
    return {
        "job": job,
        "instance": instance,
        "url": url,
        "since": gone.since,
        "why": gone.why,
        "answered": gone.answered,
    }


def _session(process: ProcessFacts, key: tuple[str, str, str], node: str) -> LiveSession:
    _, uuid, pid = key
    labels, numbers = process.labels, process.plain
    active = process.is_active
    row: LiveSession = {
        "uuid": uuid,
        "gpu": labels.get("gpu", ""),
        "node": node,
        "pid": _number(pid, pid),
        "state": "unknown" if active is None else "active" if active else "idle",
    }
    if active is None:
        row["state"] = _EARLIER_STATES.get(labels.get("state", ""), "unknown")
    for text_key, label in _SESSION_TEXTS:
        if labels.get(label):
            row[text_key] = labels[label]
    for number_key, metric in _SESSION_NUMBERS:
        if metric in numbers:
            row[number_key] = numbers[metric]
    if row["state"] == "idle" and IDLE_SINCE in numbers:
        row["idle_since"] = numbers[IDLE_SINCE]
    return row


def _gpus(judged: JudgedFleet, nodes: Mapping[str, LiveNode]) -> list[LiveGpu]:
    missing = judged.missing
    began = {(one.kind, uuid): one.since for one in judged.findings for uuid in one.uuids}
    models = {uuid: gpu.labels.get("model", "") for (_, uuid), gpu in judged.fleet.gpus.items()}
    shown: dict[str, LiveGpu] = {}
    for (instance, uuid), gpu in judged.fleet.gpus.items():
        node = nodes.get(instance)
        state = judged.judgement.states.get((instance, uuid))
        if node is None or state is None or uuid in shown:
            continue
        one = shown[uuid] = _gpu(gpu, node["name"], state)
        model = models.get(uuid) or models.get(gpu.parent_uuid)
        if model:
            one["model"] = model
        why, since = state.why, _since(gpu, state, began)
        if gone := missing.nodes.get(instance):
            why, since = gone.why, gone.since
        elif instance in missing.unread:
            since = missing.unread[instance]
        if why:
            one["why"] = why
        if since is not ABSENT:
            one["since"] = since
    return sorted(shown.values(), key=_by_node_and_number)


def _since(gpu: GpuFacts, state: GpuState, began: Mapping[tuple[str, str], float | None]) -> Maybe[float]:
    if state.state is State.HELD:
        return idle_since(gpu)
    uuids = (gpu.labels["uuid"], gpu.parent_uuid)
    known = (began.get((state.kind, uuid)) for uuid in uuids)
    return next((at for at in known if at is not None), ABSENT)


def _gpu(gpu: GpuFacts, node: str, state: GpuState) -> LiveGpu:
    labels, numbers = gpu.labels, gpu.plain
    users = {process.labels["user"] for process in gpu.processes if process.labels.get("user")}
    shown: LiveGpu = {
        "uuid": labels["uuid"],
        "gpu": labels["gpu"],
        "node": node,
        "state": state.state.value,
        "users": sorted(users),
        "processes": len(gpu.processes),
    }
    if gpu.parent_uuid:
        shown["parent"], shown["profile"] = gpu.parent_uuid, labels.get("profile", "")
    for key, metric in _GPU_NUMBERS:
        if metric in numbers:
            shown[key] = numbers[metric]
    limit = gpu.number("gpuscope_gpu_power_limit_watts", "enforced")
    if limit is not ABSENT:
        shown["power_limit"] = limit
    temperature = gpu.number("gpuscope_gpu_temperature_celsius", "gpu")
    if temperature is not ABSENT:
        shown["temperature"] = temperature
    return shown


def _number(text: str, otherwise: T) -> int | T:
    """A label that should be a number: "¹" is a digit to Python, and JSON's encoder takes 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def _by_node_and_number(gpu: LiveGpu) -> tuple[str, list[int]]:
    return gpu["node"], [_number(part, 0) for part in gpu["gpu"].split("_")]
