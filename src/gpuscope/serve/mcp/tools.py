"""The table of tools: what an assistant can ask, in the order in which it would."""

from __future__ import annotations

from typing import Any, Final

from gpuscope.serve.api_types.findings_json import FindingJson
from gpuscope.serve.api_types.live_json import LiveCounts, LiveGpu
from gpuscope.serve.api_types.report_json import JobGpuJson, ReportInvariantJson, ReportRowJson
from gpuscope.serve.explanations import KINDS
from gpuscope.serve.mcp import questions
from gpuscope.serve.mcp.questions import (
    GPU_METRICS,
    Change,
    ExplainedFact,
    HistoryPoint,
    SeenHere,
    SummaryNode,
    UsedGpu,
)
from gpuscope.serve.mcp.tool import Schema, Tool


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


SINCE: Final = _text("start of the range: 7d, 12h, 2026-10-01 or an RFC 3339 time")
UNTIL: Final = _text("end of the range, as `since`; now if left out")


_OWNER_ARGUMENTS: Final = {
    "node": _text("only this node"),
    "user": _text("only this user"),
    "job": _text("only this Slurm job"),
    "pod": _text("only this pod, as name or namespace/name"),
}


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool(
            "fleet_summary",
            "Fleet summary",
            "How many GPUs there are, in use, free and in trouble, and the state of every node's GPUs now.",
            questions.fleet_summary,
            SummaryNode,
            "nodes",
            facts={"counts": LiveCounts, "findings_by_severity": dict[str, int], "now": float},
        ),
        Tool(
            "findings",
            "Findings",
            "What is wrong, since when, whose it is, what it costs in GPU-hours, the next step, and the PromQL "
            "that proves it. Of now, most severe first; with `since`, of a time range, most expensive first. "
            "`not_known` and `missing` say what could not be judged: no finding of it says nothing.",
            questions.findings,
            FindingJson,
            "findings",
            {
                "since": SINCE,
                "until": UNTIL,
                "node": _text("only this node"),
                "kind": _text("only this kind, such as held_idle"),
            },
            facts={"not_known": list[str], "missing": list[str]},
        ),
        Tool(
            "who_uses",
            "Who uses GPUs",
            "The GPUs that are in use now, with their users, Slurm jobs, pods and processes.",
            questions.who_uses,
            UsedGpu,
            "gpus",
            _OWNER_ARGUMENTS,
        ),
        Tool(
            "free_gpus",
            "Free GPUs",
            "GPUs that no process and no scheduler has now. A GPU about which that is not known is not listed.",
            questions.free_gpus,
            LiveGpu,
            "gpus",
            {
                "count": {"type": "integer", "minimum": 1, "description": "only nodes with so many free GPUs"},
                "memory_bytes": {"type": "integer", "minimum": 0, "description": "free memory that each needs"},
                "model": _text("a part of the model's name, such as H100"),
            },
        ),
        Tool(
            "gpu_history",
            "History of a GPU",
            "A metric of one GPU over time, with minimum, average and maximum. Times without a point are gaps.",
            questions.gpu_history,
            HistoryPoint,
            "points",
            {
                "gpu": _text("UUID, or node:index such as gpu-a01:3"),
                "metric": _text("which metric; utilization if left out", enum=list(GPU_METRICS)),
                "since": _text("how long, such as 6h or 7d; 6h if left out"),
            },
            ("gpu",),
            {
                "gpu": LiveGpu,
                "query": str,
                "minimum": float | None,
                "maximum": float | None,
                "average": float | None,
            },
        ),
        Tool(
            "job_receipt",
            "Receipt of a job",
            "What one Slurm job or pod requested, held and used: GPUs, hours, efficiency, energy, runs, notes.",
            questions.job_receipt,
            JobGpuJson,
            "gpus",
            {"id": _text("job number such as 4711 or 9_1, or namespace/pod"), "since": SINCE},
            ("id",),
            {"receipt": dict[str, Any]},
        ),
        Tool(
            "usage_report",
            "Usage report",
            "GPU-hours held, busy and idle by user, account, pod, namespace, job, node or model over a time "
            "range. `invariant` says where every GPU-hour went.",
            questions.usage_report,
            ReportRowJson,
            "rows",
            {
                "by": _text(
                    "what a row is; user if left out",
                    enum=["user", "account", "pod", "namespace", "job", "node", "model"],
                ),
                "kind": _text("idle sorts by idle hours", enum=["usage", "idle"]),
                "since": SINCE,
                "until": UNTIL,
            },
            facts={
                "by": str,
                "start": float,
                "end": float,
                "sum": ReportRowJson,
                "invariant": ReportInvariantJson,
                "missing": list[str],
                "rows_left_out": int,
            },
        ),
        Tool(
            "explain",
            "Explain",
            "What an error code, throttle reason, GPU state, alert or metric means, its usual cause, the next "
            "step, and on which GPUs here it was seen.",
            questions.explain,
            SeenHere,
            "seen",
            {
                "name": _text("79, hw_thermal_slowdown, held, HeldIdle, gpuscope_gpu_power_watts"),
                "kind": _text("needed only if a name is of several kinds", enum=list(KINDS)),
            },
            ("name",),
            {"title": str, "facts": list[ExplainedFact]},
        ),
        Tool(
            "what_changed",
            "What changed",
            "What began, ended, came and went on the fleet or a node within a time range before now.",
            questions.what_changed,
            Change,
            "changes",
            {"since": _text("how long, such as 1h; 1h if left out"), "node": _text("only this node")},
            facts={"since": float, "until": float},
        ),
        Tool(
            "promql",
            "PromQL",
            "Any PromQL query, at one time or over a range, within the server's limits of time and samples.",
            questions.promql,
            Any,
            "result",
            {
                "query": _text("the expression"),
                "time": _text("RFC 3339 or seconds since the epoch; now if left out"),
                "start": _text("start of a range"),
                "end": _text("end of a range"),
                "step": _text("step of a range, such as 60s"),
            },
            ("query",),
            {"result_type": str, "warnings": list[str]},
        ),
    )
}
