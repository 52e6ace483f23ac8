"""Many selectors or parameters, deep and odd expressions: answered or refused, never 500, not on the loop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import Engine
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.store import Store
from gpuscope.serve.api import parameters
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.http.messages import Router
from tests.server.client import Client

SELECTING = ["/api/v1/series", "/api/v1/labels", "/api/v1/label/a/values", "/federate"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = Store(tmp_path_factory.mktemp("store"))
    api = EmbeddedApi(store, Engine(store), limits=Limits(query_max_selectors=50), with_admin=True)
    with Client(Router(api.routes())) as client:
        yield client
    store.close()


@pytest.mark.parametrize("path", SELECTING)
def test_the_number_of_selectors_is_limited(client: Client, path: str) -> None:
    before = LIMITS_REACHED.counts()["query_max_selectors"]
    assert client.get(path, params={"match[]": ["up"] * 50}).status_code == 200
    answer = client.get(path, params={"match[]": ["up"] * 51})
    assert answer.status_code == 400
    assert "query_max_selectors" in answer.text
    assert LIMITS_REACHED.counts()["query_max_selectors"] == before + 1


def test_so_is_that_of_deletions(client: Client) -> None:
    target = "/api/v1/admin/tsdb/delete_series"
    assert client.post(target, params={"match[]": ["up"] * 51}).status_code == 400
    assert client.post(target, params={"match[]": ["up"] * 50}).status_code == 204


def test_the_number_of_parameters_is_limited(client: Client) -> None:
    answer = client.get("/api/v1/query?query=1&" + "&".join(["a=b"] * 200))
    assert answer.status_code == 400
    assert "parameters" in answer.text


@pytest.mark.parametrize("path", SELECTING)
def test_selectors_are_parsed_in_a_thread(client: Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = parse_selector

    def noted(text: str) -> Any:
        names.append(threading.current_thread().name)
        return real(text)

    monkeypatch.setattr(parameters, "parse_selector", noted)
    assert client.get(path, params={"match[]": ["up"]}).status_code == 200
    assert [name.startswith("gpuscope-query") for name in names] == [True]


QUERIES = {
    "390 terms": " + ".join(["1"] * 390),
    "390 series": " + ".join(["up"] * 390),
    "parentheses": "(" * 199 + "1" + ")" * 199,
    "too many parentheses": "(" * 500 + "1" + ")" * 500,
    "signs": "-" * 399 + "up",
    "calls": "abs(" * 199 + "up" + ")" * 199,
    "calls and terms": "abs(1+" * 199 + "up" + ")" * 199,
    "subqueries": "sum_over_time(" * 60 + "up" + "[1m:1m])" * 60,
    "aggregations": "sum by (a) (" * 199 + "up" + ")" * 199,
    "powers": "^".join(["2"] * 390),
    "sets": " or ".join(["up"] * 390),
    "durations": "up[" + "(" * 190 + "1" + ")" * 190 + "]",
    "a long duration": "up[" + "+".join(["1s"] * 390) + "]",
    "bytes that are no UTF-8": '"\udcff"',
    "escaped bytes": '"\\xff\\377\\ud800"',
    "a name of such bytes": 'label_replace(vector(1), "\\xff", "x", "", "")',
    "a value of such bytes": 'label_replace(vector(1), "a", "\\xff", "", "")',
    "null": "\0",
    "a long name": "a" * 90_000,
    "a long string": '"' + "\\n" * 3000 + '"',
    "many matchers": "up{" + ",".join(f'a{n}="b"' for n in range(5000)) + "}",
    "many labels": "sum by (" + ",".join(f"a{n}" for n in range(9000)) + ") (up)",
    "a large regex": 'up{a=~"' + "(a|b)*" * 2000 + '"}',
    "a growing regex": 'up{a=~"' + "((a{1,100}){1,100}){1,100}" + '"}',
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("path", ["query", "query_range", "parse_query", "format_query", "query_exemplars"])
def test_no_expression_is_an_internal_error(client: Client, path: str, name: str) -> None:
    parameters = {"query": QUERIES[name].encode("utf-8", "surrogateescape"), "time": "1"}
    if path in ("query_range", "query_exemplars"):
        parameters |= {"start": "1", "end": "100", "step": "10"}
    answer = client.post(f"/api/v1/{path}", data=parameters)
    assert answer.status_code in (200, 204, 400, 422), (answer.status_code, answer.text[:300])
    if answer.status_code != 204:
        json.loads(answer.content)


def test_a_deep_tree_is_told_whole(client: Client) -> None:
    told = client.get("/api/v1/parse_query", params={"query": QUERIES["390 terms"]})
    assert told.status_code == 200, told.text[:200]
    assert told.text.count('"binaryExpr"') == 389
