"""Prometheus' API over another engine: requests go to it and are counted, responses come back unchanged.

Only reading endpoints are passed on; nothing that deletes or shuts down is reachable. The client's credentials
stay here, the engine gets those of `--store-http-config`. An engine that is unreachable, refuses those
credentials or is not a Prometheus is an error in Prometheus' own format.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from gpuscope.base.limits import Limits
from gpuscope.history.engines.http_connection import EngineConnection, EngineResponse
from gpuscope.history.engines.query_engine import FAILURE_REASONS, EngineError
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.parameters import ApiError, read_body
from gpuscope.serve.api.responses import JSON, error_answer
from gpuscope.serve.http.connection_limits import ClientLog
from gpuscope.serve.http.messages import Request, Response, ResponseAborted, Route

log = logging.getLogger("gpuscope.api")

PATHS = (
    "/api/v1/query", "/api/v1/query_range", "/api/v1/query_exemplars", "/api/v1/series", "/api/v1/labels",
    "/api/v1/label/{name}/values", "/api/v1/metadata", "/api/v1/targets", "/api/v1/targets/metadata",
    "/api/v1/scrape_pools", "/api/v1/notifications",
    "/api/v1/format_query", "/api/v1/parse_query", "/api/v1/rules", "/api/v1/alerts", "/api/v1/alertmanagers",
    "/api/v1/status/config", "/api/v1/status/flags", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo",
    "/api/v1/status/tsdb", "/api/v1/status/walreplay", "/federate",
)  # fmt: skip
REQUEST_HEADERS = ("accept", "accept-encoding", "content-type")
RESPONSE_HEADERS = ("content-encoding", "content-length", "vary", "retry-after")


class ProxyApi:
    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection

    def routes(self) -> list[Route]:
        return [
            Route(path, functools.partial(self._pass_on, endpoint_name(path)), ("GET", "HEAD", "POST"))
            for path in PATHS
        ]

    async def _pass_on(self, endpoint: str, request: Request) -> Response:
        try:
            body = await read_body(request)
        except ApiError as error:
            return error_answer(error.error_type, str(error))
        target = request.raw_path + (b"?" + request.query if request.query else b"")
        headers = {name: value for name, value in request.headers if name in REQUEST_HEADERS}
        try:
            response = await self._connection.open(
                endpoint, request.method, target.decode("latin-1"), headers=headers, content=body or None
            )
        except EngineError as error:
            return Response(failure(error.error_type, str(error)), error.status, JSON)
        kept = tuple((name, response.headers[name]) for name in RESPONSE_HEADERS if name in response.headers)
        kind = response.headers.get("content-type", JSON)
        return Response(b"", response.status, kind, kept, _pieces(response), response.close)


async def _pieces(response: EngineResponse) -> AsyncIterator[bytes]:
    """The status is sent already: a client sees an answer cut short, and the log says why."""
    try:
        async for piece in response.raw_pieces():
            yield piece
    except EngineError as error:
        raise ResponseAborted from error
    finally:
        await response.close()


def endpoint_name(path: str) -> str:
    """A route's path as a label: `query_range`, `label_values`, `status_tsdb`."""
    return path.removeprefix("/api/v1").strip("/").replace("/{name}/", "_").replace("/", "_")


# Requests to the engine of `--store`: counted for /metrics; a log line when it stops or resumes answering.
#
# Requests are counted by endpoint and HTTP status. A failure is an answer that no client can use, or none.
# Before the first answer the engine is neither up nor down.


@dataclass(slots=True)
class EngineStats:
    """A server's `EngineObserver`. Belongs to its event loop; only the check at the start runs in another."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAILURE_REASONS, 0)))
    up: bool | None = None
    lines: ClientLog = field(default_factory=lambda: ClientLog(log, Limits().max_client_log_lines))
    """Bounded: a client can alternate between a query that works and one that times out."""

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[endpoint, status] += 1
        self.seconds[endpoint] = self.seconds.get(endpoint, 0.0) + seconds

    def succeeded(self, url: str) -> None:
        if self.up is False:
            self.lines.info("changes of the engine", "%s answers again", url)
        self.up = True

    def failed(self, reason: str, message: str) -> None:
        self.failures[reason] += 1
        if self.up is not False:
            self.lines.error("changes of the engine", "%s", message)
        self.up = False
