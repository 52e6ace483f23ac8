"""Prometheus' API over the embedded store: the table of paths and endpoints, and the threads they run in.

Queries run in threads, so that a slow one does not delay a scrape or another query; a client that disconnects
cancels its query. The endpoints are functions in `query_routes`, `series_routes`, `targets`, `rule_routes`,
`status` and `admin`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpuscope.base.limits import Limits
from gpuscope.history.promql import Engine, PromQLError
from gpuscope.history.scrape.late_scrapes import LateScrapes
from gpuscope.history.store import Store, StoreError
from gpuscope.model.series import Labels
from gpuscope.serve.api import admin, rule_routes, status, targets
from gpuscope.serve.api import query_routes as queries
from gpuscope.serve.api import series_routes as series
from gpuscope.serve.api.fallback_routes import fallback_routes_for
from gpuscope.serve.api.large_responses import LargeResponses
from gpuscope.serve.api.parameters import ApiError, Parameters, read_parameters
from gpuscope.serve.api.query_log import QueryLog
from gpuscope.serve.api.query_threads import QueryThreads
from gpuscope.serve.api.responses import JSON, Body, LargeBody
from gpuscope.serve.api.responses import error_answer as _error
from gpuscope.serve.api.rules_json import RulesView
from gpuscope.serve.api.targets import NoTargets, PushedTargetsJson, Targets, no_pushed_targets
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.http.routing import Route
from gpuscope.serve.reload_status import ReloadStatus

T = TypeVar("T")

_NEVER_CANCELLED = threading.Event()
Endpoint = Callable[["EmbeddedApi", Request, Parameters], Awaitable[Response]]


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
    "/api/v1/metadata": targets.metadata,
    "/api/v1/targets": targets.targets,
    "/api/v1/targets/metadata": targets.target_metadata,
    "/api/v1/scrape_pools": targets.scrape_pools,
    "/api/v1/rules": rule_routes.rules,
    "/api/v1/alerts": rule_routes.alerts,
    "/api/v1/alertmanagers": rule_routes.alertmanagers,
    "/api/v1/notifications": targets.notifications,
    "/api/v1/status/config": status.config,
    "/api/v1/status/flags": status.flags,
    "/api/v1/status/buildinfo": status.build,
    "/api/v1/status/runtimeinfo": status.runtime,
    "/api/v1/status/tsdb": status.tsdb,
    "/api/v1/status/walreplay": status.replay,
}
ADMIN_ENDPOINTS: dict[str, Endpoint] = {
    "/api/v1/admin/tsdb/delete_series": admin.delete_series,
    "/api/v1/admin/tsdb/clean_tombstones": admin.clean_tombstones,
    "/api/v1/admin/tsdb/snapshot": admin.snapshot,
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
