"""A usage report as the JSON of `/api/report` and of `gpuscope report --json`."""

from __future__ import annotations

from gpuscope.judge.reports.report_range import RangePiece
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.reports.usage.usage import UsageBucket, UsageReport, UsageRow, total_row
from gpuscope.serve.api_types.report_json import (
    ReportAnswer,
    ReportBucketJson,
    ReportInvariantJson,
    ReportKind,
    ReportPieceJson,
    ReportRowJson,
    SentenceJson,
)


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
        "invariant": _invariant(report),
        "buckets": [_bucket(bucket) for bucket in report.buckets],
        "pieces": [_piece(piece) for piece in report.pieces],
        "missing": list(report.missing),
        "missing_keys": [sentence_json(one) for one in report.missing],
        "notes": list(report.notes),
        "notes_keys": [sentence_json(note) for note in report.notes],
    }
    if report.rates is not None:
        answer["rate"] = {"text": report.rates.text, "basis": report.rates.basis}
    if report.co2_grams_per_kwh is not None:
        answer["co2_grams_per_kwh"] = report.co2_grams_per_kwh
    return answer


def sentence_json(sentence: ReportSentence) -> SentenceJson:
    return {"key": sentence.key, "args": dict(sentence.args)}


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


def _invariant(report: UsageReport) -> ReportInvariantJson:
    parts = report.invariant
    return {
        "gpu_hours": parts.gpu_hours,
        "owners": parts.owners,
        "unattributed": parts.unattributed,
        "free": parts.free,
        "lost": parts.lost,
        "stranded": parts.stranded,
        "difference": parts.difference,
    }


def _bucket(one: UsageBucket) -> ReportBucketJson:
    return {
        "start": one.start_ms / 1000,
        "end": one.end_ms / 1000,
        "busy": one.busy,
        "idle": one.idle,
        "unknown": one.unknown,
        "free": one.free,
        "lost": one.lost,
        "stranded": one.stranded,
    }


def _piece(one: RangePiece) -> ReportPieceJson:
    return {"start": one.start_ms / 1000, "end": one.end_ms / 1000, "source": one.source}
