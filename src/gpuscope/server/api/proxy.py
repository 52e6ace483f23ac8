"""Prometheus' API over another engine: every query goes to it as it came, every answer comes back as it is.

Only the reading endpoints are passed on; what deletes or shuts down is not reachable through here. The client's
own credentials stay here, the engine gets those of `--store-http-config`. Where it refuses those, the client
has no 401, which he would take for a refusal of his own, but one sentence in Prometheus' error shape; as for an
engine that cannot be reached and an address where there is none.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

from gpuscope.errors import GpuscopeError
from gpuscope.scrape.fetch import new_client, root_cause
from gpuscope.scrape.http_config import HttpConfig
from gpuscope.server.api.encode import failure
from gpuscope.server.api.engine_stats import Traffic
from gpuscope.server.api.parameters import ApiError, read_body
from gpuscope.server.api.responses import JSON, error_answer
from gpuscope.server.http.messages import Request, Response, ResponseAborted
from gpuscope.server.http.routing import Route

log = logging.getLogger("gpuscope.api")

PATHS = (
    "/api/v1/query", "/api/v1/query_range", "/api/v1/query_exemplars", "/api/v1/series", "/api/v1/labels",
    "/api/v1/label/{name}/values", "/api/v1/metadata", "/api/v1/targets", "/api/v1/targets/metadata",
    "/api/v1/scrape_pools", "/api/v1/notifications",
    "/api/v1/format_query", "/api/v1/parse_query", "/api/v1/rules", "/api/v1/alerts", "/api/v1/alertmanagers",
    "/api/v1/status/config", "/api/v1/status/flags", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo",
    "/api/v1/status/tsdb", "/api/v1/status/walreplay", "/federate",
)  # fmt: skip
LabelledValue = tuple[dict[str, str], float]
ASKED = ("accept", "accept-encoding", "content-type")
ANSWERED = ("content-encoding", "content-length", "vary", "retry-after")
MAX_SAID = 300
"""Characters of an engine's own words that go into our sentence."""
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 150.0
"""Longer than any engine's own query time-out, so that its error reaches the client and not ours."""


class EngineError(GpuscopeError):
    """No answer of Prometheus' API. Our client has `status` and `kind`; `reason`, if any, is counted."""

    def __init__(self, message: str, *, status: int, kind: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.reason = reason


class QueryRefused(Exception):
    """The engine's own word on why a query has no answer."""


def read_vector(body: bytes) -> list[LabelledValue]:
    """An instant vector out of Prometheus' JSON; ValueError for anything that is none."""
    told = orjson.loads(body)
    try:
        if told["status"] != "success":
            raise QueryRefused(str(told["error"])[:MAX_SAID])
        rows = [(one["metric"], one["value"][1]) for one in told["data"]["result"]]
        return [({str(k): str(v) for k, v in labels.items()}, float(value)) for labels, value in rows]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"no instant vector: {error!r}") from None


