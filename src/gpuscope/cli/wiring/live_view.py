"""Builds the live picture and findings over time, from this process, the embedded store or another engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from gpuscope.base.limits import Limits
from gpuscope.base.settings import Settings
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.engines.query_engine import LabelledValue, QueryEngine, labelled_values
from gpuscope.history.engines.vector_text import VectorText
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.history.store import Store
from gpuscope.history.store.tick import is_pushed
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.rates import parse_rates
from gpuscope.serve.live.collector_samples import CollectorSamples
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.gone_nodes import GoneWatch
from gpuscope.serve.live.judging import Judging
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.stored_samples import EngineSamples, StoreSamples
from gpuscope.serve.reports.findings_over_time import FindingsOverTime

if TYPE_CHECKING:  # a server that collects nothing itself does not need it
    from gpuscope.agent.collect.collector import Collector


def live_from_collectors(
    collectors: Sequence[Collector], store: Store, engine: QueryEngine, judging: Judging, limits: Limits
) -> LiveFleet:
    """This process's nodes, and those that send to it by remote write."""

    async def states() -> list[TargetHealth]:
        return []  # nothing is scraped

    history = _history_query(engine, limits)
    # Only targets that push: reading this process's own samples back would cost as much as collecting them.
    pushed = StoreSamples(store, is_target=is_pushed)
    return LiveFleet(
        CollectorSamples(collectors, pushed.samples).read,
        "this process",
        GoneWatch(history, states, limits=limits),
        FleetJudge(judging, limits.live_max_subjects),
        judging.wait_for_first,
    )


def live_from_store(
    store: Store, engine: QueryEngine, judging: Judging, scraper: Scraper, limits: Limits
) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        return scraper.states()

    history = _history_query(engine, limits)
    return LiveFleet(
        StoreSamples(store).read,
        engine.name,
        GoneWatch(history, states, limits=limits),
        FleetJudge(judging, limits.live_max_subjects),
        judging.wait_for_first,
        turn=scraper.counts.late.turn,
    )


def live_from_engine(engine: HttpEngine, judging: Judging, limits: Limits) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        vector = await engine.instant("up == 0", max_series=limits.live_max_subjects)
        down = [dict(labels) for labels in vector.labels]
        errors = await engine.scrape_errors() if down else {}
        found = []
        for labels in down:
            url, error = errors.get((labels.get("job", ""), labels.get("instance", "")), ("", ""))
            found.append(TargetHealth(labels=labels, url=url, error=error))
        return found

    live_engine = HttpEngine(engine.connection, vector_text=VectorText(engine.connection.memory))
    history = _history_query(engine, limits)
    return LiveFleet(
        EngineSamples(live_engine).read,
        engine.name,
        GoneWatch(history, states, known_jobs_only=True, limits=limits),
        FleetJudge(judging, limits.live_max_subjects),
        judging.wait_for_first,
    )


def findings_over_time(
    ledger: FindingLedger,
    live: LiveFleet,
    settings: Settings,
) -> FindingsOverTime:
    rates = parse_rates(settings.gpu_rate, origin="--gpu-rate") if settings.gpu_rate else None
    return FindingsOverTime(ledger, live, rates=rates, limits=settings)


def _history_query(
    engine: QueryEngine, limits: Limits
) -> Callable[[str, float], Awaitable[list[LabelledValue]]]:
    async def query_history(expression: str, at: float) -> list[LabelledValue]:
        at_ms, most = int(at * 1000), limits.live_max_subjects
        return labelled_values(await engine.instant(expression, at_ms, max_series=most))

    return query_history
