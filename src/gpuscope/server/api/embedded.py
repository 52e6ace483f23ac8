"""Prometheus' API over the embedded store: each function is one endpoint, from parameters to JSON bytes.

Queries run in threads, so that a slow one never holds up a scrape or another query; a client that goes away
cancels its query. What the store does not have yet (rules, alerts) is empty, as on a Prometheus without rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpuscope import __version__
from gpuscope.promql import Engine, PromQLError, format_query, parse
from gpuscope.promql.result import Result, Scalar, Text, first_series
from gpuscope.server.api.encode import encode_result, failure, success
from gpuscope.server.api.federate import federate_text
from gpuscope.server.api.parameters import STATUS_CODES, ApiError, Parameters, bad, read_parameters
from gpuscope.store import Store
from gpuscope.store.series import Labels

T = TypeVar("T")
Endpoint = Callable[["EmbeddedApi", Request, Parameters], Awaitable[Response]]

API_VERSION = "3.5.0"  # the Prometheus whose API and PromQL this is; Grafana asks for it
WATCH_AFTER_SECONDS = 0.05
TRUNCATED = "results truncated due to limit"
EVERYTHING = 1 << 62


class Targets(Protocol):
    """What is known of scraped targets; the scraper's side of the API."""

    def targets_json(self, state: str) -> dict[str, Any]: ...

    def metadata(self) -> dict[str, list[dict[str, str]]]: ...

    def config_text(self) -> str: ...


