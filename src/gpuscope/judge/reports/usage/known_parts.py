"""What a report does not know, in hours, and how its numbers were made: sentences for a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuscope.history.engines.query_engine import EngineInfo
from gpuscope.judge.reports.board_spans import OBSERVED, BoardSpan
from gpuscope.judge.reports.gpu_identities import GpuIdentities
from gpuscope.judge.reports.gpu_reporters import SILENT_MS
from gpuscope.judge.reports.report_range import DAY_MS, HOUR, HOUR_MS
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.reports.usage.usage import MAX_DIFFERENCE, UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_history import PieceRefused
from gpuscope.model.series import Labels

MAX_NODES_NAMED: Final = 5
MIN_LOST_HOURS: Final = 0.1
MIN_LATE_HOURS: Final = 0.02
"""About a minute: an agent's first sample is always a little late."""
CLOCK_SLACK: Final = 0.005
MIN_CLOCK_SECONDS: Final = 60.0
MAX_REASON: Final = 200


def find_missing(
    report: UsageReport,
    spans: Mapping[Labels, BoardSpan],
    wall: Mapping[Labels, float],
    observed: Mapping[Labels, float],
    gpus: GpuIdentities,
    refused: Sequence[PieceRefused],
    snapped_ms: int,
) -> Iterator[ReportSentence]:
    """`wall` and `observed` are seconds of each board."""
    hours_by_reason: dict[str, float] = defaultdict(float)
    for one in refused:
        hours_by_reason[str(one)[:MAX_REASON]] += one.piece.length_ms / HOUR_MS
    for reason, hours in hours_by_reason.items():
        yield ReportSentence("missing.refused", hours=hours, reason=reason)
    if snapped_ms:
        yield ReportSentence("missing.samples_gone", hours=snapped_ms / HOUR_MS)
    if not spans and refused:
        return
    if not spans:
        yield ReportSentence("missing.no_history", metric=OBSERVED.raw)
        return
    yield from _late_boards(report, spans, snapped_ms)
    yield from _lost_by_node(report, spans, wall, observed, gpus)
    yield from _fast_clocks(wall, observed, gpus)
    grouping = parse_grouping(report.by)
    if grouping.is_by_owner and not report.rows:
        held = report.invariant.unattributed
        yield ReportSentence("missing.no_owner", kind=grouping.kind, hours=held)
    if grouping.label and report.rows and all(row.names == ("",) for row in report.rows):
        yield ReportSentence("missing.no_label", label=report.by.removeprefix("label:"))
    if not report.invariant.holds:
        yield ReportSentence("missing.parts_differ", hours=report.invariant.difference)


def _late_boards(
    report: UsageReport, spans: Mapping[Labels, BoardSpan], snapped_ms: int
) -> Iterator[ReportSentence]:
    late = [span for span in spans.values() if not span.existed_before]
    begin_ms = report.start_ms + snapped_ms
    if late and len(late) == len(spans):
        hours = (min(span.begin_ms for span in late) - begin_ms) / HOUR_MS
        if hours > MIN_LATE_HOURS:
            yield ReportSentence("missing.late", hours=hours)
    elif late:
        yield ReportSentence("missing.first_seen", count=len(late), gpus=len(spans))
    left = [span for span in spans.values() if span.has_left]
    if left:
        yield ReportSentence("missing.left", count=len(left))


def _by_node(values: Mapping[Labels, float], gpus: GpuIdentities) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for labels, value in values.items():
        found[gpus.node(dict(labels))] += value
    return found


def _lost_by_node(
    report: UsageReport,
    spans: Mapping[Labels, BoardSpan],
    wall: Mapping[Labels, float],
    observed: Mapping[Labels, float],
    gpus: GpuIdentities,
) -> Iterator[ReportSentence]:
    """An agent that was down, or a GPU that did not answer."""
    lost = {labels: max(0.0, wall[labels] - observed.get(labels, 0.0)) / HOUR for labels in wall}
    nodes = sorted(_by_node(lost, gpus).items(), key=lambda one: -one[1])
    nodes = [(node, hours) for node, hours in nodes if hours >= MIN_LOST_HOURS]
    for node, hours in nodes[:MAX_NODES_NAMED]:
        last_ms = max(span.last_ms for labels, span in spans.items() if gpus.node(dict(labels)) == node)
        if report.end_ms - last_ms > SILENT_MS:
            yield ReportSentence("missing.silent_node", node=node, hours=hours, at=last_ms / 1000)
        else:
            yield ReportSentence("missing.node", node=node, hours=hours)
    if len(nodes) > MAX_NODES_NAMED:
        rest = sum(hours for _, hours in nodes[MAX_NODES_NAMED:])
        yield ReportSentence("missing.more_nodes", count=len(nodes) - MAX_NODES_NAMED, hours=rest)


def _fast_clocks(
    wall: Mapping[Labels, float], observed: Mapping[Labels, float], gpus: GpuIdentities
) -> Iterator[ReportSentence]:
    """More seconds than the range has: the node's clock, or that of the server that stored the samples."""
    excess = {
        labels: seconds - wall[labels]
        for labels, seconds in observed.items()
        if labels in wall and seconds - wall[labels] > max(MIN_CLOCK_SECONDS, CLOCK_SLACK * wall[labels])
    }
    for node in sorted(_by_node(excess, gpus))[:MAX_NODES_NAMED]:
        most = max(value for labels, value in excess.items() if gpus.node(dict(labels)) == node)
        yield ReportSentence("missing.fast_clock", node=node, hours=most / HOUR)


def early_notes(report: UsageReport, early_hours: float) -> Iterator[ReportSentence]:
    """`early_hours` are what the readings before the start add to GPUs × hours."""
    if early_hours > MAX_DIFFERENCE * report.invariant.gpu_hours:
        range_hours = (report.end_ms - report.start_ms) / HOUR_MS
        yield ReportSentence("note.early", hours=early_hours, range_hours=range_hours)


def source_notes(info: EngineInfo, report: UsageReport) -> list[ReportSentence]:
    """What was read, and how long it is kept."""
    notes = []
    hours = dict.fromkeys(("samples", "hourly", "daily"), 0.0)
    for piece in report.pieces:
        hours[piece.source] += piece.length_ms / HOUR_MS
    rolled_up = hours["hourly"] + hours["daily"]
    if rolled_up:
        notes.append(ReportSentence("note.rollups", hours=rolled_up, sample_hours=hours["samples"]))
    sentence = _retention(info, report, has_rollups=rolled_up > 0)
    if sentence is not None:
        notes.append(sentence)
    if any(row.is_energy_estimate for row in report.rows):
        notes.append(ReportSentence("note.mig_energy"))
    return notes


def _retention(info: EngineInfo, report: UsageReport, *, has_rollups: bool) -> ReportSentence | None:
    kept = info.retention_ms
    if info.rollup_retention_ms is not None and kept is not None:
        if not has_rollups:
            return None
        longer = info.rollup_retention_ms / DAY_MS
        return ReportSentence("note.kept", days=kept / DAY_MS, rollup_days=longer)
    if kept is None:
        return ReportSentence("note.retention_unknown") if has_rollups else None
    too_short = report.end_ms - report.start_ms > kept
    if has_rollups or too_short:
        return ReportSentence("note.kept_by_engine", product=info.product, days=kept / DAY_MS)
    return None
