"""Prometheus' API over another engine: every query goes to it as it came, every answer comes back as it is.

Only the reading endpoints are passed on; what deletes or shuts down is not reachable through here. The client's
own credentials stay here, the engine gets those of `--store-http-config`. An engine that cannot be reached is
an answer in Prometheus' error shape, 503.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gpuscope.scrape.fetch import new_client, root_cause
from gpuscope.scrape.http_config import HttpConfig
from gpuscope.server.api.encode import failure

log = logging.getLogger("gpuscope.api")

PATHS = (
    "/api/v1/query", "/api/v1/query_range", "/api/v1/query_exemplars", "/api/v1/series", "/api/v1/labels",
    "/api/v1/label/{name}/values", "/api/v1/metadata", "/api/v1/targets", "/api/v1/targets/metadata",
    "/api/v1/scrape_pools", "/api/v1/notifications",
    "/api/v1/format_query", "/api/v1/parse_query", "/api/v1/rules", "/api/v1/alerts", "/api/v1/alertmanagers",
    "/api/v1/status/config", "/api/v1/status/flags", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo",
    "/api/v1/status/tsdb", "/api/v1/status/walreplay", "/federate",
)  # fmt: skip
ASKED = ("accept", "accept-encoding", "content-type")
ANSWERED = ("content-type", "content-encoding", "content-length", "vary", "retry-after")
MOST_FORM_BYTES = 1 << 20
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 150.0
"""Longer than any engine's own query time-out, so that its error reaches the client and not ours."""


@dataclass(slots=True)
class RemoteApi:
    """`url` is the engine's base, with its path prefix if it has one (Mimir's /prometheus)."""

    url: str
    http: HttpConfig
    _client: httpx2.AsyncClient | None = field(default=None, repr=False)

    def routes(self) -> list[Route]:
        return [Route(path, self._pass_on, methods=["GET", "POST"]) for path in PATHS]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant vector, for the page's live view; an engine that does not answer has none."""
        answer = await self._connected().post(
            f"{self.url}/api/v1/query", data={"query": expression}, timeout=ANSWER_SECONDS
        )
        answer.raise_for_status()
        found: list[dict[str, Any]] = orjson.loads(answer.content)["data"]["result"]
        return found

    async def reachable(self) -> str:
        """Nothing if the engine answers, else one sentence."""
        try:
            await self.query("1")
        except (httpx2.HTTPError, OSError, ValueError, KeyError) as error:
            return f"{self.url} does not answer queries: {root_cause(error)}"
        return ""

    def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:  # made in the loop that uses it
            self._client = new_client(self.http)
        return self._client

    async def _pass_on(self, request: Request) -> Response:
        try:
            body = await _bounded_body(request)
        except ClientDisconnect:
            return _error("canceled", "the request ended early", 499)
        if body is None:
            return _error("bad_data", f"the form is larger than {MOST_FORM_BYTES} bytes", 400)
        client = self._connected()
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.url.path
        outgoing = client.build_request(
            request.method,
            f"{self.url}{path.partition('?')[0]}{query}",
            headers={name: request.headers[name] for name in ASKED if name in request.headers},
            content=body or None,
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            extensions={"sni_hostname": self.http.server_name} if self.http.server_name else {},
        )
        try:
            answer = await client.send(outgoing, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return _error("unavailable", f"{self.url} cannot be reached: {root_cause(error)}", 503)
        headers = {name: answer.headers[name] for name in ANSWERED if name in answer.headers}
        return StreamingResponse(
            _pieces(answer), answer.status_code, headers, background=BackgroundTask(answer.aclose)
        )


async def _pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """As they come, still compressed."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx2.HTTPError as error:
        # The status is out already: the client sees an answer cut short, the log says why.
        log.warning("the engine's answer broke off: %s", root_cause(error))
        raise
    finally:
        await answer.aclose()


async def _bounded_body(request: Request) -> bytes | None:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            return None
    return body


def _error(kind: str, message: str, status: int) -> Response:
    return Response(failure(kind, message), status, media_type="application/json")
