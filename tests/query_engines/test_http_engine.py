"""An HTTP engine that is away, refuses us, sends nonsense or too much: each is one error of the tree."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.engines.http_connection import EngineConnection, connect, post_form
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.engines.query_engine import (
    EngineBadQuery,
    EngineEndpointMissing,
    EngineError,
    EngineFailed,
    EngineNotPrometheus,
    EngineQueryError,
    EngineQueryTimeout,
    EngineRefused,
    EngineResultTooLarge,
    EngineUnreachable,
)
from gpuscope.history.engines.vector_text import read_matrix, read_vector
from gpuscope.history.promql.frame import Steps
from tests.examples import examples
from tests.scrape.exporters import Page, serving, text
from tests.server.api.test_proxy import saying

T = TypeVar("T")
JSON = "application/json"
DAY = 86_400_000


def after_form(page: Page) -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        page(request)

    return answer


def ask(url: str, question: Callable[[HttpEngine], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        engine = HttpEngine(EngineConnection(url, **options))
        try:
            return await question(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def failure(error_type: str, status: int = 422) -> Page:
    return saying(
        status, orjson.dumps({"status": "error", "errorType": error_type, "error": "no"}).decode(), JSON
    )


@pytest.mark.parametrize(
    ("page", "kind", "message"),
    [
        (failure("execution"), EngineQueryError, "no"),
        (failure("bad_data", 400), EngineBadQuery, "no"),
        (failure("timeout", 503), EngineQueryTimeout, "no"),
        (failure("internal", 500), EngineFailed, "no"),
        (failure("422"), EngineQueryError, "no"),
        (text("{", JSON), EngineNotPrometheus, "cannot be read"),
        (text("[]", JSON), EngineNotPrometheus, "cannot be read"),
        (text('{"status":"success"}', JSON), EngineNotPrometheus, "cannot be read"),
        (text("<html>", "text/html"), EngineNotPrometheus, "check that this is the engine's address"),
        (saying(401, "no org id"), EngineRefused, "refuses our credentials with 401"),
        (saying(502, "bad gateway"), EngineFailed, "502"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_one_error(page: Page, kind: type[EngineError], message: str) -> None:
    with serving({"/api/v1/query": after_form(page)}) as address:
        url = f"http://{address}"
        with pytest.raises(EngineError, match=message) as caught:
            ask(url, lambda engine: engine.instant("up"))
        assert type(caught.value) is kind
        assert url in str(caught.value)
        assert message in ask(url, lambda engine: engine.find_problem())


def test_an_engine_that_is_away_is_unreachable() -> None:
    with pytest.raises(
        EngineUnreachable, match=r"cannot reach http://127\.0\.0\.1:1: Connection refused"
    ) as caught:
        ask("http://127.0.0.1:1", lambda engine: engine.range("up", 0, 1000, 1000))
    assert caught.value.exit_code == 4
    with pytest.raises(EngineUnreachable):
        post_form(connect("http://127.0.0.1:1", origin="--server"), "query", {"query": "1"})


def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    before = LIMITS_REACHED.counts()["engine_max_response_bytes"]
    with (
        serving({"/api/v1/query": after_form(text(b'{"data":"' + b"x" * 100_000, JSON))}) as address,
        pytest.raises(EngineResultTooLarge, match="engine_max_response_bytes"),
    ):
        ask(f"http://{address}", lambda engine: engine.instant("up"), max_response_bytes=1000)
    assert LIMITS_REACHED.counts()["engine_max_response_bytes"] == before + 1


def test_an_engine_without_status_pages_is_described_as_unknown() -> None:
    with serving({}) as address:
        info = ask(f"http://{address}", lambda engine: engine.describe())
        assert (info.product, info.version, info.retention_ms) == ("", "", None)
        with pytest.raises(EngineEndpointMissing):
            ask(f"http://{address}", lambda engine: engine.connection.get("targets", "/api/v1/targets"))
        assert ask(f"http://{address}", lambda engine: engine.scrape_errors()) == {}


@pytest.mark.parametrize(
    ("build", "runtime", "expected"),
    [
        ({"version": "0.40.1", "goVersion": "go1"}, {}, ("Thanos", "0.40.1", None)),
        ({"version": "3.0.0", "application": "Grafana Mimir"}, {}, ("Mimir", "3.0.0", None)),
        ({"version": "3", "application": "gpuscope"}, {"storageRetention": "1d or 5B"}, ("gpuscope", "3", DAY)),
        ({"version": "3.5.0", "goVersion": "go1"}, {"storageRetention": "1GiB"}, ("Prometheus", "3.5.0", None)),
        ({"version": "3", "goVersion": "go1"}, {"storageRetention": "1y1d"}, ("Prometheus", "3", 366 * DAY)),
    ],
)  # fmt: skip
def test_products_and_retention(build: Any, runtime: Any, expected: tuple[str, str, int | None]) -> None:
    pages = {
        f"/api/v1/status/{page}": text(orjson.dumps({"status": "success", "data": data}), JSON)
        for page, data in (("buildinfo", build), ("runtimeinfo", runtime))
    }
    with serving(pages) as address:
        info = ask(f"http://{address}", lambda engine: engine.describe())
    assert (info.product, info.version, info.retention_ms) == expected
    assert info.filled_until_ms is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [("2026-11-17T07:10:00Z", 1_794_899_400_000), ("soon", None), (7, None), (None, None), (["x"], None)],
)
def test_until_when_the_past_is_filled(said: object, expected: int | None) -> None:
    page = {"status": "success", "data": {"historyFilledUntil": said}}
    with serving({"/api/v1/status/runtimeinfo": text(orjson.dumps(page), JSON)}) as address:
        assert ask(f"http://{address}", lambda engine: engine.describe()).filled_until_ms == expected


KEYS = ("status", "data", "result", "resultType", "metric", "value", "values", "warnings")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


KINDS = st.sampled_from(("vector", "matrix", "scalar"))


@settings(max_examples=examples(200))
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=4)
    | st.fixed_dictionaries({"data": st.fixed_dictionaries({"resultType": KINDS, "result": JSON_VALUES})})
)  # fmt: skip
def test_whatever_an_engine_sends_is_arrays_or_an_error(answer: dict[str, Any]) -> None:
    for read in (read_vector, lambda given: read_matrix(given, Steps(0, 1000, 3), max_samples=100)):
        try:
            found = read(answer)
        except (ValueError, EngineQueryError):
            continue
        assert found.values.dtype == np.float64
        assert len(found.labels) == len(found.values)
        assert all(isinstance(text, str) for one in found.labels for pair in one for text in pair)


def matrix_answer(*points: list[Any]) -> dict[str, Any]:
    return {"data": {"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": list(points)}]}}


def test_points_stand_where_they_belong() -> None:
    found = read_matrix(matrix_answer([0, "1"], [20.0, "+Inf"]), Steps(0, 10_000, 3), max_samples=3)
    assert found.present.tolist() == [[True, False, True]]
    assert (found.values[0, 0], found.values[0, 2]) == (1.0, math.inf)
    for wrong in ([5, "1"], [30, "1"], [-10, "1"], [math.nan, "1"]):
        with pytest.raises(ValueError, match="start"):
            read_matrix(matrix_answer(wrong), Steps(0, 10_000, 3), max_samples=100)


def test_a_sparse_answer_cannot_stand_for_a_large_array() -> None:
    with pytest.raises(EngineResultTooLarge, match="query_max_samples"):
        read_matrix(matrix_answer([0, "1"]), Steps(0, 10_000, 11_000), max_samples=10_999)


def test_a_vector_is_read() -> None:
    rows = [{"metric": {"a": "b", "__name__": "up"}, "value": [1700000000.5, "+Inf"]}]
    vector = read_vector({"data": {"resultType": "vector", "result": rows}, "warnings": ["w"]})
    assert vector.labels == [(("__name__", "up"), ("a", "b"))]
    assert (vector.time_ms, vector.values.tolist(), vector.warnings) == (1700000000500, [math.inf], ("w",))


def test_a_url_may_hold_credentials_and_a_token_is_sent() -> None:
    seen: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        text('{"status":"success"}', JSON)(request)

    with serving({"/api/v1/query": after_form(answer)}) as address:
        post_form(connect(f"http://u:p@{address}/", origin="--server"), "query", {})
        post_form(connect(f"http://{address}", origin="--server", token="t"), "query", {})
    assert seen == ["Basic dTpw", "Bearer t"]
