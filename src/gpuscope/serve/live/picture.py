"""The live picture of `/api/live`, from the judged facts of a fleet. Only shapes JSON; judges nothing.

The same function serves this process's snapshots, the embedded store and another engine, so the page shows the
same over all of them. A number that is not known has no key. A node that is gone, and its GPUs, stay in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpuscope.judge.checks.facts import (
    IDLE_SECONDS,
    TAKEN_AT,
    Gone,
    GoneTarget,
    GpuFacts,
    NodeFacts,
    ProcessFacts,
    is_stale,
    node_name,
    numbers_from,
)
from gpuscope.judge.checks.finding import Finding, GpuKey
from gpuscope.judge.checks.states import CountedGpu, GpuState, State, count_gpus
from gpuscope.judge.checks.thresholds import NODE_CLOCK_SECONDS
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.serve.api_types.findings_json import FindingJson, FindingOwnerJson
from gpuscope.serve.api_types.live_json import (
    GoneJson,
    GoneTargetJson,
    LiveCounts,
    LiveGpu,
    LiveNode,
    LivePicture,
    LiveSession,
    ProcessState,
)
from gpuscope.serve.live.fleet_judge import JudgedFleet, JudgedNode
from gpuscope.serve.live.picture_jobs import jobs_of_node, live_jobs
from gpuscope.serve.live.shown_text import shown_text

T = TypeVar("T")
_MAX_TIME: Final = 253_402_300_800.0
"""The year 10000: later times cannot be written in RFC 3339."""

_GPU_NUMBERS: Final = {
    "busy": "gpuscope_gpu_utilization_ratio",
    "memory_used": "gpuscope_gpu_memory_used_bytes",
    "memory_total": "gpuscope_gpu_memory_total_bytes",
    "power": "gpuscope_gpu_power_watts",
    "sm": "gpuscope_gpu_sm_active_ratio",
    "tensor": "gpuscope_gpu_tensor_active_ratio",
    "dram": "gpuscope_gpu_dram_active_ratio",
}
_NODE_TEXTS: Final = {"job": "job", "version": "version"}
_NODE_NUMBERS: Final = {
    "gpus_seen": "gpuscope_gpus_seen",
    "gpus_expected": "gpuscope_gpus_expected",
    "cpu": "gpuscope_node_cpu_utilization_ratio",
    "load1": "node_load1",
    "memory_total": "node_memory_MemTotal_bytes",
}
_SESSION_NUMBERS: Final = {
    "memory": "gpuscope_process_memory_bytes",
    "sm": "gpuscope_process_sm_ratio",
    "since": "gpuscope_process_start_time_seconds",
    "cpu": "gpuscope_process_cpu_ratio",
    "run": "gpuscope_process_run_ratio",
    "busiest_thread": "gpuscope_process_busiest_thread_ratio",
    "io_wait": "gpuscope_process_io_wait_ratio",
    "network_wait": "gpuscope_process_network_wait_ratio",
    "resident_memory": "gpuscope_process_resident_memory_bytes",
    "children": "gpuscope_process_children",
    "children_cpu": "gpuscope_process_children_cpu_ratio",
}
_SESSION_TEXTS: Final = {
    "type": "type",
    "command": "command",
    "user": "user",
    "namespace": "namespace",
    "pod": "pod",
    "container": "container",
    "job": "slurm_job",  # the label `job` is the scrape job's, in every Prometheus
}
MAX_EVIDENCE_CHARACTERS: Final = 16_384
"""A query of 8 GPUs takes 2,000."""
_EARLIER_STATES: Final[dict[str, ProcessState]] = {"active": "active", "idle": "idle", "unknown": "unknown"}
"""Agents of earlier versions have the state in a label."""


@dataclass(frozen=True, slots=True)
class _NodeRows:
    """The rows of one judged node, in the order of the picture."""

    judged: JudgedNode
    findings: Sequence[Finding]
    node: LiveNode
    gpus: list[LiveGpu]
    sessions: list[LiveSession]
    jobs: frozenset[str]
    is_simulated: bool


class LivePictures:
    """Makes one picture after the other. Rows of a node that was not judged again are those of the picture
    before, so that the next step finds by identity what has changed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._rows: dict[str, _NodeRows] = {}
        self._findings: dict[int, tuple[Finding, FindingJson]] = {}  # by identity, which the tuple keeps alive

    def make(self, judged: JudgedFleet) -> LivePicture:
        rows = self._rows_of_nodes(judged)
        shown = _in_order(rows)
        if judged.repeated:
            shown = [_without_repeated(one, judged.repeated) for one in shown]
        nodes = [one.node for one in shown]
        gpus = _joined(shown, [one.gpus for one in shown], _by_number)
        picture: LivePicture = {
            "now": judged.now,
            "simulated": any(row.is_simulated for row in rows),
            "source": self._source,
            "counts": _counts(gpus),
            "left_out": judged.left_out,
            "not_known": len(judged.not_known),
            "nodes": nodes,
            "gpus": gpus,
            "sessions": _joined(shown, [one.sessions for one in shown], _session_place),
            "jobs": live_jobs(judged, frozenset().union(*(row.jobs for row in rows))),
            "targets": [_target(target) for target in judged.missing.targets],
            "findings": self._findings_json(judged.findings),
        }
        if taken := [node["taken_at"] for node in nodes if "taken_at" in node]:
            # A node whose clock is ahead tells nothing about the age of the others' numbers.
            picture["taken_at"] = max((at for at in taken if at <= judged.now), default=judged.now)
        return picture

    def _rows_of_nodes(self, judged: JudgedFleet) -> list[_NodeRows]:
        findings: dict[str, list[Finding]] = {}
        for finding in judged.findings:
            findings.setdefault(finding.instance, []).append(finding)
        kept, self._rows = self._rows, {}
        for instance, node in judged.nodes.items():
            if node.gone is None and (node.sorted.node is None or TAKEN_AT not in node.sorted.node.plain):
                continue  # a target that is not an agent
            before, found = kept.get(instance), findings.get(instance, ())
            if before is None or before.judged is not node or not _are_same(before.findings, found):
                before = _node_rows(node, found, judged.now)
            self._rows[instance] = before
        return list(self._rows.values())

    def _findings_json(self, findings: Iterable[Finding]) -> list[FindingJson]:
        kept = self._findings
        self._findings = {
            id(finding): kept[id(finding)] if id(finding) in kept else (finding, finding_json(finding))
            for finding in findings
        }
        return [made for _, made in self._findings.values()]


