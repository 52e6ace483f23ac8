"""`GET /api/findings?since=7d`: what went wrong in a time range and what it cost, from any engine's history.

A ledger of the history is filled in the background, newest hours first, so that an answer takes milliseconds.
An answer waits a short time for hours that are missing, then says how many are. Parameters: `since` and `until`
(as `parse_range` reads them, dates in `time_zone`), `rate`, the price of a GPU-hour; `all=1`: no folding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import fsum
from typing import Final
from urllib.parse import parse_qs, urlencode

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.reports.findings.finding_ledger import WINDOW_MS, FindingLedger
from gpuscope.judge.reports.findings.finding_windows import Window
from gpuscope.judge.reports.findings.past_findings import PastFinding, PastFindings, past_findings
from gpuscope.judge.reports.rates import Rates, parse_rates
from gpuscope.judge.reports.report_range import ReportRange
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.findings_json import (
    CoverageJson,
    FoldedFindingsJson,
    PastFindingJson,
    PastFindingsAnswer,
)
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.picture import finding_json
from gpuscope.serve.reports.report_answers import sentence_json, shaped
from gpuscope.serve.reports.report_routes import read_range

log = logging.getLogger("gpuscope.findings")

DEFAULT_RANGE_SECONDS: Final = 7 * 86400.0
"""Read ahead in the background, and the range of the cost metric."""
MAX_FIELDS: Final = 20
WAIT_SECONDS: Final = 3.0
"""How long an answer waits for hours that are not read yet."""
WATCHED_WAIT_SECONDS: Final = 0.5
"""The same while the watch reads them anyway: the answer is there within a second."""
UPDATE_SECONDS: Final = 300.0
SOON_SECONDS: Final = 15.0
"""Until the next update while samples of the past still arrive, and in the first minutes."""
YOUNG_SECONDS: Final = 300.0
PAUSE_SHARE: Final = 1.0
"""Pause after reading a window, as a share of the time that it took: half of a core at most."""
MAX_PAUSE_SECONDS: Final = 10.0


class FindingsOverTime:
    def __init__(
        self,
        ledger: FindingLedger,
        live: LiveFleet,
        *,
        rates: Rates | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._ledger = ledger
        self._reading = asyncio.Lock()
        self._live = live
        self._rates = rates
        self._max_range_seconds = (limits or Limits()).findings_max_range
        self._clock = clock
        self._costs: dict[str, float] | None = None
        self._wait_seconds = wait_seconds
        self._behind: set[asyncio.Task[int]] = set()
        """What answers no longer wait for. The event loop itself keeps no task alive."""
        self._episode = EpisodeLog(log, "findings over time")

    async def answer(self, request: Request) -> Response:
        try:
            now = self._clock()
            asked, rates, is_folded = self._parse(request, now)
            body = await self._body(asked, int(now * 1000), rates, is_folded)
        except UsageError as error:
            return Response(failure("bad_data", str(error)), 400, JSON)
        except GpuscopeError as error:
            return Response(failure("unavailable", str(error)), 503, JSON)
        return Response(body, 200, JSON)

    def _parse(self, request: Request, now: float) -> tuple[ReportRange, Rates | None, bool]:
        try:
            fields = parse_qs(request.query.decode("latin-1"), max_num_fields=MAX_FIELDS)
        except ValueError:
            raise UsageError(
                f"more than {MAX_FIELDS} parameters; there are since, until, time_zone, rate and all"
            ) from None
        values = {name: found[0] for name, found in fields.items()}
        asked = read_range({"since": "", **values}, now)
        if now - asked.start_ms / 1000 > self._max_range_seconds:
            LIMITS_REACHED.count("findings_max_range")
            days = self._max_range_seconds / 86400
            raise UsageError(
                f"since: {values['since']!r} is more than {days:g} days ago (--findings-max-range)"
            )
        rates = self._rates
        if values.get("rate"):
            rates = parse_rates(values["rate"], origin="rate")
        if rates is not None and rates.basis == "kWh":
            raise UsageError(f"rate: {rates.text!r} is per kWh; findings need a rate per GPU-hour")
        return asked, rates, values.get("all", "") not in ("1", "true")

    async def _body(self, asked: ReportRange, now_ms: int, rates: Rates | None, fold: bool) -> bytes:
        start_ms, end_ms = asked.start_ms, min(asked.end_ms, now_ms)
        filled_until_ms = self._ledger.filled_until_ms()
        if filled_until_ms is not None:
            end_ms = max(start_ms, min(end_ms, filled_until_ms))
        known_until_ms = await self._read(start_ms, end_ms, now_ms)
        windows = self._ledger.windows(start_ms, end_ms)
        make = partial(past_findings, windows, start_ms, min(end_ms, known_until_ms), rates=rates, fold=fold)

        def encode() -> bytes:
            found = make()
            if filled_until_ms is not None:
                sentence = ReportSentence("missing.filling", at=filled_until_ms / 1000)
                found.coverage.sentences.insert(0, sentence)
            return orjson.dumps(answer_json(found))

        return await asyncio.to_thread(encode)

    async def windows(self, start_ms: int, end_ms: int) -> list[Window]:
        """What is known of a range, for a receipt."""
        await self._read(start_ms, end_ms, int(self._clock() * 1000))
        return self._ledger.windows(start_ms, end_ms)

    async def _read(self, start_ms: int, end_ms: int, now_ms: int) -> int:
        """Waits a short time for what is missing; returns until when the history was read. A read that takes
        longer goes on behind the answer."""
        reading = asyncio.create_task(self._read_missing(start_ms, end_ms, now_ms))
        self._behind.add(reading)
        reading.add_done_callback(self._end_reading)
        done, _ = await asyncio.wait({reading}, timeout=self._wait_seconds)
        known_until_ms = self._ledger.known_until_ms
        return await reading if done or known_until_ms is None else known_until_ms

    def _end_reading(self, reading: asyncio.Task[int]) -> None:
        self._behind.discard(reading)
        if not reading.cancelled():
            reading.exception()  # retrieved: if no answer waits for it, the watch meets and logs the same

    async def _read_missing(self, start_ms: int, end_ms: int, now_ms: int) -> int:
        async with self._reading:
            known_until_ms = await self._ledger.update(now_ms)
        deadline = time.monotonic() + self._wait_seconds
        while time.monotonic() < deadline and await self._cover(start_ms, now_ms, end_ms):
            pass
        return known_until_ms

    async def _cover(self, start_ms: int, now_ms: int, end_ms: int | None = None) -> bool:
        async with self._reading:
            return await self._ledger.cover(start_ms, now_ms, end_ms)

    async def watch(self) -> None:
        """Keeps the last seven days read. Runs until it is cancelled."""
        self._wait_seconds = WATCHED_WAIT_SECONDS
        started = time.monotonic()
        while True:
            changed = False
            try:
                changed = await self.watch_once()
            except Exception as error:  # an error of the engine or a defect of ours must not stop the page
                self._episode.failed(str(error))
            else:
                self._episode.succeeded()
            is_young = time.monotonic() - started < YOUNG_SECONDS
            await asyncio.sleep(SOON_SECONDS if changed or is_young else UPDATE_SECONDS)

    async def watch_once(self) -> bool:
        """Reads what is new and what is missing; true if samples of the past came later."""
        now_ms = int(self._clock() * 1000)
        async with self._reading:
            changed = await self._ledger.recheck(now_ms)
            await self._ledger.update(now_ms)
        self._ledger.forget(now_ms - int(self._max_range_seconds * 1000) - 86_400_000)
        start_ms = now_ms - int(DEFAULT_RANGE_SECONDS * 1000)
        await self._cover_all(start_ms, now_ms)
        await self._live.refresh()
        windows = self._ledger.windows(start_ms, now_ms)
        found = await asyncio.to_thread(partial(past_findings, windows, start_ms, now_ms, fold=False))
        self._costs = costs_by_kind(found)
        return changed

    async def _cover_all(self, start_ms: int, now_ms: int) -> None:
        """Back to `start_ms`, and further while something lasts whose cost is not known from its beginning."""
        oldest_ms = now_ms - int(self._max_range_seconds * 1000)
        while True:
            began = time.monotonic()
            if await self._cover(start_ms, now_ms):
                await asyncio.sleep(min(MAX_PAUSE_SECONDS, PAUSE_SHARE * (time.monotonic() - began)))
            elif start_ms > oldest_ms and await self._has_older_losses():
                start_ms -= WINDOW_MS
            else:
                return

    async def _has_older_losses(self) -> bool:
        async with self._reading:  # what is known does not change meanwhile
            return await asyncio.to_thread(self._ledger.has_older_losses)

    def families(self) -> Iterator[MetricFamily]:
        counts = self._live.finding_counts
        if counts is not None:
            yield MetricFamily(
                "gpuscope_findings",
                "gauge",
                "Findings that hold now, by kind.",
                [Sample(LabelSet((("kind", kind),)), count) for kind, count in sorted(counts.items())],
            )
        if self._costs is not None:
            yield MetricFamily(
                "gpuscope_finding_cost_gpu_hours",
                "gauge",
                "GPU-hours that findings of this kind cost in the last seven days, or since the history began.",
                [Sample(LabelSet((("kind", kind),)), cost) for kind, cost in sorted(self._costs.items())],
            )


def costs_by_kind(found: PastFindings) -> dict[str, float]:
    costs = {one.kind: one.cost_gpu_hours for one in found.folded}
    for one in found.findings:
        if one.finding.cost_gpu_hours is not None:
            kind = one.finding.kind
            costs[kind] = costs.get(kind, 0.0) + one.finding.cost_gpu_hours
    return costs


def answer_json(found: PastFindings) -> PastFindingsAnswer:
    coverage = found.coverage
    answer: PastFindingsAnswer = {
        "since": found.start_ms / 1000,
        "until": found.end_ms / 1000,
        "findings": [_past_finding_json(finding, found) for finding in found.findings],
        "folded": [shaped(FoldedFindingsJson, folded) for folded in found.folded],
        "cost_gpu_hours": sum(costs_by_kind(found).values()),
        "cost": None,
        "unpriced_models": [model or "unknown" for model in found.unpriced_models],
        "coverage": shaped(
            CoverageJson,
            coverage,
            missing=list(coverage.sentences),
            missing_keys=[sentence_json(sentence) for sentence in coverage.sentences],
        ),
    }
    if found.rates is not None:
        answer["rate"] = found.rates.text
        costs = [*(finding.cost for finding in found.findings), *(one.cost for one in found.folded)]
        answer["cost"] = fsum(cost or 0.0 for cost in costs)
    return answer


def _past_finding_json(one: PastFinding, found: PastFindings) -> PastFindingJson:
    ends = {"from": str(found.start_ms // 1000), "to": str(found.end_ms // 1000)}
    return {
        **finding_json(one.finding),
        "hours": one.hours,
        "times": one.times,
        "cost": one.cost,
        "nodes": list(one.nodes),
        "jobs": list(one.jobs),
        "link": f"./#/explore?{urlencode({'q': one.finding.evidence, **ends})}",
    }
