"""A receipt as the JSON of `/api/job` and of `gpuscope job --json`."""

from __future__ import annotations

from gpuscope.judge.reports.receipt.job_receipt import HOUR, JobReceipt, ReceiptGpu
from gpuscope.serve.api_types.report_json import JobAnswer, JobGpuJson
from gpuscope.serve.reports.usage_answer import sentence_json


def job_answer(receipt: JobReceipt) -> JobAnswer:
    lowest, highest = receipt.spread or (None, None)
    return {
        "kind": receipt.kind,
        "name": receipt.name,
        "namespace": receipt.namespace,
        "user": receipt.user,
        "account": receipt.account,
        "partition": receipt.partition,
        "job_name": receipt.job_name,
        "running": receipt.is_running,
        "started_at": receipt.started_at,
        "run_seconds": receipt.run_seconds,
        "limit_seconds": receipt.limit_seconds,
        "waited_seconds": receipt.waited_seconds,
        "requested_gpus": receipt.requested_gpus,
        "gpus": [_gpu(gpu) for gpu in receipt.gpus],
        "gpu_hours": receipt.held_hours,
        "busy_hours": receipt.busy_hours,
        "unknown_hours": receipt.unknown_hours,
        "efficiency": receipt.efficiency,
        "efficiency_line": receipt.efficiency_line(),
        "lowest_busy_ratio": lowest,
        "highest_busy_ratio": highest,
        "idle_ratio": receipt.idle_ratio,
        "longest_idle_seconds": receipt.longest_idle_seconds,
        "peak_memory_ratio": receipt.peak_memory_ratio,
        "energy_kwh": receipt.energy_kwh,
        "energy_is_estimate": receipt.is_energy_estimate,
        "throttled_seconds": dict(receipt.throttled_seconds),
        "xids": dict(receipt.xids),
        "runs": [
            {
                "started_at": run.started_at,
                "ended_at": run.ended_at,
                "run_seconds": run.run_seconds,
                "gpus": run.gpus,
                "gpu_hours": run.held_hours,
                "efficiency": run.efficiency,
            }
            for run in receipt.runs
        ],
        "notes": [
            {**sentence_json(note.text), "text": note.text, "command": note.command} for note in receipt.notes
        ],
        "not_known": list(receipt.not_known),
        "not_known_keys": [sentence_json(one) for one in receipt.not_known],
    }


def _gpu(gpu: ReceiptGpu) -> JobGpuJson:
    return {
        "node": gpu.node,
        "gpu": gpu.gpu,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "profile": gpu.profile,
        "held_seconds": gpu.held_seconds,
        "gpu_hours": gpu.gpu_seconds / HOUR,
        "busy_ratio": gpu.busy_ratio,
        "unknown_hours": gpu.unknown_seconds / HOUR,
        "energy_joules": gpu.energy_joules,
        "memory_peak_bytes": gpu.memory_peak_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "longest_idle_seconds": gpu.longest_idle_seconds,
    }