def live_picture(judged: JudgedFleet, source: str) -> LivePicture:
    return LivePictures(source).make(judged)


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _in_order(rows: Iterable[_NodeRows]) -> list[_NodeRows]:
    """By name. A node that came back under another address is not gone."""
    here = {row.node["name"] for row in rows if "gone" not in row.node}
    shown = [row for row in rows if "gone" not in row.node or row.node["name"] not in here]
    return sorted(shown, key=lambda one: one.node["name"])


def _without_repeated(rows: _NodeRows, repeated: Set[GpuKey]) -> _NodeRows:
    """Of GPUs that another node reports too, neither the GPU nor its sessions."""
    uuids = {shown_text(uuid) for instance, uuid in repeated if instance == rows.judged.instance}
    if not uuids:
        return rows
    return replace(
        rows,
        gpus=[gpu for gpu in rows.gpus if gpu["uuid"] not in uuids],
        sessions=[session for session in rows.sessions if session["uuid"] not in uuids],
    )


def _counts(gpus: Iterable[LiveGpu]) -> LiveCounts:
    counts = count_gpus(
        CountedGpu(gpu["node"], gpu["uuid"], gpu.get("parent", ""), gpu["state"], gpu["in_use"]) for gpu in gpus
    )
    return {
        "gpus": counts.gpus,
        "instances": counts.instances,
        "units": counts.units,
        "in_use": counts.in_use,
        "free": counts.free,
        "states": dict(counts.states),
    }


