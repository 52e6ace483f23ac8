"""Evaluates the checks over an engine when they are due, and keeps what they say.

Input: the engine and the ledger of the past, which says when an episode began. Output: the open episodes, which
the live picture and the idle policy read. Runs beside the answers; an engine that is slow delays only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.go_quote import quote
from gpuscope.base.limits import Limits
from gpuscope.history.engines.query_engine import (
    EngineError,
    QueryEngine,
    instants,
    labelled_values,
    or_why_not,
)
from gpuscope.history.promql.result import Vector
from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.facts import ProcessFacts
from gpuscope.judge.checks.finding import SubjectKey
from gpuscope.judge.checks.findings import main_owner
from gpuscope.judge.checks.judgement import EVALUATED, JudgedMoment, Judgement, OpenEpisode
from gpuscope.judge.checks.use_checks import IDLE_KINDS
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger

log = logging.getLogger("gpuscope.live")

PAUSE_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
FIRST_SECONDS: Final = 2.0
MAX_LOOKED_UP: Final = 100
"""Lost GPUs whose owners are looked up."""


class Judging(Judgement):
    def __init__(
        self,
        engine: QueryEngine,
        ledger: FindingLedger | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        checks: Sequence[Check] = EVALUATED,
    ) -> None:
        super().__init__(checks)
        self._engine = engine
        self._ledger = ledger
        self._max_series = (limits or Limits()).live_max_subjects
        self._clock = clock
        self.idle: JudgedMoment | None = None
        """When those checks were last evaluated that say who leaves GPUs idle; for the idle policy's thread."""
        self._evaluated = asyncio.Event()
        self._episode = EpisodeLog(log, "checks")

    @property
    def version(self) -> Hashable:
        return super().version, 0 if self._ledger is None else self._ledger.version

    def open_now(self, began: Mapping[SubjectKey, float] | None = None) -> list[OpenEpisode]:
        if self._ledger is None:
            return super().open_now(began)
        stretches = self._ledger.open_stretches()
        episodes = super().open_now({subject: stretch.began for subject, stretch in stretches.items()})
        losses = {subject: stretch.loss for subject, stretch in stretches.items()}
        return [replace(episode, loss=losses.get(episode.condition.subject)) for episode in episodes]

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.evaluate_due()
            await asyncio.sleep(PAUSE_SECONDS)

    async def evaluate_due(self) -> None:
        # While the past is filled in, the samples of now are not stored: every check would say "nothing".
        if self._ledger is not None and self._ledger.filled_until_ms() is not None:
            self._evaluated.set()
            return
        at = self._clock()
        due = self.due(at)
        queries = [check.promql for check in due]
        vectors = await instants(
            self._engine,
            queries,
            int(at * 1000),
            max_series=self._max_series,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        for check, vector in zip(due, vectors, strict=True):
            await self._take(check, vector, at)
        self._log_failures()
        if any(check.kind in IDLE_KINDS for check in due):
            # Who acts on it does not act on the result before a failure, which findings show for a minute more.
            not_known = {**self.not_known, **self.failed}
            self.idle = JudgedMoment(at, self.open_now(), not_known)
        self._evaluated.set()

    async def wait_for_first(self) -> None:
        """Until every check was evaluated once, but not long: a picture without findings beats none."""
        if not self._evaluated.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._evaluated.wait(), FIRST_SECONDS)

    async def _take(self, check: Check, vector: Vector | EngineError, at: float) -> None:
        others: Vector | EngineError | None = None
        if check.others and not isinstance(vector, EngineError) and vector.labels:
            others = await or_why_not(self._instant(check.others, at))
        if isinstance(vector, EngineError) or isinstance(others, EngineError):
            failed = vector if isinstance(vector, EngineError) else others
            self.fail(check, str(failed), self._clock())
            return
        self.apply(check, vector, at, others)
        self.expire(self._clock())
        if check.kind == "gpu_lost" and vector.labels:
            await self._look_up_owners()

    async def _instant(self, promql: str, at: float) -> Vector:
        return await self._engine.instant(
            promql, int(at * 1000), max_series=self._max_series, timeout_seconds=TIMEOUT_SECONDS
        )

    async def _look_up_owners(self) -> None:
        """Who was on a GPU when it was lost: the owner of the process with the most memory."""
        lost = {
            (episode.condition.subject.instance, episode.condition.subject.uuid): episode.since
            for episode in self.open_now()
            if episode.condition.check.kind == "gpu_lost"
        }
        self.owners_before = {key: owner for key, owner in self.owners_before.items() if key in lost}
        unknown = sorted((key, since) for key, since in lost.items() if since and key not in self.owners_before)
        for (instance, uuid), since in unknown[:MAX_LOOKED_UP]:
            only = f"instance={quote(instance)},uuid={quote(uuid)}"
            try:
                vector = await self._instant(
                    f"last_over_time(gpuscope_process_memory_bytes{{{only}}}[5m])", since
                )
            except EngineError:
                continue  # the finding names nobody until the engine answers
            processes = [
                ProcessFacts(labels, {"gpuscope_process_memory_bytes": value})
                for labels, value in labelled_values(vector)
            ]
            owner = main_owner(processes)
            if owner is not None:
                self.owners_before[instance, uuid] = owner

    def _log_failures(self) -> None:
        if self.failed:
            kind, reason = next(iter(self.failed.items()))
            self._episode.failed(f"{len(self.failed)} cannot be evaluated, for example {kind}: {reason}")
        else:
            self._episode.succeeded()