def read_scrape_errors(body: bytes) -> dict[tuple[str, str], tuple[str, str]]:
    """From `/api/v1/targets`; ValueError for anything else."""
    told = orjson.loads(body)
    try:
        return {
            (str(one["labels"].get("job", "")), str(one["labels"].get("instance", ""))): (
                str(one.get("scrapeUrl", ""))[:MAX_SAID],
                str(one.get("lastError", ""))[:MAX_SAID],
            )
            for one in told["data"]["activeTargets"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no list of targets: {error!r}") from None


@dataclass(slots=True)
class RemoteApi:
    """`url` is the engine's base, with its path prefix if it has one (Mimir's /prometheus)."""

    url: str
    http: HttpConfig
    traffic: Traffic = field(default_factory=Traffic)
    _client: httpx2.AsyncClient | None = field(default=None, repr=False)

    def routes(self) -> list[Route]:
        return [
            Route(path, functools.partial(self._pass_on, endpoint_name(path)), ("GET", "HEAD", "POST"))
            for path in PATHS
        ]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def query(self, expression: str, at: float | None = None) -> list[LabelledValue]:
        """An instant vector, for the page's live view; an EngineError says why there is none."""
        form = {"query": expression} if at is None else {"query": expression, "time": f"{at:.3f}"}
        request = self._request("POST", "/api/v1/query", data=form)
        answer = await self._send("query", request)
        try:
            return read_vector(await answer.aread())
        except QueryRefused as refusal:
            message = f"{self.url} has no answer: {refusal}"
            raise EngineError(message, status=answer.status_code, kind="execution", reason="") from None
        except (httpx2.HTTPError, ValueError) as error:
            raise self._failed(_away(self.url, f"its answer cannot be read: {root_cause(error)}")) from None
        finally:
            await answer.aclose()

    async def scrape_errors(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Address and last error of each target by job and instance; empty where the engine does not scrape."""
        try:
            answer = await self._send("targets", self._request("GET", "/api/v1/targets?state=active"))
            try:
                return read_scrape_errors(await answer.aread())
            finally:
                await answer.aclose()
        except (EngineError, httpx2.HTTPError, ValueError):
            return {}  # Thanos and Mimir have no targets; what is gone is known without them

    async def reachable(self) -> str:
        """Nothing if the engine answers, else one sentence."""
        try:
            await self.query("vector(1)")
        except EngineError as error:
            return str(error)
        return ""

    def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:  # made in the loop that uses it
            self._client = new_client(self.http)
        return self._client

    def _request(self, method: str, path: str, **parts: Any) -> httpx2.Request:
        return self._connected().build_request(
            method,
            f"{self.url}{path}",
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            extensions={"sni_hostname": self.http.server_name} if self.http.server_name else {},
            **parts,
        )

    async def _send(self, endpoint: str, request: httpx2.Request) -> httpx2.Response:
        """The answer, its body still to come, if it is one of Prometheus' API; an EngineError if not."""
        began_at = time.monotonic()
        try:
            answer = await self._connected().send(request, stream=True)
        except httpx2.TimeoutException:
            raise self._failed(_late(self.url, time.monotonic() - began_at)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._failed(_away(self.url, root_cause(error))) from None
        self.traffic.answered(endpoint, answer.status_code, time.monotonic() - began_at)
        if _is_usable(endpoint, answer):
            self.traffic.went_well(self.url)
            return answer
        problem = _unusable(self.url, answer, await _beginning(answer))
        raise self._failed(problem) if problem.reason else problem

    def _failed(self, error: EngineError) -> EngineError:
        self.traffic.went_wrong(error.reason, str(error))
        return error

    async def _pass_on(self, endpoint: str, request: Request) -> Response:
        try:
            body = await read_body(request)
        except ApiError as error:
            return error_answer(error.error_type, str(error))
        target = request.raw_path + (b"?" + request.query if request.query else b"")
        headers = {name: value for name, value in request.headers if name in ASKED}
        await asyncio.sleep(0)  # the client below asks which task it is in, and until here there may be none
        try:
            outgoing = self._request(
                request.method, target.decode("latin-1"), headers=headers, content=body or None
            )
            answer = await self._send(endpoint, outgoing)
        except EngineError as error:
            return _error(error.kind, str(error), error.status)
        except httpx2.InvalidURL as error:
            return _error("bad_data", f"the request cannot be passed on: {error}", 400)
        told = tuple((name, answer.headers[name]) for name in ANSWERED if name in answer.headers)
        kind = answer.headers.get("content-type", JSON)
        return Response(b"", answer.status_code, kind, told, self._pieces(answer), answer.aclose)

    async def _pieces(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        """As they come, still compressed."""
        try:
            async for piece in answer.aiter_raw():
                yield piece
        except httpx2.HTTPError as error:
            # The status is out already: the client sees an answer cut short, the log says why.
            self.traffic.went_wrong("broken_off", f"{self.url}: the answer broke off: {root_cause(error)}")
            raise ResponseAborted from error
        finally:
            await answer.aclose()


def endpoint_name(path: str) -> str:
    """A route's path as a label: `query_range`, `label_values`, `status_tsdb`."""
    return path.removeprefix("/api/v1").strip("/").replace("/{name}/", "_").replace("/", "_")


def _is_usable(endpoint: str, answer: httpx2.Response) -> bool:
    """Errors in JSON are the engine's own word on a query; 401 and 403 are about us, whatever their form."""
    if answer.status_code in (401, 403):
        return False
    # VictoriaMetrics says application/stream+json where samples themselves were asked for.
    is_json = answer.headers.get("content-type", "").partition(";")[0].strip().lower().endswith("json")
    return is_json or (endpoint == "federate" and answer.status_code == 200)


def _away(url: str, why: str) -> EngineError:
    return EngineError(f"{url} cannot be reached: {why}", status=503, kind="unavailable", reason="unreachable")


def _late(url: str, seconds: float) -> EngineError:
    return EngineError(
        f"{url} did not answer within {seconds:.0f} s", status=503, kind="timeout", reason="timeout"
    )


def _unusable(url: str, answer: httpx2.Response, said: str) -> EngineError:
    """The sentence for an answer that is not one of Prometheus' API."""
    status, path = answer.status_code, answer.request.url.path
    everyone_has_it = path.endswith(("/query", "/query_range", "/series", "/labels"))
    told = f"{status} ({said})" if said else str(status)
    if status in (401, 403):
        message = f"{url} refuses us with {told}: --store-tenant and --store-http-config say who we are"
        return EngineError(message, status=502, kind="unavailable", reason="refused")
    if status == 404 and everyone_has_it:
        message = (
            f"{url} has no Prometheus API, it answers {told}: a path may be missing, as Mimir's /prometheus"
        )
        return EngineError(message, status=404, kind="not_found", reason="not_prometheus")
    if status in (400, 404, 405, 501) and not everyone_has_it:
        return EngineError(f"this engine has no {path}: {told}", status=status, kind="not_found", reason="")
    if status >= 500:
        return EngineError(f"{url} answers {told}", status=status, kind="unavailable", reason="failed")
    if status >= 400:  # the engine's own word on this request, in plain text
        return EngineError(f"{url} answers {told}", status=status, kind="execution", reason="")
    kind = answer.headers.get("content-type", "nothing")
    message = f"{url} answers {path} with {kind}, not with Prometheus' JSON: is this the engine's address?"
    return EngineError(message, status=502, kind="unavailable", reason="not_prometheus")


async def _beginning(answer: httpx2.Response) -> str:
    """An unusable answer's first words, on one line; the rest may be a whole web page and is not read."""
    body = b""
    try:
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > 4 * MAX_SAID:
                break
    except httpx2.HTTPError as error:
        return root_cause(error)
    finally:
        await answer.aclose()
    return " ".join(body.decode("utf-8", "replace").split())[:MAX_SAID]


def _error(kind: str, message: str, status: int) -> Response:
    return Response(failure(kind, message), status, JSON)
