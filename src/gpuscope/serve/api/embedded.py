"""Prometheus' API over the embedded store: the table of paths and endpoints, and the threads they run in.

Queries run in threads, so that a slow one does not delay a scrape or another query; a client that disconnects
cancels its query. The endpoints are functions in `query_routes`, `series_routes`, `rule_routes` and `status`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpuscope.base.limits import Limits
from gpuscope.history.promql import Engine, PromQLError
from gpuscope.history.scrape.loop import LateScrapes
from gpuscope.history.store import Store, StoreError
from gpuscope.model.series import Labels
from gpuscope.serve.api import query_routes as queries
from gpuscope.serve.api import rule_routes, status
from gpuscope.serve.api import series_routes as series
from gpuscope.serve.api.parameters import ApiError, Parameters, read_parameters
from gpuscope.serve.api.query_threads import LargeResponses, QueryLog, QueryThreads
from gpuscope.serve.api.responses import JSON, Body, LargeBody
from gpuscope.serve.api.responses import error_answer as _error
from gpuscope.serve.api.rule_routes import RulesView
from gpuscope.serve.api.status import NoTargets, PushedTargetsJson, ReloadStatus, Targets, no_pushed_targets
from gpuscope.serve.http.messages import Request, Response, Route, not_allowed, not_found, path_pattern

T = TypeVar("T")

_NEVER_CANCELLED = threading.Event()
Endpoint = Callable[["EmbeddedApi", Request, Parameters], Awaitable[Response]]
ENDPOINTS: dict[str, Endpoint] = {
    "/api/v1/query": queries.query,
    "/api/v1/query_range": queries.query_range,
    "/api/v1/query_exemplars": queries.query_exemplars,
    "/api/v1/format_query": queries.format_a_query,
    "/api/v1/parse_query": queries.parse_a_query,
    "/api/v1/series": series.series,
    "/api/v1/labels": series.labels,
    "/api/v1/label/{name}/values": series.label_values,
    "/federate": series.federate,
    "/api/v1/metadata": status.metadata,
    "/api/v1/targets": status.targets,
    "/api/v1/targets/metadata": status.target_metadata,
    "/api/v1/scrape_pools": status.scrape_pools,
    "/api/v1/rules": rule_routes.rules,
    "/api/v1/alerts": rule_routes.alerts,
    "/api/v1/alertmanagers": rule_routes.alertmanagers,
    "/api/v1/notifications": status.notifications,
    "/api/v1/status/config": status.config,
    "/api/v1/status/flags": status.flags,
    "/api/v1/status/buildinfo": status.build,
    "/api/v1/status/runtimeinfo": status.runtime,
    "/api/v1/status/tsdb": status.tsdb,
    "/api/v1/status/walreplay": status.replay,
}
ADMIN_ENDPOINTS: dict[str, Endpoint] = {
    "/api/v1/admin/tsdb/delete_series": series.delete_series,
    "/api/v1/admin/tsdb/clean_tombstones": series.clean_tombstones,
    "/api/v1/admin/tsdb/snapshot": series.snapshot,
}
"""Endpoints that change or copy the history: only with `--admin-api`."""
_ACCEPT_FORMS = (
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/query_exemplars",
    "/api/v1/series",
    "/api/v1/labels",
    "/api/v1/format_query",
    "/api/v1/parse_query",
)
METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_ACCEPT_FORMS, ("GET", "POST")),
    **dict.fromkeys(ADMIN_ENDPOINTS, ("POST", "PUT")),
}
"""Of endpoints that accept more than GET."""
_EVERY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_OTHER_ENDPOINTS: Mapping[str, Sequence[str]] = {"/api/v1/write": ("POST",)}


@dataclass(slots=True)
class EmbeddedApi:
    store: Store
    engine: Engine
    targets: Targets = field(default_factory=NoTargets)
    pushed_targets: PushedTargetsJson = no_pushed_targets
    external_labels: Labels = ()
    flags: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    with_admin: bool = False
    query_log: QueryLog = field(default_factory=QueryLog)
    rules: RulesView = field(default_factory=RulesView)
    reloads: ReloadStatus = field(default_factory=ReloadStatus)
    started_at: float = field(default_factory=time.time)
    scrapes: LateScrapes = field(default_factory=LateScrapes)
    _workers: QueryThreads | None = None
    large_responses: LargeResponses | None = None

    def routes(self) -> list[Route]:
        served = {**ENDPOINTS, **ADMIN_ENDPOINTS} if self.with_admin else ENDPOINTS
        return [self._route(path, endpoint) for path, endpoint in served.items()]

    def last_routes(self) -> list[Route]:
        """For all other paths that begin like the API; they must come after the routes of real endpoints."""
        return fallback_routes_for(
            {path: METHODS.get(path, ("GET",)) for path in (*ENDPOINTS, *ADMIN_ENDPOINTS)}
        )

    def _route(self, path: str, endpoint: Endpoint) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(self, request, await read_parameters(request, self.limits))
            except ApiError as error:
                return _error(error.error_type, str(error))
            except PromQLError as error:
                return _error(error.error_type, str(error))
            except StoreError as error:
                return _error("internal", str(error))

        return Route(path, answer, METHODS.get(path, ("GET",)))  # no HEAD, as Prometheus

    async def evaluate(
        self, request: Request, work: Callable[[threading.Event], T], *, small: bool = False
    ) -> T:
        """Runs `work` in a thread, `query_max_concurrency` at once, cancelled when the client disconnects.
        Small work runs at once: handing it to a thread and back would take longer."""
        if small:
            return work(_NEVER_CANCELLED)  # the event loop does not run meanwhile, so no client can disconnect
        cancelled = threading.Event()
        request.on_disconnect = cancelled.set
        try:
            return await asyncio.wrap_future(self._threads().submit(request.peer, work, cancelled))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def answer(
        self,
        request: Request,
        work: Callable[[threading.Event], Body | LargeBody],
        kind: str = JSON,
        *,
        small: bool = False,
    ) -> Response:
        """The result of `work` as a response: whole, or streamed if it is large."""
        body = await self.evaluate(request, work, small=small)
        if isinstance(body, Body):
            return body.answer(kind)
        if self.large_responses is None:
            self.large_responses = LargeResponses(self.limits.query_max_large_responses)
        return self.large_responses.respond(body, kind, self._threads().pool)

    def _threads(self) -> QueryThreads:
        if self._workers is None:
            self._workers = QueryThreads(self.limits.query_max_concurrency, self.scrapes)
        return self._workers


def fallback_routes_for(endpoints: Mapping[str, Sequence[str]]) -> list[Route]:
    """Answers as Prometheus does where no endpoint handles a request: another method, an unknown path, a
    disabled endpoint. `endpoints` are the served paths with their methods. OPTIONS is answered, but without
    CORS headers: pages of other sites must not read this server. To allow that, put a proxy in front."""
    allowed = [(path_pattern(path), methods) for path, methods in {**endpoints, **_OTHER_ENDPOINTS}.items()]

    async def answer(request: Request) -> Response:
        path, method = request.path, request.method
        if method == "OPTIONS":
            return Response(status=204)
        methods = next(
            (methods_of_path for pattern, methods_of_path in allowed if pattern.fullmatch(path)), None
        )
        if methods is not None and method not in methods and (method, path) != ("DELETE", "/api/v1/series"):
            return not_allowed([*methods, "OPTIONS"])
        if path in ADMIN_ENDPOINTS:
            return _error("unavailable", "admin APIs disabled")
        if path == "/api/v1/series":
            return _error("internal", "not implemented")
        return await not_found(request)

    return [Route(path, answer, methods=_EVERY_METHOD) for path in ("/api/v1/{rest...}", "/federate")]
