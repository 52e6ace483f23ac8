"""Usage reports and receipts as JSON: of `/api/report` and `/api/job`, and of `--json` in the CLI."""

from __future__ import annotations

from typing import Any

from gpuscope.judge.reports.receipt.job_receipt import JobReceipt, ReceiptGpu
from gpuscope.judge.reports.report_range import HOUR, RangePiece
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.reports.usage.usage import UsageBucket, UsageReport, UsageRow, total_row
from gpuscope.serve.api_types.report_json import (
    JobAnswer,
    JobGpuJson,
    JobRunJson,
    ReportAnswer,
    ReportBucketJson,
    ReportInvariantJson,
    ReportKind,
    ReportPieceJson,
    ReportRowJson,
    SentenceJson,
)


def shaped(shape: type, of: object, **others: object) -> Any:
    """A document of this shape, a TypedDict: each value is the attribute of its name, or one of `others`."""
    return {name: others[name] if name in others else getattr(of, name) for name in shape.__annotations__}


def sentence_json(sentence: ReportSentence) -> SentenceJson:
    return {"key": sentence.key, "args": dict(sentence.args)}


def job_answer(receipt: JobReceipt) -> JobAnswer:
    lowest, highest = receipt.spread or (None, None)
    answer: JobAnswer = shaped(
        JobAnswer,
        receipt,
        gpus=[_gpu(gpu) for gpu in receipt.gpus],
        lowest_busy_ratio=lowest,
        highest_busy_ratio=highest,
        runs=[shaped(JobRunJson, run) for run in receipt.runs],
        notes=[
            {**sentence_json(note.text), "text": note.text, "command": note.command} for note in receipt.notes
        ],
        not_known_keys=[sentence_json(sentence) for sentence in receipt.not_known],
    )
    return answer


def _gpu(gpu: ReceiptGpu) -> JobGpuJson:
    hours, unknown_hours = gpu.gpu_seconds / HOUR, gpu.unknown_seconds / HOUR
    shown: JobGpuJson = shaped(JobGpuJson, gpu, gpu_hours=hours, unknown_hours=unknown_hours)
    return shown


def usage_answer(report: UsageReport, kind: ReportKind, max_rows: int | None = None) -> ReportAnswer:
    rows = report.rows if max_rows is None else report.rows[:max_rows]
    answer: ReportAnswer = {
        "kind": kind,
        "by": report.by,
        "start": report.start_ms / 1000,
        "end": report.end_ms / 1000,
        "gpus": report.gpus,
        "rows": [_row(row) for row in rows],
        "total": _row(total_row(report.rows)),
        "rows_left_out": len(report.rows) - len(rows),
        "invariant": shaped(ReportInvariantJson, report.invariant),
        "buckets": [_between(ReportBucketJson, bucket) for bucket in report.buckets],
        "pieces": [_between(ReportPieceJson, piece) for piece in report.pieces],
        "missing": list(report.missing),
        "missing_keys": [sentence_json(sentence) for sentence in report.missing],
        "notes": list(report.notes),
        "notes_keys": [sentence_json(note) for note in report.notes],
    }
    if report.rates is not None:
        answer["rate"] = {"text": report.rates.text, "basis": report.rates.basis}
    if report.co2_grams_per_kwh is not None:
        answer["co2_grams_per_kwh"] = report.co2_grams_per_kwh
    return answer


def _row(row: UsageRow) -> ReportRowJson:
    return {
        "name": row.names[-1],
        "namespace": row.names[0] if len(row.names) == 2 else "",
        "gpu_hours": row.held,
        "busy_hours": row.busy,
        "idle_hours": row.idle,
        "unknown_hours": row.unknown,
        "idle_held_hours": row.idle_held,
        "energy_kwh": row.energy_kwh,
        "energy_is_estimate": row.is_energy_estimate,
        "cost": row.cost,
        "unpriced_hours": row.unpriced,
        "co2_kg": row.co2_kg,
    }


def _between(shape: type, one: UsageBucket | RangePiece) -> Any:
    return shaped(shape, one, start=one.start_ms / 1000, end=one.end_ms / 1000)
