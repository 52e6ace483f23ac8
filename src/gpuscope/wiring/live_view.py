"""Builds the live picture and findings over time, from this process, the embedded store or another engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gpuscope.collect.collector import Collector
from gpuscope.engines.http_engine import HttpEngine
from gpuscope.engines.query_engine import LabelledValue, QueryEngine, labelled_values
from gpuscope.engines.vector_text import VectorText
from gpuscope.limits import Limits
from gpuscope.reports.rates import parse_rates
from gpuscope.scrape.scraper import Scraper
from gpuscope.scrape.target_health import TargetHealth
from gpuscope.server.engine_samples import EngineSamples
from gpuscope.server.findings_over_time import FindingsOverTime
from gpuscope.server.fleet_judge import FleetJudge
from gpuscope.server.gone import GoneWatch
from gpuscope.server.live_fleet import LiveFleet
from gpuscope.server.live_samples import LiveSamples
from gpuscope.server.store_samples import StoreSamples
from gpuscope.server.unread_gpus import UnreadGpus
from gpuscope.settings import Settings
from gpuscope.store import Store


def live_from_collectors(collectors: Sequence[Collector], engine: QueryEngine, limits: Limits) -> LiveFleet:
    # A simulated fleet is always read, and its samples are too many to hold and read twice.
    watch = UnreadGpus(_history_query(engine)) if len(collectors) == 1 else None
    judge = FleetJudge(_history_query(engine), limits.live_max_subjects)
    return LiveFleet(LiveSamples(collectors).read, "this process", watch, judge)


def live_from_store(store: Store, engine: QueryEngine, scraper: Scraper, limits: Limits) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        return scraper.states()

    return LiveFleet(
        StoreSamples(store).read,
        engine.name,
        GoneWatch(_history_query(engine), states),
        FleetJudge(_history_query(engine), limits.live_max_subjects),
    )


def live_from_engine(engine: HttpEngine, limits: Limits) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        down = [dict(labels) for labels in (await engine.instant("up == 0")).labels]
        errors = await engine.scrape_errors() if down else {}
        found = []
        for labels in down:
            url, error = errors.get((labels.get("job", ""), labels.get("instance", "")), ("", ""))
            found.append(TargetHealth(labels=labels, url=url, error=error))
        return found

    live_engine = HttpEngine(engine.connection, vector_text=VectorText(engine.connection.memory))
    return LiveFleet(
        EngineSamples(live_engine).read,
        engine.name,
        GoneWatch(_history_query(engine), states, known_jobs_only=True),
        FleetJudge(_history_query(engine), limits.live_max_subjects),
    )


def findings_over_time(
    engine: QueryEngine,
    live: LiveFleet,
    settings: Settings,
    filled_until_ms: Callable[[], int | None] = lambda: None,
) -> FindingsOverTime:
    rates = parse_rates(settings.gpu_rate, origin="--gpu-rate") if settings.gpu_rate else None
    return FindingsOverTime(engine, live, rates=rates, limits=settings, filled_until_ms=filled_until_ms)


def _history_query(engine: QueryEngine) -> Callable[[str, float], Awaitable[list[LabelledValue]]]:
    async def query_history(expression: str, at: float) -> list[LabelledValue]:
        return labelled_values(await engine.instant(expression, int(at * 1000)))

    return query_history
