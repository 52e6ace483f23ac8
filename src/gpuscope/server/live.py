"""The fleet at a glance: every GPU with its state and holders, from native samples of any origin.

The same function reads this process's own snapshots, the embedded store, or another engine's answer to one
instant query, so the page shows the same thing over all of them. A number nobody gave has no key. The states,
worst first: lost, gone (its node has no samples any more), stale (nobody reads it), sick, throttled, then held
(somebody has it and it does nothing), busy, idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from gpuscope.health.thresholds import RECENT_XID_SECONDS, STALE_SECONDS, WORKING_RATIO
from gpuscope.health.throttles import HINDERING
from gpuscope.health.xids import explain_xid
from gpuscope.server.missing import NOTHING_MISSING, Gone, Missing, Sample

T = TypeVar("T")
_SESSION_TEXTS = {
    **{name: name for name in ("type", "command", "user", "namespace", "pod", "container")},
    "state": "state",  # of agents of earlier versions: a label there
    "slurm_job": "job",  # `job` itself is the scrape job's, in every Prometheus
}


@dataclass(slots=True)
class _Gpu:
    shown: dict[str, Any]
    instance: str
    up: bool = True
    throttled_by: set[str] = field(default_factory=set)
    sick_with: list[str] = field(default_factory=list)
    since: float | None = None
    lanes: float | None = None
    most_lanes: float | None = None


@dataclass(slots=True)
class _Tables:
    """Samples sorted by what they speak of, before anything is judged."""

    now: float
    gpus: dict[str, _Gpu] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    sessions: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    simulated: bool = False

    def gpu(self, labels: Mapping[str, str]) -> _Gpu:
        uuid = labels.get("uuid", "")
        known = self.gpus.get(uuid)
        if known is None:
            shown = {"uuid": uuid, "gpu": labels.get("gpu", "")}
            known = self.gpus[uuid] = _Gpu(shown, labels.get("instance", ""))
        return known

    def node(self, labels: Mapping[str, str]) -> dict[str, Any]:
        return self.nodes[labels.get("instance", "")]


def fleet_state(
    samples: Iterable[Sample],
    *,
    now: float,
    source: str,
    missing: Missing = NOTHING_MISSING,
) -> dict[str, Any]:
    """A node that is missing and there all the same counts as gone only if its numbers are stale."""
    gone, tables = missing.nodes, _Tables(now)
    sorters = _SORTERS
    for name, labels, value in chain(samples, missing.samples):
        sort_in = sorters.get(name)
        if sort_in is not None:
            sort_in(tables, labels, value)
    for instance in gone:
        tables.nodes[instance].setdefault("sources", [])
    nodes = [
        _node(instance, node, now, gone.get(instance))
        for instance, node in tables.nodes.items()
        if "taken_at" in node or instance in gone
    ]
    here = {node["name"] for node in nodes if "gone" not in node}
    # A node that came back under another address is not gone.
    nodes = [node for node in nodes if "gone" not in node or node["name"] not in here]
    names = {node["instance"]: node for node in nodes}
    sessions = _sessions(tables, names)
    state: dict[str, Any] = {
        "now": now,
        "simulated": tables.simulated,
        "source": source,
        "nodes": sorted(nodes, key=lambda node: str(node["name"])),
        "gpus": _gpus(tables, names, sessions, missing.unread),
        "sessions": sessions,
        "targets": [target.to_json() for target in missing.targets],
    }
    if taken := [node["taken_at"] for node in nodes if "taken_at" in node]:
        state["taken_at"] = max(taken)
    return state


Sorter = Callable[[_Tables, Mapping[str, str], float], None]


def _of_gpu(key: str) -> Sorter:
    def sort_in(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
        tables.gpu(labels).shown[key] = value

    return sort_in


def _of_gpu_where(label: str, text: str, key: str) -> Sorter:
    def sort_in(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
        if labels.get(label) == text:
            tables.gpu(labels).shown[key] = value

    return sort_in


def _of_session(key: str) -> Sorter:
    def sort_in(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
        place = (labels.get("uuid", ""), labels.get("pid", ""))
        tables.sessions.setdefault(place, {"labels": labels})[key] = value

    return sort_in


def _of_node(key: str) -> Sorter:
    def sort_in(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
        tables.node(labels)[key] = value

    return sort_in


def _sick_with(why: str) -> Sorter:
    def sort_in(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
        if value == 1:
            tables.gpu(labels).sick_with.append(why)

    return sort_in


def _gpu_info(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    gpu = tables.gpu(labels)
    gpu.shown["node"] = tables.node(labels)["name"] = labels.get("node", "")
    if model := labels.get("model"):
        gpu.shown["model"] = model


def _mig_info(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    shown = tables.gpu(labels).shown
    shown["parent"], shown["profile"] = labels.get("parent_uuid", ""), labels.get("profile", "")


def _gpu_up(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    tables.gpu(labels).up = value == 1


def _throttle_reason(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    if value == 1:
        tables.gpu(labels).throttled_by.add(labels.get("reason", ""))


def _xid_last(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    code = labels.get("xid", "")
    if tables.now - value < RECENT_XID_SECONDS and code.isdecimal() and explain_xid(int(code)).blames_gpu:
        gpu = tables.gpu(labels)
        gpu.sick_with.append(f"XID {labels.get('xid', '')}")
        gpu.since = value if gpu.since is None else max(gpu.since, value)


def _lanes(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    tables.gpu(labels).lanes = value


def _most_lanes(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    tables.gpu(labels).most_lanes = value


def _agent_info(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    tables.simulated = tables.simulated or labels.get("simulated") == "true"
    tables.node(labels)["name"] = labels.get("node", "") or labels.get("instance", "")


def _source_up(tables: _Tables, labels: Mapping[str, str], value: float) -> None:
    source = {"name": labels.get("source", ""), "up": value == 1}
    tables.node(labels).setdefault("sources", []).append(source)


_SORTERS: dict[str, Sorter] = {
    "gpuscope_gpu_info": _gpu_info,
    "gpuscope_mig_info": _mig_info,
    "gpuscope_gpu_up": _gpu_up,
    "gpuscope_gpu_utilization_ratio": _of_gpu("busy"),
    "gpuscope_gpu_memory_used_bytes": _of_gpu("memory_used"),
    "gpuscope_gpu_memory_total_bytes": _of_gpu("memory_total"),
    "gpuscope_gpu_power_watts": _of_gpu("power"),
    "gpuscope_gpu_power_limit_watts": _of_gpu_where("limit", "enforced", "power_limit"),
    "gpuscope_gpu_temperature_celsius": _of_gpu_where("sensor", "gpu", "temperature"),
    "gpuscope_gpu_sm_active_ratio": _of_gpu("sm"),
    "gpuscope_gpu_tensor_active_ratio": _of_gpu("tensor"),
    "gpuscope_gpu_dram_active_ratio": _of_gpu("dram"),
    "gpuscope_gpu_throttle_reason": _throttle_reason,
    "gpuscope_gpu_xid_last_timestamp_seconds": _xid_last,
    "gpuscope_gpu_row_remap_failed": _sick_with("row_remap_failed"),
    "gpuscope_gpu_row_remap_pending": _sick_with("row_remap_pending"),
    "gpuscope_gpu_retired_pages_pending": _sick_with("retired_pages_pending"),
    "gpuscope_gpu_pcie_link_width": _lanes,
    "gpuscope_gpu_pcie_link_width_max": _most_lanes,
    "gpuscope_process_memory_bytes": _of_session("memory"),
    "gpuscope_process_sm_ratio": _of_session("sm"),
    "gpuscope_process_active": _of_session("active"),
    "gpuscope_process_start_time_seconds": _of_session("since"),
    "gpuscope_agent_info": _agent_info,
    "gpuscope_agent_snapshot_timestamp_seconds": _of_node("taken_at"),
    "gpuscope_source_up": _source_up,
    "gpuscope_gpus_seen": _of_node("gpus_seen"),
    "gpuscope_gpus_expected": _of_node("gpus_expected"),
    "gpuscope_node_cpu_utilization_ratio": _of_node("cpu"),
    "node_load1": _of_node("load1"),
    "node_memory_MemTotal_bytes": _of_node("memory_total"),
    "node_memory_MemAvailable_bytes": _of_node("memory_available"),
}

FLAGS = frozenset(
    {
        "gpuscope_gpu_throttle_reason",
        "gpuscope_gpu_row_remap_failed",
        "gpuscope_gpu_row_remap_pending",
        "gpuscope_gpu_retired_pages_pending",
    }
)
"""Of these only a 1 says something: a 0 may be left out."""

LIVE_METRICS = tuple(sorted(_SORTERS))
LIVE_QUERY = '{__name__=~"' + "|".join(LIVE_METRICS) + '"}'


def _node(instance: str, node: dict[str, Any], now: float, gone: Gone | None) -> dict[str, Any]:
    stale = "taken_at" not in node or now - node["taken_at"] > STALE_SECONDS
    shown = {"name": instance, "sources": [], **node, "instance": instance, "stale": stale}
    if gone is not None and (stale or gone.since >= node["taken_at"]):
        shown["gone"] = gone.to_json()
    available = shown.pop("memory_available", None)
    if available is not None and "memory_total" in shown:
        shown["memory_used"] = shown["memory_total"] - available
    return shown


def _sessions(tables: _Tables, nodes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for (uuid, pid), found in tables.sessions.items():
        labels = found.pop("labels")
        node = nodes.get(labels.get("instance", ""))
        active = found.pop("active", None)
        row = {"uuid": uuid, "gpu": labels.get("gpu", ""), "pid": _number(pid, pid), **found}
        row["node"] = node["name"] if node else labels.get("instance", "")
        row |= {key: labels[name] for name, key in _SESSION_TEXTS.items() if labels.get(name)}
        row.setdefault("state", "unknown" if active is None else "active" if active else "idle")
        rows.append(row)
    return sorted(rows, key=lambda row: (str(row["node"]), str(row["gpu"]), str(row["pid"])))


def _gpus(
    tables: _Tables,
    nodes: Mapping[str, Mapping[str, Any]],
    sessions: Iterable[Mapping[str, Any]],
    unread: Mapping[str, float],
) -> list[dict[str, Any]]:
    holders: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for session in sessions:
        holders[str(session["uuid"])].append(session)
    shown = []
    for uuid, gpu in tables.gpus.items():
        node = nodes.get(gpu.instance)
        if node is None:
            continue
        gpu.shown["node"] = node["name"]
        on_it = holders.get(uuid, [])
        gpu.shown["processes"] = len(on_it)
        gpu.shown["users"] = sorted({str(session["user"]) for session in on_it if "user" in session})
        if gone := node.get("gone"):
            gpu.shown |= _state("gone", **_told(gone))
        elif gpu.instance in unread:
            gpu.shown |= _state("stale", since=unread[gpu.instance])
        else:
            gpu.shown |= _judged(gpu, bool(node["stale"]), on_it)
        shown.append(gpu.shown)
    _join_families(shown)
    return sorted(shown, key=_by_node_and_number)


def _number(text: str, otherwise: T) -> int | T:
    """A label that should be a number: "¹" is a digit to Python, and JSON's encoder takes 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def _by_node_and_number(gpu: Mapping[str, Any]) -> tuple[str, list[int]]:
    return str(gpu["node"]), [_number(part, 0) for part in str(gpu["gpu"]).split("_")]


