"""The API over another engine: what reaches it, and what comes back."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gpuscope.scrape.http_config import HttpConfig
from gpuscope.server.api import remote
from gpuscope.server.api.embedded import ENDPOINTS
from gpuscope.server.api.remote import PATHS, RemoteApi
from tests.scrape.exporters import Page, serving, text

JSON = "application/json"


@contextmanager
def over(url: str, http: HttpConfig | None = None) -> Iterator[TestClient]:
    api = RemoteApi(url, http or HttpConfig())

    @asynccontextmanager
    async def closing(app: Starlette) -> AsyncIterator[None]:
        yield
        await api.close()

    with TestClient(Starlette(routes=api.routes(), lifespan=closing)) as client:
        yield client


def echo(seen: list[Any]) -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.append((request.command, request.path, headers, request.rfile.read(length)))
        text('{"status":"success"}', JSON)(request)

    return answer


def test_what_reaches_the_engine() -> None:
    seen: list[Any] = []
    pages = {"/prefix/api/v1/query": echo(seen), "/prefix/api/v1/label/a%2Eb/values": echo(seen)}
    http = HttpConfig(headers=(("authorization", "Bearer t"), ("X-Scope-OrgID", "team")))
    with serving(pages) as address, over(f"http://{address}/prefix", http) as client:
        answer = client.get(
            "/api/v1/query?query=up%7Ba%3D%22b%22%7D&time=1", headers={"authorization": "Basic eDp5"}
        )
        assert answer.json() == {"status": "success"}
        client.post("/api/v1/query", data={"query": "up"})
        client.get("/api/v1/label/a%2Eb/values")
    get, form, label = seen
    assert get[:2] == ("GET", "/prefix/api/v1/query?query=up%7Ba%3D%22b%22%7D&time=1")
    assert get[2]["authorization"] == "Bearer t", "the client's own credentials stay here"
    assert get[2]["x-scope-orgid"] == "team"
    assert (form[0], form[3]) == ("POST", b"query=up")
    assert form[2]["content-type"] == "application/x-www-form-urlencoded"
    assert label[1] == "/prefix/api/v1/label/a%2Eb/values"


def test_status_body_and_encoding_come_back_as_they_are() -> None:
    big = json.dumps({"data": ["x" * 1000] * 1000}).encode()

    def refuse(request: BaseHTTPRequestHandler) -> None:
        body = b'{"status":"error","errorType":"execution","error":"too many"}'
        request.send_response(422)
        request.send_header("Content-Type", JSON)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Set-Cookie", "a=b")
        request.end_headers()
        request.wfile.write(body)

    pages = {"/api/v1/query": text(gzip.compress(big), JSON, Content_Encoding="gzip"), "/api/v1/series": refuse}
    with serving(pages) as address, over(f"http://{address}") as client:
        answer = client.get("/api/v1/query")
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == big
        refused = client.get("/api/v1/series")
        assert (refused.status_code, refused.json()["errorType"]) == (422, "execution")
        assert "set-cookie" not in refused.headers
        assert client.get("/api/v1/labels").status_code == 404


def test_an_engine_that_is_away_is_a_prometheus_error() -> None:
    with over("http://127.0.0.1:1") as client:
        answer = client.get("/api/v1/query?query=up")
    assert answer.status_code == 503
    said = answer.json()
    assert (said["status"], said["errorType"]) == ("error", "unavailable")
    assert "http://127.0.0.1:1 cannot be reached: Connection refused" in said["error"]


def test_only_reading_is_passed_on() -> None:
    with serving({}) as address, over(f"http://{address}") as client:
        for path in ("/api/v1/admin/tsdb/delete_series", "/-/quit", "/-/reload", "/api/v1/write"):
            assert client.post(path).status_code == 404
        assert client.delete("/api/v1/series").status_code == 405
    assert set(ENDPOINTS) <= set(PATHS), "whatever the embedded store answers, another engine can be asked too"


def test_a_form_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_FORM_BYTES", 100)
    with over("http://127.0.0.1:1") as client:
        assert client.post("/api/v1/query", content=b"x" * 101).status_code == 400