def _joined(shown: Sequence[_NodeRows], lists: Sequence[list[T]], place: Callable[[T], Any]) -> list[T]:
    """One list of the lists of all nodes. Rows of nodes with one name, under several addresses, are sorted
    together."""
    joined: list[T] = []
    begin, name_before = 0, None
    for one, rows in zip(shown, lists, strict=True):
        name = one.node["name"]
        if name != name_before:
            begin, name_before = len(joined), name
            joined += rows
        else:
            joined[begin:] = sorted((*joined[begin:], *rows), key=place)
    return joined


def _node_rows(judged: JudgedNode, findings: Sequence[Finding], now: float) -> _NodeRows:
    instance, facts = judged.instance, judged.sorted.facts
    node = judged.sorted.node or NodeFacts({"instance": instance})
    shown = _node(instance, node, now, judged.gone)
    sessions = [
        _session(process, key, shown["name"], facts.read_at) for key, process in facts.processes.items()
    ]
    return _NodeRows(
        judged,
        findings,
        shown,
        _gpus(judged, findings, shown["name"]),
        sorted(sessions, key=_session_place),
        jobs_of_node(node),
        node.labels.get("simulated") == "true",
    )


def finding_json(finding: Finding) -> FindingJson:
    shown: Any = {name: _shown(getattr(finding, name)) for name in FindingJson.__annotations__}
    owner = {name: _shown(getattr(finding.owner, name)) for name in FindingOwnerJson.__annotations__}
    # Half a query is none.
    evidence = finding.evidence if len(finding.evidence) <= MAX_EVIDENCE_CHARACTERS else ""
    shown |= {"severity": finding.severity.value, "owner": owner, "evidence": evidence}
    made: FindingJson = shown
    return made