def _join_families(gpus: list[dict[str, Any]]) -> None:
    """A MIG instance has its GPU's model; a GPU that is split works if one of its instances does."""
    by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
    for gpu in gpus:
        parent = by_uuid.get(gpu.get("parent"))
        if parent is None:
            continue
        if "model" in parent:
            gpu.setdefault("model", parent["model"])
        order = ("idle", "held", "busy")
        if parent["state"] in order and gpu["state"] in order:
            parent["state"] = max(parent["state"], gpu["state"], key=order.index)


def _judged(gpu: _Gpu, stale: bool, sessions: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a GPU, why, and since when where that is known."""
    if not gpu.up:
        return _state("lost", gpu.sick_with[0] if gpu.sick_with else "", gpu.since)
    if stale:
        return _state("stale")
    sick_with = list(gpu.sick_with)
    if gpu.lanes is not None and gpu.most_lanes is not None and gpu.lanes < gpu.most_lanes:
        sick_with.append(f"PCIe x{gpu.lanes:.0f} of x{gpu.most_lanes:.0f}")
    if sick_with:
        return _state("sick", sick_with[0], gpu.since)
    hindered = next((reason for reason in HINDERING if reason in gpu.throttled_by), "")
    if hindered:
        return _state("throttled", hindered)
    working = gpu.shown.get("busy", gpu.shown.get("sm"))
    if working is not None and working >= WORKING_RATIO:
        return _state("busy")
    if sessions and all(session["state"] != "active" for session in sessions):
        starts = [float(session["since"]) for session in sessions if "since" in session]
        return _state("held", "", min(starts) if starts else None)
    return _state("busy" if sessions else "idle")


def _told(gone: Mapping[str, Any]) -> dict[str, Any]:
    return {"why": gone["why"], "since": gone["since"]}


def _state(state: str, why: str = "", since: float | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"state": state}
    if why:
        told["why"] = why
    if since is not None:
        told["since"] = since
    return told
