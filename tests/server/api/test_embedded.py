"""The API over a small store, asked as Grafana and promtool ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuscope.history.promql import Engine
from gpuscope.history.scrape.target_appender import STALE
from gpuscope.history.store import Store, Tick
from gpuscope.serve.api.embedded import ENDPOINTS, METHODS, EmbeddedApi
from gpuscope.serve.http.messages import Router
from tests.examples import examples
from tests.server.client import Client

START = 1_700_000_000
CLOCK_MS = (START + 1000) * 1000


class AtTheEnd:
    def now_ms(self) -> int:
        return CLOCK_MS

    def monotonic_ms(self) -> int:
        return self.now_ms()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = Store(tmp_path_factory.mktemp("store"), clock=AtTheEnd())
    target = store.target("t")
    ids = store.resolve(
        target,
        [
            (("__name__", "temp"), ("gpu", "0"), ("job", "a")),
            (("__name__", "temp"), ("gpu", "1"), ("job", "a")),
            (("__name__", "power"), ("gpu", "0"), ("name", 'odd"\n<x>')),
        ],
    )
    for step in range(61):
        values = np.array([40.0 + step, 50.0, 100.0])
        if step == 60:
            values[1] = STALE
        store.append(Tick(target, (START + 15 * step) * 1000, ids, values))
    with Client(Router(EmbeddedApi(store, Engine(store)).routes())) as client:
        yield client
    store.close()


def data(client: Client, path: str, **parameters: Any) -> Any:
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["status"] == "success"
    return body["data"]


def error(client: Client, path: str, **parameters: Any) -> tuple[int, str, str]:
    answer = client.get(path, params=parameters)
    body = answer.json()
    assert body["status"] == "error"
    return answer.status_code, body["errorType"], body["error"]


END = START + 900


def test_an_instant_query_by_get_and_by_post(client: Client) -> None:
    expected = {
        "resultType": "vector",
        "result": [{"metric": {"__name__": "temp", "gpu": "0", "job": "a"}, "value": [END, "100"]}],
    }
    assert data(client, "/api/v1/query", query="temp", time=END) == expected
    posted = client.post("/api/v1/query", data={"query": "temp", "time": "2023-11-14T22:28:20Z"})
    assert posted.json()["data"] == expected


def test_a_range_query(client: Client) -> None:
    answer = data(client, "/api/v1/query_range", query="sum(temp)", start=START, end=START + 60, step="30s")
    assert answer["result"] == [
        {"metric": {}, "values": [[START, "90"], [START + 30, "92"], [START + 60, "94"]]}
    ]


def test_series_labels_and_values(client: Client) -> None:
    assert data(client, "/api/v1/labels") == ["__name__", "gpu", "job", "name"]
    assert data(client, "/api/v1/labels", **{"match[]": "temp"}) == ["__name__", "gpu", "job"]
    assert data(client, "/api/v1/label/gpu/values") == ["0", "1"]
    assert data(client, "/api/v1/label/name/values") == ['odd"\n<x>']
    series = data(client, "/api/v1/series", **{"match[]": ['temp{gpu="1"}', "power"]})
    assert [s["__name__"] for s in series] == ["power", "temp"]
    limited = client.get("/api/v1/label/gpu/values", params={"limit": 1}).json()
    assert limited["data"] == ["0"]
    assert limited["warnings"] == ["results truncated due to limit"]


@pytest.mark.parametrize(
    ("path", "parameters", "status", "kind"),
    [
        ("/api/v1/query", {"query": "sum("}, 400, "bad_data"),
        ("/api/v1/query", {"query": "temp", "time": "yesterday"}, 400, "bad_data"),
        ("/api/v1/query", {"query": "temp", "time": "NaN"}, 400, "bad_data"),
        ("/api/v1/query", {"query": "temp + on(job) temp", "time": START}, 422, "execution"),
        ("/api/v1/query_range", {"query": "temp", "start": 0, "end": 10}, 400, "bad_data"),
        ("/api/v1/query_range", {"query": "temp", "start": 9, "end": 1, "step": 1}, 400, "bad_data"),
        ("/api/v1/query_range", {"query": "temp", "start": 0, "end": 1e6, "step": 1}, 400, "bad_data"),
        ("/api/v1/query_range", {"query": "temp", "start": 0, "end": 1, "step": "0"}, 400, "bad_data"),
        ("/api/v1/series", {}, 400, "bad_data"),
        ("/api/v1/series", {"match[]": "sum(temp)"}, 400, "bad_data"),
        ("/api/v1/labels", {"limit": "-1"}, 400, "bad_data"),
    ],
)
def test_mistakes_have_prometheus_shape_and_status(
    client: Client, path: str, parameters: dict[str, Any], status: int, kind: str
) -> None:
    assert error(client, path, **parameters)[:2] == (status, kind)


def test_status_pages_and_what_is_empty(client: Client) -> None:
    assert data(client, "/api/v1/status/buildinfo")["version"].startswith("3.")
    assert data(client, "/api/v1/status/tsdb")["headStats"]["numSeries"] == 3
    assert data(client, "/api/v1/status/runtimeinfo")["corruptionCount"] == 0
    assert data(client, "/api/v1/rules") == {"groups": []}
    assert data(client, "/api/v1/alerts") == {"alerts": []}
    assert data(client, "/api/v1/targets")["activeTargets"] == []
    assert data(client, "/api/v1/metadata") == {}
    assert data(client, "/api/v1/format_query", query="sum( temp )by(gpu)") == "sum by (gpu) (temp)"


def test_a_form_too_large_is_refused(client: Client) -> None:
    answer = client.post("/api/v1/query", data={"query": "x" * (2 << 20)})
    assert answer.status_code == 400


def test_federation_sends_the_newest_sample_and_nothing_stale(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscope.serve.api.series_routes.now_ms", lambda: END * 1000)
    text = client.get("/federate", params={"match[]": ['{__name__=~".+"}', "temp"]}).text
    assert text == (
        "# TYPE power untyped\n"
        f'power{{gpu="0",name="odd\\"\\n<x>",instance=""}} 100 {END}000\n'
        "# TYPE temp untyped\n"
        f'temp{{gpu="0",job="a",instance=""}} 100 {END}000\n'
    )


PATHS = [path.replace("{name}", "gpu") for path in ENDPOINTS]
NAMES = [
    "query", "time", "start", "end", "step", "timeout", "lookback_delta", "limit", "match[]", "stats",
    "metric", "state",
    "limit_per_metric", "match_target", "type", "exclude_alerts", "group_limit", "group_next_token",
    "scrapePool",
]  # fmt: skip
VALUES = [
    "temp", "sum(temp)", "temp[5m]", "{}", "(", "1", "0", "-1", "NaN", "Inf", "-Inf", "1e18", "1e308",
    "9223372036854775807",
    "1ms", "1y", "2023-11-14T22:28:20Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z",
    "-292273086-05-16T16:47:06Z",
    "292277025-08-18T07:12:54.999999999Z", "all", "true", "%zz", "temp[5m:1s]", "temp @ end() offset -1y",
    "+temp", "5m", '""',
    "temp{gpu=~'.*'}", "histogram_count(temp)", "1700000000", "1700000900", "60",
]  # fmt: skip
soup = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.text(max_size=12)), max_size=7)


@settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(path=st.sampled_from(PATHS), pairs=soup, posted=st.booleans())
@example(path="/api/v1/query", pairs=[("timeout", "0")], posted=False)
def test_any_parameters_get_an_answer(
    client: Client, path: str, pairs: list[tuple[str, str]], posted: bool
) -> None:
    """A server error would be raised here; none of these is one."""
    usual = [("query", "temp"), ("start", str(START)), ("end", str(END)), ("step", "60")]
    form = urlencode([*pairs, *usual], errors="replace")
    if posted and path in METHODS:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = client.post(path, content=form.encode(), headers=kind)
    else:
        answer = client.get(f"{path}?{form}")
    too_short = 503 if any(name == "timeout" for name, _ in pairs) else 200  # a time-out as asked is no fault
    assert answer.status_code in (200, 204, 400, 422, too_short), answer.text
    if answer.status_code != 204 and path != "/federate":
        assert answer.json()["status"] == ("success" if answer.status_code == 200 else "error")


@settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    path=st.sampled_from(PATHS),
    raw=st.binary(max_size=60),
    name=st.text(st.characters(codec="utf-8", exclude_characters="/?#"), min_size=1, max_size=8),
)
def test_any_bytes_get_an_answer(client: Client, path: str, raw: bytes, name: str) -> None:
    as_query = quote(raw, safe="&=;+%[]")
    for target in (f"{path}?{as_query}", f"/api/v1/label/{quote(name, safe='')}/values?{as_query}"):
        assert client.get(target).status_code in (200, 204, 400, 404, 422)
    if path in METHODS:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post(path, content=raw, headers=kind).status_code in (200, 204, 400, 422)


def test_a_short_query_has_statistics(client: Client) -> None:
    stats = data(client, "/api/v1/query", query="sum(temp)", time=START, stats="all")["stats"]
    assert stats["samples"]["totalQueryableSamples"] == 2
    assert stats["samples"]["totalQueryableSamplesPerStep"] == [[START, 2]]
    assert stats["timings"]["execTotalTime"] >= stats["timings"]["innerEvalTime"] > 0
    assert "stats" not in data(client, "/api/v1/query", query="temp", time=START)


def test_a_query_is_described(client: Client) -> None:
    told = data(client, "/api/v1/parse_query", query="-(temp)")
    assert told["type"] == "unaryExpr"
    assert told["expr"]["expr"]["matchers"] == [{"name": "__name__", "value": "temp", "type": "="}]