def _shown(value: Any) -> Any:
    """As JSON has it; texts as `shown_text` has them."""
    if isinstance(value, Mapping):
        return {name: _shown(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_shown(part) for part in value]
    return shown_text(value) if isinstance(value, str) else value


def _node(instance: str, node: NodeFacts, now: float, gone: Gone | None) -> LiveNode:
    stale = is_stale(node, now)
    sources = node.by_label.get("gpuscope_source_up", {})
    shown: LiveNode = {
        "name": shown_text(node_name(node)),
        "instance": shown_text(instance),
        "stale": stale,
        "sources": [{"name": shown_text(name), "up": up == 1} for name, up in sources.items()],
    }
    taken_at, counted = node.plain.get(TAKEN_AT), numbers_from(node)
    if taken_at is not None and counted is not ABSENT and not abs(counted - taken_at) <= NODE_CLOCK_SECONDS:
        taken_at = counted  # the node's clock is off
    if taken_at is not None and 0 <= taken_at < _MAX_TIME:  # a node may send anything
        shown["taken_at"] = taken_at
    shown.update(_known_texts(_NODE_TEXTS, node.labels))
    shown.update(_known_numbers(_NODE_NUMBERS, node.plain))
    available = node.plain.get("node_memory_MemAvailable_bytes")
    if available is not None and "memory_total" in shown:
        shown["memory_used"] = shown["memory_total"] - available
    if gone is not None:
        shown["gone"] = _gone(gone)
    return shown


def _gone(gone: Gone) -> GoneJson:
    return {"since": gone.since, "why": shown_text(gone.why), "answered": gone.answered}


def _known_texts(names: Mapping[str, str], labels: Mapping[str, str]) -> Any:
    return {name: shown_text(labels[label]) for name, label in names.items() if labels.get(label)}


def _known_numbers(names: Mapping[str, str], numbers: Mapping[str, float]) -> Any:
    return {name: numbers[metric] for name, metric in names.items() if metric in numbers}


def _target(target: GoneTarget) -> GoneTargetJson:
    job, instance, url = map(shown_text, (target.job, target.instance, target.url))
    return {"job": job, "instance": instance, "url": url, **_gone(target.gone)}


def _session(process: ProcessFacts, key: tuple[str, str, str], node: str, read_at: float) -> LiveSession:
    _, uuid, pid = key
    labels, numbers = process.labels, process.plain
    active = process.is_active
    row: LiveSession = {
        "uuid": shown_text(uuid),
        "gpu": shown_text(labels.get("gpu", "")),
        "node": node,
        "pid": _number(pid, shown_text(pid)),
        "state": "unknown" if active is None else "active" if active else "idle",
    }
    if active is None:
        row["state"] = _EARLIER_STATES.get(labels.get("state", ""), "unknown")
    row.update(_known_texts(_SESSION_TEXTS, labels))
    row.update(_known_numbers(_SESSION_NUMBERS, numbers))
    if row["state"] == "idle" and IDLE_SECONDS in numbers:
        row["idle_since"] = read_at - numbers[IDLE_SECONDS]
    return row


def _gpus(judged: JudgedNode, findings: Iterable[Finding], node: str) -> list[LiveGpu]:
    facts = judged.sorted.facts
    began = {(finding.kind, uuid): finding.since for finding in findings for uuid in finding.uuids}
    models = {uuid: gpu.labels.get("model", "") for (_, uuid), gpu in facts.gpus.items()}
    shown: list[LiveGpu] = []
    for key, gpu in facts.gpus.items():
        state = judged.states.get(key)
        if state is None:
            continue
        one = _gpu(gpu, node, state)
        shown.append(one)
        model = models.get(key[1]) or models.get(gpu.parent_uuid)
        if model:
            one["model"] = shown_text(model)
        why, since = state.why, _since(gpu, state, began, facts.read_at)
        if judged.gone is not None:
            why, since = judged.gone.why, judged.gone.since
        elif judged.unread_since is not None:
            since = judged.unread_since
        if why:
            one["why"] = shown_text(why)
        if since is not ABSENT:
            one["since"] = since
    return sorted(shown, key=_by_number)


def _since(
    gpu: GpuFacts, state: GpuState, began: Mapping[tuple[str, str], float | None], read_at: float
) -> Maybe[float]:
    if state.state is State.HELD:
        idle = gpu.idle_seconds
        return idle if idle is ABSENT else read_at - idle
    uuids = (gpu.labels["uuid"], gpu.parent_uuid)
    known = (began.get((state.kind, uuid)) for uuid in uuids)
    return next((at for at in known if at is not None), ABSENT)


def _gpu(gpu: GpuFacts, node: str, state: GpuState) -> LiveGpu:
    labels, numbers = gpu.labels, gpu.plain
    users = {process.labels["user"] for process in gpu.processes if process.labels.get("user")}
    shown: LiveGpu = {
        "uuid": shown_text(labels["uuid"]),
        "gpu": shown_text(labels["gpu"]),
        "node": node,
        "state": state.state.value,
        "users": sorted(map(shown_text, users)),
        "in_use": state.is_in_use,
    }
    if gpu.process_count is not ABSENT:
        shown["processes"] = gpu.process_count
    given = [allocation.labels for allocation in gpu.allocations]
    if jobs := {labels["slurm_job"] for labels in given if labels.get("slurm_job")}:
        shown["jobs"] = sorted(map(shown_text, jobs))
    if pods := {f"{labels.get('namespace', '')}/{labels['pod']}" for labels in given if labels.get("pod")}:
        shown["pods"] = sorted(map(shown_text, pods))
    if gpu.parent_uuid:
        shown["parent"], shown["profile"] = map(shown_text, (gpu.parent_uuid, labels.get("profile", "")))
    shown.update(_known_numbers(_GPU_NUMBERS, numbers))
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


def _by_number(gpu: LiveGpu) -> list[int]:
    return [_number(part, 0) for part in gpu["gpu"].split("_")]


def _session_place(row: LiveSession) -> tuple[str, str]:
    return row["gpu"], str(row["pid"])
