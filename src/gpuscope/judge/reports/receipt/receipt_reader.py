"""Reads a receipt from an engine: finds the job's series, its time, and what its GPUs did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gpuscope.base.go_quote import quote
from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import LabelledValue, QueryEngine, describe, labelled_values
from gpuscope.judge.checks.check import OWNER_LABELS
from gpuscope.judge.checks.checks import CHECKS, explaining_first
from gpuscope.judge.checks.finding import GpuKey, SubjectKey
from gpuscope.judge.checks.use_checks import IDLE_KINDS
from gpuscope.judge.checks.wait_checks import WAITS
from gpuscope.judge.reports.board_spans import board_spans
from gpuscope.judge.reports.counter_growth import (
    FINE_STEP_MS,
    MAX_FINE_POINTS,
    ChunkGrid,
    CounterGrowth,
    counter_growth,
)
from gpuscope.judge.reports.findings.finding_episodes import (
    Episode,
    episodes_by_subject,
    longest_run,
    seconds_within,
)
from gpuscope.judge.reports.findings.finding_windows import Window, read_windows
from gpuscope.judge.reports.findings.past_findings import failed, unread
from gpuscope.judge.reports.gpu_identities import GpuIdentities, gpu_key, read_gpu_identities, slice_share
from gpuscope.judge.reports.gpu_reporters import ALL_REPORTERS, GpuReporters, uuid_matcher
from gpuscope.judge.reports.receipt.job_question import (
    HELD_SECONDS,
    JobQuestion,
    find_job,
    find_later_runs,
    not_found,
)
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt, ReceiptGpu, find_notes
from gpuscope.judge.reports.report_range import HOUR, MINUTE_MS, RangePiece
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.reports.slurm_allocations import JOB_GRES, allocated_units, released_chunks
from gpuscope.model.vendor import idle_reasons

RUNNING_MS: Final = 120_000
"""A job whose last sample is younger runs."""
MARGIN_MS: Final = 60_000
MIN_SPAN_MS: Final = 1_000
KEPT_MS: Final = 360_000
"""How long an agent keeps the counters of a job that ended, and a scrape."""
NOTED_KINDS: Final = (*WAITS, "waits_for_rank", *IDLE_KINDS)
"""Findings that a receipt tells of: its GPUs waited, or were left idle."""
NOTED_CHECKS: Final = explaining_first(
    {CHECKS[kind] for noted in NOTED_KINDS for kind in (noted, *CHECKS[noted].explained_by)}
)
PastWindows = Callable[[int, int], Awaitable[Sequence[Window]]]
"""What is known of findings in a range."""
MAX_GPUS: Final = 4_096
LOOK_BEFORE_MS: Final = 600_000
MIN_STOPPED_SECONDS: Final = 30.0
"""Two scrapes: the end of a job is known to one of them."""
MIN_UNREAD_SECONDS: Final = 180.0
"""Shorter gaps come from the different read times of agents and schedulers."""
_NodeGpu = tuple[str, str]
"""Node and UUID: a job that held a GPU of two reporters of one node held one GPU."""
_COUNTERS: Final = {
    "held_seconds": HELD_SECONDS,
    "gpu_seconds": "gpuscope_owner_gpu_seconds_total",
    "busy_seconds": "gpuscope_owner_busy_seconds_total",
    "unknown_seconds": "gpuscope_owner_unknown_seconds_total",
    "energy_joules": "gpuscope_owner_energy_joules_total",
}


async def read_receipt(
    engine: QueryEngine, question: JobQuestion, past_windows: PastWindows | None = None
) -> JobReceipt:
    """Raises JobNotFound if the history has nothing of the job, UsageError if several have its name.
    `past_windows` are those of a ledger; without it the checks are evaluated over the job's time."""

    async def evaluate(start_ms: int, end_ms: int) -> Sequence[Window]:
        return await read_windows(engine, NOTED_CHECKS, start_ms, end_ms)

    filled_until_ms = (await describe(engine)).filled_until_ms
    is_filling = filled_until_ms is not None and question.start_ms < filled_until_ms < question.end_ms
    if filled_until_ms is not None and is_filling:
        question = replace(question, end_ms=filled_until_ms)
    question = await find_job(engine, question)
    begins = await find_later_runs(engine, question)
    runs: list[JobReceipt] = []
    ends = [*(begin_ms - MIN_SPAN_MS for begin_ms in begins), question.end_ms]
    for begin_ms, end_ms in zip([0, *begins], ends, strict=True):
        of_run = replace(question, start_ms=max(begin_ms, question.start_ms), end_ms=end_ms)
        receipt = await _read_run(engine, of_run, begin_ms, past_windows or evaluate)
        if receipt is not None:
            runs.append(receipt)
    if not runs:
        raise await not_found(engine, question)
    receipt = runs[-1]
    receipt.runs = [run.as_run() for run in runs]
    if len(runs) > 1 and receipt.waited_seconds is not None:  # since the run before
        waited = max(0.0, receipt.started_at - receipt.runs[-2].ended_at)
        receipt.waited_seconds = min(receipt.waited_seconds, waited)
    receipt.notes = find_notes(receipt)
    if is_filling and receipt.running:
        receipt.not_known.insert(0, ReportSentence("unknown.filling", at=question.end_ms // 1000))
    return receipt


async def _read_run(
    engine: QueryEngine, question: JobQuestion, begin_ms: int, past_windows: PastWindows
) -> JobReceipt | None:
    """None if the history has nothing of the job in this time; nothing before `begin_ms` is of this run."""
    spans = [await _find_span(engine, question), await _find_allocated_span(engine, question)]
    found = [span for span in spans if span is not None]
    if not found:
        return None
    start_ms, last_ms = max(found[0][0], begin_ms), found[0][1]
    # Its processes end with it or before it; what Slurm says of it is read once a minute.
    if found[-1][1] - last_ms > RUNNING_MS:
        last_ms = found[-1][1]
    reader = _ReceiptReader(engine, question, start_ms, max(last_ms, start_ms + MIN_SPAN_MS), past_windows)
    receipt = await reader.read()
    receipt.running = question.end_ms - last_ms < RUNNING_MS and await reader.is_here()
    return receipt


async def _find_span(engine: QueryEngine, question: JobQuestion) -> tuple[int, int] | None:
    """When it held its first GPU and its last: in coarse chunks, then two of them in fine steps."""
    selector = f"{_COUNTERS['held_seconds']}{{{question.matchers}}}"
    grid = ChunkGrid.of(question.start_ms, question.end_ms)
    coarse = await grid.read(engine, "last_over_time", selector)
    if not coarse.labels:
        return None
    chunks = np.flatnonzero(coarse.present.any(axis=0))
    fine_ms = max(FINE_STEP_MS, grid.step_ms // MAX_FINE_POINTS)

    def steps(chunk: int) -> tuple[int, int, int]:
        end_ms = int(coarse.times_ms[chunk])
        return end_ms - grid.step_ms + fine_ms, end_ms, fine_ms

    first, last = int(chunks[0]), int(chunks[-1])
    began = await engine.range(f"max(last_over_time({selector}[{duration_text(fine_ms)}]))", *steps(first))
    there = np.flatnonzero(began.present[0]) if began.labels else np.empty(0, np.int64)
    if not len(there):
        return int(coarse.times_ms[first]), int(coarse.times_ms[last])
    # The first value is for how long the agent had seen it then.
    start_ms = int(began.times_ms[there[0]]) - round(float(began.values[0, there[0]]) * 1000)
    # Its counters are there for minutes after its end, perhaps in the next chunk: it ended when they stopped.
    begin_ms, end_ms, _ = steps(last)
    grown = await engine.range(
        f"sum(last_over_time({selector}[{duration_text(2 * MINUTE_MS)}]))", begin_ms - KEPT_MS, end_ms, fine_ms
    )
    there = np.flatnonzero(grown.present[0]) if grown.labels else there[:0]
    if not len(there):
        return start_ms, int(coarse.times_ms[last])
    growing = np.flatnonzero(np.diff(grown.values[0, there]) > 0)
    return start_ms, int(grown.times_ms[there[growing[-1] + 1 if len(growing) else 0]])


async def _find_allocated_span(engine: QueryEngine, question: JobQuestion) -> tuple[int, int] | None:
    """Of a job that never had a process on a GPU, where no prolog tells its nodes: from Slurm's own series."""
    if question.kind != "job":
        return None
    grid = ChunkGrid.of(question.start_ms, question.end_ms)
    given = f"{JOB_GRES}{{{question.process_matchers}}}"
    coarse = await grid.read(engine, "count_over_time", given)
    if not coarse.labels:
        return None
    chunks = np.flatnonzero(coarse.present.any(axis=0))
    fine_ms = max(FINE_STEP_MS, grid.step_ms // MAX_FINE_POINTS)
    steps = f"(timestamp({given}))[{duration_text(grid.step_ms)}:{duration_text(fine_ms)}]"

    async def sample_ms(function: str, chunk: int, otherwise_ms: int) -> int:
        expression = f"{function}({function}_over_time({steps}))"
        times = await engine.instant(expression, int(coarse.times_ms[chunk]))
        return round(1000 * float(times.values[0])) if len(times.values) else otherwise_ms

    first, last = int(chunks[0]), int(chunks[-1])
    return (
        await sample_ms("min", first, int(coarse.times_ms[first])),
        await sample_ms("max", last, int(coarse.times_ms[last])),
    )


class _ReceiptReader:
    def __init__(
        self,
        engine: QueryEngine,
        question: JobQuestion,
        start_ms: int,
        end_ms: int,
        past_windows: PastWindows,
    ) -> None:
        self._engine = engine
        self._past_windows = past_windows
        self._question = question
        self._began_ms = start_ms
        self._ended_ms = end_ms
        # With margins: the samples of its start and end are up to a scrape interval away.
        self._start_ms = start_ms - MARGIN_MS
        self._end_ms = min(end_ms + MARGIN_MS, question.end_ms)
        self._reporters = ALL_REPORTERS
        self._is_slurm_read = False
        """Slurm was read while the job ran, but the job was not in its lists."""
        self._slurm_seconds = 0.0
        """From its start to its end, if Slurm's start is known."""

    async def read(self) -> JobReceipt:
        question = self._question
        gpus = await read_gpu_identities(self._engine, self._start_ms, self._end_ms)
        receipt = JobReceipt(question.kind, question.name, question.namespace)
        receipt.started_at = self._began_ms / 1000
        await self._read_scheduler(receipt)
        given = await self._read_allocated()
        if given:
            self._began_ms = min(self._began_ms, round(1000 * receipt.started_at))
            self._start_ms = self._began_ms - MARGIN_MS
        self._reporters = await self._read_reporters(given, gpus)
        units = await self._units(gpus)
        await self._add_allocated(units, given, gpus)
        receipt.gpus = sorted(units.values(), key=lambda one: (one.node, len(one.gpu), one.gpu))
        receipt.run_seconds = receipt.seen_seconds
        if self._slurm_seconds - receipt.seen_seconds >= MIN_STOPPED_SECONDS:
            receipt.run_seconds = self._slurm_seconds  # an agent was not running for a while
        # The driver counts throttling and XIDs of whole GPUs, and a GPU is read as a whole.
        boards = {gpu.uuid: gpus.board_uuid(gpu.uuid) for gpu in receipt.gpus}
        await self._read_throttling_and_xids(receipt, boards)
        await self._read_findings(receipt, gpus)
        await self._note_unread(receipt, boards)
        self._note_missing(receipt)
        return receipt

    async def is_here(self) -> bool:
        """Its processes or allocation, not only the counters that are kept for a while."""
        held = f"gpuscope_owner_gpus_held{{{self._question.matchers}}}"
        return bool(labelled_values(await self._engine.instant(held, self._question.end_ms)))

    async def _read_reporters(self, given: Collection[GpuKey], gpus: GpuIdentities) -> GpuReporters:
        held = f"{HELD_SECONDS}{{{self._question.matchers}}}"
        series = await self._engine.series([held], self._start_ms, self._end_ms)
        uuids = {dict(labels).get("uuid", "") for labels in series} | {uuid for _, uuid in given}
        boards = uuid_matcher({gpus.board_uuid(uuid) for uuid in uuids})
        piece = RangePiece(self._start_ms, self._end_ms, "samples")
        _, reporters = await board_spans(self._engine, [piece], gpus.parents, boards)
        return reporters

    async def _growth(self, selector: str, start_ms: int, end_ms: int) -> CounterGrowth:
        return await counter_growth(self._engine, selector, start_ms, end_ms, self._reporters)

    async def _units(self, gpus: GpuIdentities) -> dict[_NodeGpu, ReceiptGpu]:
        units: dict[_NodeGpu, ReceiptGpu] = {}
        for attribute, metric in _COUNTERS.items():
            selector = f"{metric}{{{self._question.matchers}}}"
            grown = await self._growth(selector, self._start_ms, self._end_ms)
            for pairs, total in zip(grown.labels, grown.totals.tolist(), strict=True):
                labels = dict(pairs)
                key = _node_gpu(labels, gpus)
                if self._reporters.turns_of(pairs) == []:
                    continue
                if key not in units and (attribute != "held_seconds" or len(units) >= MAX_GPUS):
                    continue
                unit = units.setdefault(key, _new_unit(labels, gpus))
                setattr(unit, attribute, (getattr(unit, attribute) or 0.0) + total)
        own, held = self._question.matchers, self._uuids(uuid for _, uuid in units)
        for attribute, selector in (
            ("memory_peak_bytes", f"gpuscope_owner_memory_bytes{{{own}}}"),
            ("longest_idle_seconds", f"gpuscope_owner_idle_seconds{{{own}}}"),
            ("memory_total_bytes", f"gpuscope_gpu_memory_total_bytes{{{held}}}"),
        ):
            for labels, value in await self._highest(selector):
                key = _node_gpu(labels, gpus)
                if key in units:
                    setattr(units[key], attribute, max(value, getattr(units[key], attribute) or 0.0))
        return units

    async def _read_allocated(self) -> set[GpuKey]:
        """What Slurm gave the job, whether or not its nodes have a prolog that tells their agents."""
        question = self._question
        if question.kind != "job":
            return set()
        span = self._start_ms, self._end_ms
        units = await allocated_units(self._engine, question.process_matchers, *span)
        return units.get(question.name, set())

    async def _add_allocated(
        self, units: dict[_NodeGpu, ReceiptGpu], given: Collection[GpuKey], gpus: GpuIdentities
    ) -> None:
        """A GPU that was given to the job is held as long as it was read while the job had it."""
        if not given:
            return
        boards = self._uuids(gpus.board_uuid(uuid) for _, uuid in given)
        observed = f"gpuscope_gpu_observed_seconds_total{{{boards}}}"
        grown = await self._growth(observed, self._began_ms, self._ended_ms)
        seconds = {
            gpu_key(labels): (labels, amounts)
            for labels, amounts in zip(map(dict, grown.labels), grown.by_chunk, strict=True)
        }
        released = await released_chunks(self._engine, self._question.process_matchers, grown.chunks)
        nothing = np.zeros(grown.chunks.count)
        totals: dict[_NodeGpu, float] = defaultdict(float)
        labels_of: dict[_NodeGpu, dict[str, str]] = {}
        for unit_key in sorted(given)[:MAX_GPUS]:
            instance, uuid = unit_key
            labels, amounts = seconds.get((instance, gpus.board_uuid(uuid)), ({}, nothing))
            labels = {**labels, "instance": instance, "uuid": uuid}
            key = _node_gpu(labels, gpus)
            totals[key] += float(np.where(released.get(unit_key, False), 0.0, amounts).sum())
            labels_of.setdefault(key, labels)
        for key, total in totals.items():
            unit = units.get(key) or _new_unit(labels_of[key], gpus)
            more = total - unit.held_seconds
            if more < MARGIN_MS / 1000:  # the read times of agents and scheduler differ
                continue
            units[key] = unit
            unit.held_seconds += more
            unit.gpu_seconds += more * slice_share(unit.profile, unit.model)
            unit.busy_seconds = unit.busy_seconds or 0.0  # no process: nothing of it is unknown

    async def _highest(self, selector: str) -> list[LabelledValue]:
        expression = f"max_over_time({selector}[{duration_text(self._end_ms - self._start_ms)}])"
        return labelled_values(await self._engine.instant(expression, self._end_ms))

    def _uuids(self, uuids: Iterable[str]) -> str:
        """A matcher for them. UUIDs have no characters that a regular expression knows."""
        listed = "|".join(sorted({uuid for uuid in uuids if uuid.replace("-", "").isalnum()}))
        return f"uuid=~{quote(listed)}"

    async def _read_scheduler(self, receipt: JobReceipt) -> None:
        question, span = self._question, (self._start_ms, self._end_ms)
        if question.kind == "pod":
            selector = f"gpuscope_allocation_used{{{question.process_matchers}}}"
            allocated = await self._engine.series([selector], *span)
            # A node that is pushed and scraped has each of them twice.
            gpus = {
                tuple(pair for pair in labels if pair[0] not in ("instance", "job")) for labels in allocated
            }
            receipt.requested_gpus = float(len(gpus)) if gpus else None
            return
        job = question.process_matchers
        for labels in await self._engine.series(
            [f"gpuscope_job_info{{{job}}}", f"gpuscope_slurm_job_info{{{job}}}"], *span
        ):
            found = dict(labels)
            receipt.user = found.get("user", "") or receipt.user
            receipt.account = found.get("account", "") or receipt.account
            receipt.partition = found.get("partition", "") or receipt.partition
            if found["__name__"] == "gpuscope_slurm_job_info":
                receipt.job_name = found.get("name", "")
        receipt.requested_gpus = await self._last(f"gpuscope_slurm_job_gpus{{{job}}}")
        submitted = await self._last(f"gpuscope_slurm_job_submit_timestamp_seconds{{{job}}}")
        started = await self._last(f"gpuscope_slurm_job_start_timestamp_seconds{{{job}}}")
        ends = await self._last(f"gpuscope_slurm_job_end_timestamp_seconds{{{job}}}")
        if submitted is not None and started is not None:
            receipt.waited_seconds = max(0.0, started - submitted)
        if ends is not None and started is not None and ends > started:
            receipt.limit_seconds = ends - started
        if submitted is None or receipt.requested_gpus is None:
            self._is_slurm_read = await self._last("gpuscope_slurm_up") == 1
        if started is not None:
            receipt.started_at = started
            self._slurm_seconds = self._ended_ms / 1000 - started

    async def _last(self, selector: str) -> float | None:
        length = self._end_ms - self._start_ms
        found = labelled_values(
            await self._engine.instant(
                f"max(last_over_time({selector}[{duration_text(length)}]))", self._end_ms
            )
        )
        return found[0][1] if found else None

    async def _read_throttling_and_xids(self, receipt: JobReceipt, boards: Mapping[str, str]) -> None:
        uuids = self._uuids(boards.values())
        if not boards:
            return
        # Without the margins: what happened before and after the job is not the job's.
        selector = f"gpuscope_gpu_throttled_seconds_total{{{uuids}}}"
        throttled = await self._growth(selector, self._began_ms, self._ended_ms)
        for pairs, total in zip(throttled.labels, throttled.totals.tolist(), strict=True):
            reason = dict(pairs).get("reason", "")
            if reason not in idle_reasons() and total >= 1:
                receipt.throttled_seconds[reason] = max(total, receipt.throttled_seconds.get(reason, 0.0))
        # With a margin: the XID that ended the job is scraped after its end.
        selector = f"gpuscope_gpu_xid_errors_total{{{uuids}}}"
        xids = await self._growth(selector, self._began_ms, self._end_ms)
        for pairs, total in zip(xids.labels, xids.totals.tolist(), strict=True):
            if round(total):
                code = dict(pairs).get("xid", "")
                receipt.xids[code] = receipt.xids.get(code, 0) + round(total)

    async def _read_findings(self, receipt: JobReceipt, gpus: GpuIdentities) -> None:
        """How much of the time findings said that a GPU of the job waits, and for how long that it is idle."""
        span = start_ms, end_ms = self._began_ms, self._ended_ms
        windows = await self._past_windows(*span)
        units = {(gpu.node, gpu.uuid): gpu for gpu in receipt.gpus}
        own = {subject for window in windows for subject in window.spans if self._is_own(subject)}
        waits: dict[str, list[Episode]] = defaultdict(list)
        idle: dict[_NodeGpu, list[Episode]] = defaultdict(list)
        identities = GpuIdentities(labels for window in windows for labels in window.gpus.values())
        for check, subject, episodes in episodes_by_subject(windows, NOTED_CHECKS, identities, *span, own):
            key = _node_gpu({"instance": subject.instance, "uuid": subject.uuid}, gpus)
            if key in units:
                kept = idle[key] if check.kind in IDLE_KINDS else waits[check.kind]
                kept += episodes
        for kind, episodes in waits.items():
            receipt.wait_shares[kind] = 1000 * seconds_within(episodes, *span) / (end_ms - start_ms)
        for key, episodes in idle.items():
            units[key].idle_episode_seconds = min(longest_run(episodes), units[key].held_seconds)
        receipt.not_known += [*unread(windows, *span), *failed(windows, NOTED_KINDS)]

    def _is_own(self, subject: SubjectKey) -> bool:
        owner = dict(zip(OWNER_LABELS, subject.owner, strict=bool(subject.owner)))
        return subject.kind in NOTED_KINDS and self._question.is_owner(owner)

    async def _note_unread(self, receipt: JobReceipt, boards: Mapping[str, str]) -> None:
        """Time of the job in which its GPUs were not read: before their history begins, and gaps in it."""
        observed = f"gpuscope_gpu_observed_seconds_total{{{self._uuids(boards.values())}}}"
        start_ms, end_ms = self._began_ms, self._ended_ms
        unread_seconds = start_ms / 1000 - receipt.started_at
        if unread_seconds >= MIN_UNREAD_SECONDS:
            hours = unread_seconds / HOUR
            receipt.not_known.append(ReportSentence("unknown.first_hours", hours=hours, at=start_ms // 1000))
        elif receipt.waited_seconds is None and not await self._was_read_before(observed, start_ms):
            receipt.not_known.append(ReportSentence("unknown.before", at=start_ms // 1000))
        grown = await self._growth(observed, start_ms, end_ms)
        read_seconds: dict[str, float] = {}
        for pairs, total in zip(grown.labels, grown.totals.tolist(), strict=True):
            uuid = dict(pairs).get("uuid", "")
            read_seconds[uuid] = read_seconds.get(uuid, 0.0) + total
        length = (end_ms - start_ms) / 1000
        # Of a GPU that the job held for a part of its time, a gap need not be in that part.
        lost = [
            min(length - read_seconds[boards[gpu.uuid]], length - gpu.held_seconds)
            for gpu in receipt.gpus
            if boards[gpu.uuid] in read_seconds
        ]
        lost_seconds = sum(one for one in lost if one >= MIN_UNREAD_SECONDS)
        if lost_seconds:
            receipt.not_known.append(ReportSentence("unknown.gaps", hours=lost_seconds / HOUR))

    async def _was_read_before(self, observed: str, start_ms: int) -> bool:
        expression = f"count(last_over_time({observed}[{duration_text(LOOK_BEFORE_MS)}]))"
        return bool(labelled_values(await self._engine.instant(expression, start_ms - MIN_SPAN_MS)))

    def _note_missing(self, receipt: JobReceipt) -> None:
        unknown = receipt.not_known
        if receipt.unknown_hours > 0.001:
            unknown.append(ReportSentence("unknown.work", hours=receipt.unknown_hours))
        not_listed = "_not_listed" if self._is_slurm_read else ""
        if receipt.requested_gpus is None:
            unknown.append(ReportSentence(f"unknown.requested_{receipt.kind}{not_listed}"))
        if receipt.kind == "job" and receipt.waited_seconds is None:
            unknown.append(ReportSentence(f"unknown.waited{not_listed}"))
        if all(gpu.memory_peak_bytes is None for gpu in receipt.gpus):
            unknown.append(ReportSentence("unknown.memory"))
        if receipt.energy_kwh is None:
            unknown.append(ReportSentence("unknown.energy"))
        if len(self._question.array_tasks) > 1:
            others = len(self._question.array_tasks) - 1
            unknown.append(ReportSentence("unknown.array", count=others, job=self._question.name))
        where = f"seff {receipt.name}" if receipt.kind == "job" else "kubectl top pod"
        unknown.append(ReportSentence("unknown.host", command=where))


def _node_gpu(labels: Mapping[str, str], gpus: GpuIdentities) -> _NodeGpu:
    return gpus.node(labels), labels.get("uuid", "")


def _new_unit(labels: Mapping[str, str], gpus: GpuIdentities) -> ReceiptGpu:
    uuid = labels.get("uuid", "")
    return ReceiptGpu(
        node=gpus.node(labels),
        gpu=labels.get("gpu", ""),
        uuid=uuid,
        model=gpus.model(uuid),
        profile=gpus.profile(uuid),
    )
