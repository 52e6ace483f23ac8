"""The questions behind the tools: each asks this server's own API and lists what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import orjson

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_positive_duration
from gpuscope.serve.api_types.findings_json import FindingJson
from gpuscope.serve.api_types.live_json import LiveGpu, LiveSession
from gpuscope.serve.api_types.report_json import ReportRowJson
from gpuscope.serve.explanations import KINDS, find_kind
from gpuscope.serve.mcp.tool import Ask, Listing, WrongArgument

MAX_POINTS: Final = 240
MAX_PROCESSES: Final = 20_000
KNOWN_NODES: Final = "group by (instance) (gpuscope_gpu_info)"
PROCESSES: Final = (
    "max by (instance, gpu, uuid, pid, user, pod, slurm_job, command) (gpuscope_process_memory_bytes)"
)
GPU_METRICS: Final = {
    "utilization": "gpuscope_gpu_utilization_ratio",
    "memory_used_bytes": "gpuscope_gpu_memory_used_bytes",
    "power_watts": "gpuscope_gpu_power_watts",
    "temperature_celsius": 'gpuscope_gpu_temperature_celsius{sensor="gpu"}',
    "sm_active": "gpuscope_gpu_sm_active_ratio",
    "tensor_active": "gpuscope_gpu_tensor_active_ratio",
    "dram_active": "gpuscope_gpu_dram_active_ratio",
}


class SummaryNode(TypedDict):
    node: str
    is_stale: bool
    is_gone: bool
    gpus_by_state: dict[str, int]


class UsedGpu(LiveGpu):
    sessions: list[LiveSession]


class HistoryPoint(TypedDict):
    time: float
    value: float | None


class ExplainedFact(TypedDict):
    heading: str
    text: str


class SeenHere(TypedDict):
    """Where something that is explained was seen; for a count over many GPUs only the model."""

    node: str
    gpu: str
    model: str
    value: float | None
    """Times, or seconds."""


class Change(TypedDict):
    time: float | None
    """Null for a process: it came or went within the range."""
    what: str
    node: str
    text: str


async def fleet_summary(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    picture = await ask("/api/live")
    counts, nodes = picture["counts"], []
    by_node: dict[str, Counter[str]] = {node["name"]: Counter() for node in picture["nodes"]}
    for gpu in picture["gpus"]:
        by_node.setdefault(gpu["node"], Counter())[gpu["state"]] += 1
    for node in picture["nodes"]:
        row = {"node": node["name"], "is_stale": node["stale"], "is_gone": "gone" in node}
        nodes.append({**row, "gpus_by_state": dict(by_node[node["name"]])})
    severities = Counter(finding["severity"] for finding in picture["findings"])
    facts = {"counts": counts, "findings_by_severity": dict(severities), "now": picture["now"]}
    headline = (
        f"{counts['units']} GPUs and MIG instances on {len(nodes)} nodes: {counts['in_use']} in use, "
        f"{counts['free']} free; {sum(severities.values())} findings"
    )
    return Listing(nodes, lambda row: f"{row['node']}: {_states(row['gpus_by_state'])}", facts, headline)


def _states(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no GPUs"


async def findings(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    answer = await ask("/api/findings", since=arguments.get("since", ""), until=arguments.get("until", ""))
    node, kind = arguments.get("node", ""), arguments.get("kind", "")
    rows = [
        finding
        for finding in answer["findings"]
        if kind in ("", finding["kind"]) and node in ("", finding["node"], *finding.get("nodes", ()))
    ]
    kinds = [row["kind"] for row in answer.get("not_known", ())]
    facts = {"not_known": kinds, "missing": answer.get("coverage", {}).get("missing", [])}
    unknown = f"; not known: {', '.join([*kinds, *facts['missing']])}" if kinds or facts["missing"] else ""
    return Listing(rows, _finding_line, facts, f"{len(rows)} findings{unknown}")


def _finding_line(finding: FindingJson) -> str:
    cost = finding["cost_gpu_hours"]
    lost = "" if cost is None else f" ({cost:.1f} GPU-hours)"
    return f"[{finding['severity']}] {finding['node']}: {finding['why']}{lost} → {finding['next']}"


async def who_uses(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    picture = await ask("/api/live")
    sessions: dict[str, list[LiveSession]] = {}
    for session in picture["sessions"]:
        sessions.setdefault(session["uuid"], []).append(session)
    rows = [
        {**gpu, "sessions": sessions.get(gpu["uuid"], [])}
        for gpu in picture["gpus"]
        if gpu["in_use"] and _is_wanted(gpu, sessions.get(gpu["uuid"], []), arguments)
    ]
    return Listing(rows, _use_line, {}, f"{len(rows)} GPUs or MIG instances in use")


def _is_wanted(gpu: LiveGpu, sessions: Sequence[LiveSession], arguments: Mapping[str, Any]) -> bool:
    holders = {
        "node": {gpu["node"]},
        "user": {*gpu["users"], *(session.get("user", "") for session in sessions)},
        "job": {*gpu.get("jobs", ()), *(session.get("job", "") for session in sessions)},
        "pod": {*gpu.get("pods", ()), *(session.get("pod", "") for session in sessions)},
    }
    return all(arguments[name] in names for name, names in holders.items() if arguments.get(name))


def _use_line(row: Mapping[str, Any]) -> str:
    jobs = [f"job {job}" for job in row.get("jobs", ())]
    who = ", ".join([*row["users"], *jobs, *row.get("pods", ())]) or "owner not known"
    busy = "utilisation not known" if "busy" not in row else f"{row['busy']:.0%} busy"
    return f"{row['node']} GPU {row['gpu']}: {row['state']}, {busy}, {who}"


async def free_gpus(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    picture = await ask("/api/live")
    model, least = arguments.get("model", "").lower(), arguments.get("memory_bytes", 0)
    free = [
        gpu
        for gpu in picture["gpus"]
        if gpu["state"] == "idle" and model in gpu.get("model", "").lower() and _has_memory(gpu, least)
    ]
    per_node = Counter(gpu["node"] for gpu in free)
    rows = [gpu for gpu in free if per_node[gpu["node"]] >= arguments.get("count", 1)]
    return Listing(rows, _free_line, {}, f"{len(rows)} free GPUs or MIG instances that fit")


def _free_bytes(gpu: LiveGpu) -> float | None:
    total, used = gpu.get("memory_total"), gpu.get("memory_used")
    return None if total is None or used is None else total - used


def _has_memory(gpu: LiveGpu, least: float) -> bool:
    """A GPU whose memory is not known fits only if none is asked for."""
    free = _free_bytes(gpu)
    return least <= 0 if free is None else free >= least


def _free_line(gpu: LiveGpu) -> str:
    free = _free_bytes(gpu)
    memory = "memory not known" if free is None else f"{free / 2**30:.0f} GiB free"
    return f"{gpu['node']} GPU {gpu['gpu']}: {gpu.get('model', 'model not known')}, {memory}"


async def job_receipt(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    receipt = await ask("/api/job", id=arguments["id"], since=arguments.get("since", ""))
    gpus = receipt.pop("gpus")
    runs = len(receipt.get("runs", ()))
    headline = f"{receipt['kind']} {receipt['name']} of {receipt['user'] or 'an unknown user'}, {runs} runs"
    return Listing(gpus, lambda gpu: f"{gpu['node']} GPU {gpu['gpu']}", {"receipt": receipt}, headline)


async def usage_report(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    names = ("by", "kind", "since", "until")
    answer = await ask("/api/report", **{name: arguments[name] for name in names if arguments.get(name)})
    facts = {
        **{name: answer[name] for name in ("by", "start", "end", "total", "invariant", "missing")},
        "rows_left_out": answer["rows_left_out"],
    }
    facts["sum"] = facts.pop("total")  # `total` is the number of rows here
    headline = f"{answer['invariant']['gpu_hours']:.1f} GPU-hours by {answer['by']}"
    return Listing(answer["rows"], _usage_line, facts, headline)


def _usage_line(row: ReportRowJson) -> str:
    busy = "work not known" if row["busy_hours"] is None else f"{row['busy_hours']:.1f} h busy"
    return f"{row['name'] or 'not known'}: {row['gpu_hours']:.1f} GPU-hours held, {busy}"


async def gpu_history(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    picture = await ask("/api/live")
    gpu = _named_gpu(picture["gpus"], arguments["gpu"])
    selector = GPU_METRICS[arguments.get("metric", "utilization")]
    name, _, matchers = selector.partition("{")
    expression = f"{name}{{uuid={orjson.dumps(gpu['uuid']).decode()}{',' if matchers else '}'}{matchers}"
    seconds = _seconds(arguments.get("since", "6h"))
    step = max(15.0, seconds / MAX_POINTS)
    answer = await ask(
        "/api/v1/query_range",
        query=expression,
        start=str(picture["now"] - seconds),
        end=str(picture["now"]),
        step=f"{step:.0f}",
    )
    result = answer["data"]["result"]
    points = [
        {"time": time, "value": _number(value)} for time, value in (result[0]["values"] if result else ())
    ]
    known = [point["value"] for point in points if point["value"] is not None]
    facts = {
        "gpu": gpu,
        "query": expression,
        "minimum": min(known, default=None),
        "maximum": max(known, default=None),
        "average": sum(known) / len(known) if known else None,
    }
    spread = (
        f"minimum {facts['minimum']}, average {facts['average']}, maximum {facts['maximum']}"
        if known
        else "nothing is known"
    )
    headline = f"{gpu['node']} GPU {gpu['gpu']}: {len(points)} points of {name}: {spread}"
    return Listing(points, None, facts, headline)


def _named_gpu(gpus: Sequence[LiveGpu], name: str) -> LiveGpu:
    fitting = [gpu for gpu in gpus if name in (gpu["uuid"], f"{gpu['node']}:{gpu['gpu']}")]
    if len(fitting) != 1:
        raise WrongArgument(f"there is no GPU {name[:100]!r} now; name it by its UUID or as node:index")
    return fitting[0]


def _seconds(text: str) -> float:
    try:
        return parse_positive_duration(text)
    except (ValueError, GpuscopeError) as error:
        raise WrongArgument(f"since: {error}") from None


def _number(text: str) -> float | None:
    """None for NaN and the infinities, which JSON has not."""
    value = float(text)
    return value if abs(value) < float("inf") else None


async def explain(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    name = arguments["name"]
    try:
        explanation = KINDS[arguments.get("kind") or find_kind(name)].explain(name)
    except UsageError as error:
        raise WrongArgument(str(error)) from None
    seen = []
    if explanation.seen:
        seen = (await ask("/api/v1/query", query=explanation.seen))["data"]["result"]
    facts = [{"heading": heading, "text": text} for heading, text in explanation.facts]
    rows = [
        {
            "node": row["metric"].get("instance", ""),
            "gpu": row["metric"].get("gpu", ""),
            "model": row["metric"].get("model", ""),
            "value": _number(row["value"][1]),
        }
        for row in seen
    ]
    headline = "\n".join([explanation.title, *(f"{heading}: {text}" for heading, text in explanation.facts)])
    return Listing(rows, _seen_line, {"title": explanation.title, "facts": facts}, headline)


def _seen_line(row: Mapping[str, Any]) -> str:
    return f"seen here: {row['node']} GPU {row['gpu']} {row['model']}: {row['value']}"


async def promql(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    names = ("start", "end", "step") if arguments.get("start") else ("time",)
    path = "/api/v1/query_range" if arguments.get("start") else "/api/v1/query"
    answer = await ask(path, query=arguments["query"], **{name: arguments.get(name, "") for name in names})
    data = answer["data"]
    rows = data["result"] if data["resultType"] in ("vector", "matrix") else [data["result"]]
    facts = {"result_type": data["resultType"], "warnings": answer.get("warnings", [])}
    return Listing(rows, _series_line, facts, f"{len(rows)} series")


def _series_line(row: Any) -> str:
    return orjson.dumps(row).decode()


async def what_changed(ask: Ask, arguments: Mapping[str, Any]) -> Listing:
    """Findings that began or ended, and processes that came and went, in the range before now."""
    since, node = arguments.get("since", "1h"), arguments.get("node", "")
    picture = await ask("/api/live")
    end, begin = picture["now"], picture["now"] - _seconds(since)
    past = await ask("/api/findings", since=since)
    changes: list[Change] = [
        {"time": at, "what": what, "node": finding["node"], "text": finding["why"]}
        for finding in past["findings"]
        for what, at in (("finding began", finding["since"]), ("finding ended", finding["until"]))
        if at is not None and at >= begin
    ]
    changes += await _process_changes(ask, begin, end)
    if node:
        names = {node, *(known["instance"] for known in picture["nodes"] if known["name"] == node)}
        changes = [change for change in changes if change["node"] in names]
    changes.sort(key=lambda change: (change["time"] is None, -(change["time"] or 0), change["text"]))
    facts, headline = {"since": begin, "until": end}, f"{len(changes)} changes"
    return Listing(changes, lambda row: f"{row['what']}: {row['node']}: {row['text']}", facts, headline)


async def _process_changes(ask: Ask, begin: float, end: float) -> list[Change]:
    """Of nodes that are known at both times: of another nobody knows what came."""

    async def at(query: str, time: float) -> list[dict[str, str]]:
        answer = await ask("/api/v1/query", query=query, time=str(time), limit=str(MAX_PROCESSES))
        return [row["metric"] for row in answer["data"]["result"]]

    nodes = [{row["instance"] for row in await at(KNOWN_NODES, time)} for time in (begin, end)]
    known = nodes[0] & nodes[1]
    before, after = [
        {_process_key(row): row for row in await at(PROCESSES, time) if row["instance"] in known}
        for time in (begin, end)
    ]
    return [
        {"time": None, "what": what, "node": row["instance"], "text": _process_text(row)}
        for what, these, others in (("process came", after, before), ("process went", before, after))
        for key, row in these.items()
        if key not in others
    ]


def _process_key(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("instance", "uuid", "pid"))


def _process_text(labels: Mapping[str, str]) -> str:
    who = labels.get("pod") or labels.get("user") or "owner not known"
    job = f", job {labels['slurm_job']}" if labels.get("slurm_job") else ""
    return (
        f"GPU {labels.get('gpu', '')}: {labels.get('command', '')} (PID {labels.get('pid', '')}) of {who}{job}"
    )
