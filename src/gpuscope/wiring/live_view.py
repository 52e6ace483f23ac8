"""Builds the live picture's origin: this process, the embedded store or another engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gpuscope.collect.collector import Collector
from gpuscope.health.facts import Sample
from gpuscope.promql import Engine
from gpuscope.promql.result import Vector
from gpuscope.scrape.scraper import Scraper
from gpuscope.scrape.target_state import TargetState
from gpuscope.server.api.proxy import RemoteApi
from gpuscope.server.fleet_judge import FleetJudge
from gpuscope.server.gone import GoneWatch
from gpuscope.server.live_metrics import LIVE_QUERIES
from gpuscope.server.live_samples import LiveSamples
from gpuscope.server.page_routes import LiveFleet
from gpuscope.server.unread_gpus import UnreadGpus


def live_from_collectors(collectors: Sequence[Collector], engine: Engine) -> LiveFleet:
    async def ask(expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        return await _ask_store(engine, expression, at)

    # A simulated fleet is always read, and its samples are too many to hold and read twice.
    watch = UnreadGpus(ask) if len(collectors) == 1 else None
    return LiveFleet(LiveSamples(collectors).read, "this process", watch, FleetJudge(ask))


def live_from_store(engine: Engine, scraper: Scraper) -> LiveFleet:
    async def ask(expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        return await _ask_store(engine, expression, at)

    return LiveFleet(lambda: _stored_samples(engine), "store", _watch_store(engine, scraper), FleetJudge(ask))


def live_from_engine(api: RemoteApi) -> LiveFleet:
    return LiveFleet(lambda: _engine_samples(api), api.url, _watch_engine(api), FleetJudge(api.query))


async def _stored_samples(engine: Engine) -> list[Sample]:
    now = time.time()
    samples: list[Sample] = []
    for query in LIVE_QUERIES:
        rows = await _ask_store(engine, query, now)
        samples += [(labels["__name__"], labels, value) for labels, value in rows]
    return samples


async def _ask_store(engine: Engine, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
    def ask() -> list[tuple[dict[str, str], float]]:
        result = engine.instant(expression, int(at * 1000))
        assert isinstance(result, Vector)  # noqa: S101 - every query of the live picture gives one
        return list(zip(map(dict, result.labels), result.values.tolist(), strict=True))

    return await asyncio.to_thread(ask)


def _watch_store(engine: Engine, scraper: Scraper) -> GoneWatch:
    async def states() -> list[TargetState]:
        return scraper.states()

    return GoneWatch(lambda expression, at: _ask_store(engine, expression, at), states)


def _watch_engine(api: RemoteApi) -> GoneWatch:
    async def states() -> list[TargetState]:
        down = [labels for labels, _ in await api.query("up == 0")]
        errors = await api.scrape_errors() if down else {}
        found = []
        for labels in down:
            url, error = errors.get((labels.get("job", ""), labels.get("instance", "")), ("", ""))
            found.append(TargetState(labels=labels, url=url, error=error))
        return found

    return GoneWatch(api.query, states, known_jobs_only=True)


async def _engine_samples(api: RemoteApi) -> list[Sample]:
    found = [row for query in LIVE_QUERIES for row in await api.query(query)]
    return [(labels.get("__name__", ""), labels, value) for labels, value in found]
