"""Builds the live picture's origin: this process, the embedded store or another engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gpuscope.collect.collector import Collector
from gpuscope.engines.http_engine import HttpEngine
from gpuscope.engines.query_engine import LabelledValue, QueryEngine, labelled_values
from gpuscope.health.facts import Sample
from gpuscope.scrape.scraper import Scraper
from gpuscope.scrape.target_health import TargetHealth
from gpuscope.server.fleet_judge import FleetJudge
from gpuscope.server.gone import GoneWatch
from gpuscope.server.live_metrics import LIVE_QUERIES
from gpuscope.server.live_samples import LiveSamples
from gpuscope.server.page_routes import LiveFleet
from gpuscope.server.unread_gpus import UnreadGpus


def live_from_collectors(collectors: Sequence[Collector], engine: QueryEngine) -> LiveFleet:
    # A simulated fleet is always read, and its samples are too many to hold and read twice.
    watch = UnreadGpus(_ask(engine)) if len(collectors) == 1 else None
    return LiveFleet(LiveSamples(collectors).read, "this process", watch, FleetJudge(_ask(engine)))


def live_from_store(engine: QueryEngine, scraper: Scraper) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        return scraper.states()

    return LiveFleet(
        lambda: _samples(engine), engine.name, GoneWatch(_ask(engine), states), FleetJudge(_ask(engine))
    )


def live_from_engine(engine: HttpEngine) -> LiveFleet:
    async def states() -> list[TargetHealth]:
        down = [dict(labels) for labels in (await engine.instant("up == 0")).labels]
        errors = await engine.scrape_errors() if down else {}
        found = []
        for labels in down:
            url, error = errors.get((labels.get("job", ""), labels.get("instance", "")), ("", ""))
            found.append(TargetHealth(labels=labels, url=url, error=error))
        return found

    return LiveFleet(
        lambda: _samples(engine),
        engine.name,
        GoneWatch(_ask(engine), states, known_jobs_only=True),
        FleetJudge(_ask(engine)),
    )


def _ask(engine: QueryEngine) -> Callable[[str, float], Awaitable[list[LabelledValue]]]:
    async def ask(expression: str, at: float) -> list[LabelledValue]:
        return labelled_values(await engine.instant(expression, int(at * 1000)))

    return ask


async def _samples(engine: QueryEngine) -> list[Sample]:
    found = [row for query in LIVE_QUERIES for row in labelled_values(await engine.instant(query))]
    return [(labels.get("__name__", ""), labels, value) for labels, value in found]