class NoTargets:
    """For a server that scrapes nothing."""

    def targets_json(self, state: str) -> dict[str, Any]:
        return {"activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {}}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        return {}

    def config_text(self) -> str:
        return ""


@dataclass(slots=True)
class EmbeddedApi:
    store: Store
    engine: Engine
    targets: Targets = field(default_factory=NoTargets)
    external_labels: Labels = ()
    flags: dict[str, str] = field(default_factory=dict)
    most_queries: int = 20
    started_at: float = field(default_factory=time.time)
    _workers: ThreadPoolExecutor | None = None

    def routes(self) -> list[Route]:
        return [self._route(path, endpoint) for path, endpoint in ENDPOINTS.items()]

    def _route(self, path: str, endpoint: Endpoint) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(self, request, await read_parameters(request))
            except ApiError as error:
                return _error(error.error_type, str(error))
            except PromQLError as error:
                return _error(error.error_type, str(error))

        return Route(path, answer, methods=["GET", "POST"] if path in TAKES_FORMS else ["GET"])

    async def evaluate(self, request: Request, work: Callable[[threading.Event], T]) -> T:
        """Runs `work` in a thread, at most `most_queries` at once, cancelled when the client goes away."""
        if self._workers is None:
            # Threads of their own: slow queries must not take those that remote writes are stored with.
            self._workers = ThreadPoolExecutor(self.most_queries, thread_name_prefix="gpuscope-query")
        cancelled = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(self._workers, work, cancelled)
        watcher = None
        try:
            # Most answers are there before anybody could leave: only the others are worth a watcher.
            done, _ = await asyncio.wait((running,), timeout=WATCH_AFTER_SECONDS)
            if not done:
                watcher = asyncio.create_task(_cancel_on_disconnect(request, cancelled))
            return await running
        except asyncio.CancelledError:
            cancelled.set()
            raise
        finally:
            if watcher is not None:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher


async def _cancel_on_disconnect(request: Request, cancelled: threading.Event) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            cancelled.set()
            return


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _error(error_type: str, message: str) -> Response:
    return _json(failure(error_type, message), STATUS_CODES.get(error_type, 500))


def _data(value: object, warnings: Iterable[str] = ()) -> Response:
    return _json(success(orjson.dumps(value), tuple(warnings)))


def _result(result: Result, limit: int | None) -> bytes:
    warnings = tuple(result.warnings)
    if limit is not None and not isinstance(result, Scalar | Text) and len(result.labels) > limit:
        result, warnings = first_series(result, limit), (*warnings, TRUNCATED)
    return success(encode_result(result), warnings, result.infos)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _query(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    text, at = asked.get("query"), asked.time_ms("time", _now_ms())
    timeout, lookback, limit = asked.seconds("timeout"), _lookback(asked), asked.limit()

    def work(cancelled: threading.Event) -> bytes:
        result = api.engine.instant(
            text, at, timeout_seconds=timeout, lookback_ms=lookback, cancelled=cancelled
        )
        return _result(result, limit)

    return _json(await api.evaluate(request, work))


async def _query_range(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    text = asked.get("query")
    start, end, step = asked.time_ms("start"), asked.time_ms("end"), asked.duration_ms("step")
    timeout, lookback, limit = asked.seconds("timeout"), _lookback(asked), asked.limit()

    def work(cancelled: threading.Event) -> bytes:
        result = api.engine.range(
            text, start, end, step, timeout_seconds=timeout, lookback_ms=lookback, cancelled=cancelled
        )
        return _result(result, limit)

    return _json(await api.evaluate(request, work))


def _lookback(asked: Parameters) -> int | None:
    return asked.duration_ms("lookback_delta") if asked.get("lookback_delta") else None


async def _series(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    selectors, span = asked.selectors(required=True), _span(asked)

    def work(cancelled: threading.Event) -> set[Labels]:
        return {labels for matchers in selectors for labels in api.store.series(matchers, *span)}

    found, warnings = _limited(sorted(await api.evaluate(request, work)), asked)
    return _data([dict(labels) for labels in found], warnings)


async def _labels(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    selectors, span = asked.selectors() or [[]], _span(asked)

    def work(cancelled: threading.Event) -> set[str]:
        return {name for matchers in selectors for name in api.store.label_names(matchers, *span)}

    return _data(*_limited(sorted(await api.evaluate(request, work)), asked))


async def _label_values(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    name = request.path_params["name"]
    selectors, span = asked.selectors() or [[]], _span(asked)

    def work(cancelled: threading.Event) -> set[str]:
        return {value for matchers in selectors for value in api.store.label_values(name, matchers, *span)}

    return _data(*_limited(sorted(await api.evaluate(request, work)), asked))


def _span(asked: Parameters) -> tuple[int | None, int | None]:
    return asked.optional_time_ms("start"), asked.optional_time_ms("end")


def _limited(found: list[T], asked: Parameters) -> tuple[list[T], tuple[str, ...]]:
    limit = asked.limit()
    if limit is None or len(found) <= limit:
        return found, ()
    return found[:limit], (TRUNCATED,)


async def _metadata(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    known = api.targets.metadata()
    wanted = asked.get("metric")
    if wanted:
        known = {wanted: known[wanted]} if wanted in known else {}
    names, _ = _limited(sorted(known), asked)
    return _data({name: known[name] for name in names})


async def _targets(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    state = asked.get("state").lower() or "any"
    found = api.targets.targets_json(state)
    if state not in ("any", "active"):
        found["activeTargets"] = []
    if state not in ("any", "dropped"):
        found |= {"droppedTargets": [], "droppedTargetCounts": None}
    return _data(found)


async def _scrape_pools(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    active = api.targets.targets_json("active")["activeTargets"]
    return _data({"scrapePools": sorted({one["scrapePool"] for one in active})})


async def _format_query(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data(format_query(asked.get("query")))


async def _parse_query(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    parse(asked.get("query"))
    raise ApiError("not_found", "parse_query is not served here; format_query tells whether a query is valid")


async def _rules(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    kind = asked.get("type")
    if kind.lower() not in ("", "alert", "record"):
        raise bad("type", f'not supported value "{kind}"')
    return _data({"groups": []})


async def _alerts(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data({"alerts": []})


async def _alertmanagers(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data({"activeAlertmanagers": [], "droppedAlertmanagers": []})


async def _notifications(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data([])


async def _exemplars(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    parse(asked.get("query"))
    return _data([])


async def _config(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data({"yaml": api.targets.config_text()})


async def _flags(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data(api.flags)


async def _build(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data(
        {
            "version": API_VERSION,
            "application": "gpuscope",
            "revision": f"gpuscope {__version__}",
            "branch": "",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
        }
    )


async def _runtime(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    stats = await asyncio.to_thread(api.store.stats)
    started = _rfc3339(api.started_at)
    return _data(
        {
            "startTime": started,
            "CWD": "",
            "hostname": socket.gethostname(),
            "serverTime": _rfc3339(time.time()),
            "reloadConfigSuccess": True,
            "lastConfigTime": started,
            "corruptionCount": stats.damaged_chunks,
            "goroutineCount": threading.active_count(),
            "storageRetention": f"{api.store.options.retention_ms // 3_600_000}h",
        }
    )


def _rfc3339(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


async def _tsdb(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    limit = asked.limit() or 10
    stats, top = await asyncio.to_thread(lambda: (api.store.stats(), api.store.cardinality(EVERYTHING)))

    def named(rows: list[tuple[str, int]]) -> list[dict[str, object]]:
        return [{"name": name, "value": value} for name, value in rows[:limit]]

    return _data(
        {
            "headStats": {
                "numSeries": stats.series,
                "numLabelPairs": len(top.by_pair),
                "chunkCount": stats.blocks,
                "minTime": stats.oldest_ms or 0,
                "maxTime": stats.newest_ms or 0,
            },
            "seriesCountByMetricName": named(top.by_metric),
            "labelValueCountByLabelName": named(top.by_label),
            "memoryInBytesByLabelName": [],
            "seriesCountByLabelValuePair": named(top.by_pair),
        }
    )


async def _walreplay(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    return _data({"min": 0, "max": 0, "current": 0})


async def _federate(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    selectors = asked.selectors(required=True)

    def work(cancelled: threading.Event) -> bytes:
        return federate_text(api.store, selectors, _now_ms(), api.engine.lookback_ms, api.external_labels)

    body = await api.evaluate(request, work)
    return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")


ENDPOINTS: dict[str, Endpoint] = {
    "/api/v1/query": _query,
    "/api/v1/query_range": _query_range,
    "/api/v1/query_exemplars": _exemplars,
    "/api/v1/series": _series,
    "/api/v1/labels": _labels,
    "/api/v1/label/{name}/values": _label_values,
    "/api/v1/metadata": _metadata,
    "/api/v1/targets": _targets,
    "/api/v1/scrape_pools": _scrape_pools,
    "/api/v1/format_query": _format_query,
    "/api/v1/parse_query": _parse_query,
    "/api/v1/rules": _rules,
    "/api/v1/alerts": _alerts,
    "/api/v1/alertmanagers": _alertmanagers,
    "/api/v1/notifications": _notifications,
    "/api/v1/status/config": _config,
    "/api/v1/status/flags": _flags,
    "/api/v1/status/buildinfo": _build,
    "/api/v1/status/runtimeinfo": _runtime,
    "/api/v1/status/tsdb": _tsdb,
    "/api/v1/status/walreplay": _walreplay,
    "/federate": _federate,
}
TAKES_FORMS = {
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/query_exemplars",
    "/api/v1/series",
    "/api/v1/labels",
    "/api/v1/format_query",
    "/api/v1/parse_query",
}
"""What may also be asked by POST, with the parameters in a form."""
