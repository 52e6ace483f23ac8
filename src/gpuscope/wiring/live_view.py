"""The live view: its samples and what is missing, from this process, the embedded store or another engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gpuscope.collect.collector import Collector
from gpuscope.promql import Engine
from gpuscope.promql.result import Vector
from gpuscope.scrape.scraper import Scraper
from gpuscope.scrape.target_health import TargetHealth
from gpuscope.server.api.proxy import RemoteApi
from gpuscope.server.gone import GoneWatch
from gpuscope.server.live import LIVE_QUERY
from gpuscope.server.missing import Sample
from gpuscope.server.page_routes import LiveFleet
from gpuscope.server.unread_gpus import UnreadGpus
from gpuscope.wiring.own_samples import OwnSamples


def live_from_collectors(collectors: Sequence[Collector], engine: Engine) -> LiveFleet:
    # A simulated fleet is always read, and is too large to go through twice.
    unread = UnreadGpus(lambda expression, at: _ask_store(engine, expression, at))
    return LiveFleet(OwnSamples(collectors).read, "this process", unread if len(collectors) == 1 else None)


def live_from_store(engine: Engine, scraper: Scraper) -> LiveFleet:
    return LiveFleet(lambda: _stored_samples(engine), "store", _watch_store(engine, scraper))


def live_from_engine(api: RemoteApi) -> LiveFleet:
    return LiveFleet(lambda: _engine_samples(api), api.url, _watch_engine(api))


async def _stored_samples(engine: Engine) -> list[Sample]:
    rows = await _ask_store(engine, LIVE_QUERY, time.time())
    return [(labels["__name__"], labels, value) for labels, value in rows]


async def _ask_store(engine: Engine, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
    def ask() -> list[tuple[dict[str, str], float]]:
        result = engine.instant(expression, int(at * 1000))
        assert isinstance(result, Vector)  # noqa: S101 - every question of the live view gives one
        return list(zip(map(dict, result.labels), result.values.tolist(), strict=True))

    return await asyncio.to_thread(ask)


def _watch_store(engine: Engine, scraper: Scraper) -> GoneWatch:
    async def states() -> list[TargetHealth]:
        return scraper.states()

    return GoneWatch(lambda expression, at: _ask_store(engine, expression, at), states)


def _watch_engine(api: RemoteApi) -> GoneWatch:
    async def states() -> list[TargetHealth]:
        down = [labels for labels, _ in await api.query("up == 0")]
        errors = await api.scrape_errors() if down else {}
        found = []
        for labels in down:
            url, error = errors.get((labels.get("job", ""), labels.get("instance", "")), ("", ""))
            found.append(TargetHealth(labels=labels, url=url, error=error))
        return found

    return GoneWatch(api.query, states, known_jobs_only=True)


async def _engine_samples(api: RemoteApi) -> list[Sample]:
    found = await api.query(LIVE_QUERY)
    return [(labels.get("__name__", ""), labels, value) for labels, value in found]
