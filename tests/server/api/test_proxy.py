"""The API over another engine: the requests that reach it and the responses that come back."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gpuscope import __version__
from gpuscope.base.http_config import HttpConfig
from gpuscope.history.engines.http_connection import EngineConnection
from gpuscope.model.exposition.text import encode_text
from gpuscope.serve.api import parameters
from gpuscope.serve.api.embedded import ENDPOINTS
from gpuscope.serve.api.proxy import PATHS, EngineStats, ProxyApi, endpoint_name
from gpuscope.serve.http.messages import ResponseAborted, Router
from gpuscope.serve.own_metrics import build_families, engine_families
from tests.scrape.exporters import Page, serving, text
from tests.server.client import Client, run

JSON = "application/json"


@contextmanager
def over(url: str, http: HttpConfig | None = None, stats: EngineStats | None = None) -> Iterator[Client]:
    connection = EngineConnection(url, http or HttpConfig(), stats or EngineStats())

    with Client(Router(ProxyApi(connection).routes())) as client:
        yield client
        run(connection.close())


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
    assert "cannot reach http://127.0.0.1:1: Connection refused" in said["error"]


def test_only_reading_is_passed_on() -> None:
    with serving({}) as address, over(f"http://{address}") as client:
        for path in ("/api/v1/admin/tsdb/delete_series", "/-/quit", "/-/reload", "/api/v1/write"):
            assert client.post(path).status_code == 404
        assert client.delete("/api/v1/series").status_code == 405
    assert set(ENDPOINTS) <= set(PATHS), "whatever the embedded store answers, another engine can be asked too"


def test_a_form_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "MAX_FORM_BYTES", 100)
    with over("http://127.0.0.1:1") as client:
        assert client.post("/api/v1/query", content=b"x" * 101).status_code == 400


def saying(status: int, words: str, kind: str = "text/plain") -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = words.encode()
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("WWW-Authenticate", "Basic")
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    ("page", "status", "kind", "said", "counted"),
    [
        (saying(401, "no\norg id"), 502, "unavailable", "credentials with 401 (no org id): --store", "refused"),
        (saying(403, '{"status":"error"}', JSON), 502, "unavailable", "credentials with 403", "refused"),
        (saying(404, "404 page not found"), 404, "not_found", "a path may be missing", "not_prometheus"),
        (saying(200, "<html></html>", "text/html"), 502, "unavailable", "with text/html", "not_prometheus"),
        (saying(502, "<h1>Bad</h1>"), 502, "unavailable", "answers 502 (<h1>Bad</h1>)", "failed"),
        (saying(500, "x" * 100_000), 500, "unavailable", "answers 500 (xxx", "failed"),
        (saying(500, ""), 500, "unavailable", "answers 500", "failed"),
        (saying(422, "too many series"), 422, "execution", "answers 422 (too many series)", ""),
        (saying(429, "slow down"), 429, "execution", "answers 429 (slow down)", ""),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_one_sentence(page: Page, status: int, kind: str, said: str, counted: str) -> None:
    stats = EngineStats()
    with serving({"/api/v1/query": page}) as address, over(f"http://{address}", stats=stats) as client:
        answer = client.get("/api/v1/query?query=up")
        told = answer.json()
        assert (answer.status_code, told["status"], told["errorType"]) == (status, "error", kind)
        assert said in told["error"]
        assert address in told["error"]
        assert len(told["error"]) < 600
        assert "www-authenticate" not in answer.headers
    assert {why: count for why, count in stats.failures.items() if count} == ({counted: 1} if counted else {})
    assert stats.up is (False if counted else None)


def test_an_endpoint_that_an_engine_lacks_says_nothing_about_the_others() -> None:
    stats = EngineStats()
    pages = {
        "/api/v1/query": text('{"status":"success"}', JSON),
        "/api/v1/alerts": saying(400, "unsupported path"),
    }
    with serving(pages) as address, over(f"http://{address}", stats=stats) as client:
        client.get("/api/v1/query?query=up")
        alerts, pools = client.get("/api/v1/alerts"), client.get("/api/v1/scrape_pools")
    assert (alerts.status_code, alerts.json()["error"]) == (
        400,
        "this engine has no /api/v1/alerts: 400 (unsupported path)",
    )
    assert pools.status_code == 404
    assert stats.up is True
    assert not any(stats.failures.values())


def test_victoria_metrics_json_is_json() -> None:
    pages = {"/api/v1/query": text('{"status":"success"}', "application/stream+json; charset=utf-8")}
    with serving(pages) as address, over(f"http://{address}") as client:
        assert client.get("/api/v1/query?query=up[5m]").json() == {"status": "success"}


def test_trouble_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuscope.api")
    pages = {"/api/v1/query": saying(401, "no org id"), "/api/v1/labels": text('{"status":"success"}', JSON)}
    with serving(pages) as address, over(f"http://{address}") as client:
        for path in ("query", "query", "labels", "labels"):
            client.get(f"/api/v1/{path}")
    assert [record.levelname for record in caplog.records if record.name == "gpuscope.api"] == ["ERROR", "INFO"]


def test_an_answer_that_breaks_off_is_counted() -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", JSON)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"{")
        request.close_connection = True

    stats = EngineStats()
    with (
        serving({"/api/v1/query": cut}) as address,
        over(f"http://{address}", stats=stats) as client,
        pytest.raises(ResponseAborted),
    ):
        client.get("/api/v1/query?query=up")
    assert stats.failures["broken_off"] == 1


def test_own_metrics() -> None:
    stats = EngineStats()
    assert b"gpuscope_engine_up" not in encode_text(engine_families(stats)), "nobody asked yet"
    pages = {"/api/v1/query": text('{"status":"success"}', JSON), "/federate": text("a 1\n")}
    with serving(pages) as address, over(f"http://{address}", stats=stats) as client:
        for path in ("/api/v1/query", "/api/v1/query", "/federate", "/api/v1/series"):
            client.get(path)
    said = encode_text([*build_families(), *engine_families(stats)]).decode()
    for line in (
        "gpuscope_engine_up 0",
        'gpuscope_engine_requests_total{endpoint="query",code="200"} 2',
        'gpuscope_engine_requests_total{endpoint="federate",code="200"} 1',
        'gpuscope_engine_requests_total{endpoint="series",code="404"} 1',
        'gpuscope_engine_failures_total{reason="not_prometheus"} 1',
        'gpuscope_engine_failures_total{reason="unreachable"} 0',
    ):
        assert f"\n{line}\n" in said
    assert f'gpuscope_build_info{{version="{__version__}"' in said
    assert 'gpuscope_engine_request_seconds_total{endpoint="query"} ' in said


def test_every_endpoint_has_a_name_of_its_own() -> None:
    names = [endpoint_name(path) for path in PATHS]
    assert {"query", "label_values", "status_tsdb", "federate"} < set(names)
    assert len(set(names)) == len(PATHS)
    assert all(name.replace("_", "").isalpha() for name in names)


def test_an_engine_that_fails_every_other_request_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats = EngineStats()
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            stats.failed("timeout", "the engine took too long")
            stats.succeeded("http://engine")
    assert 2 <= len(caplog.records) <= 10
    assert stats.failures["timeout"] == 100
