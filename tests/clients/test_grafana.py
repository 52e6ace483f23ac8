"""Grafana's own Prometheus data source on gpuscope: it makes of our answers what it makes of Prometheus'.

The program in `grafana/` is Grafana's backend for that data source, asked as its panels, its query editor and
its button "Save & test" ask it; what comes back are the frames its browser side draws. It asks gpuscope and a
real Prometheus with the same data. The two documents must be the same but for the words of errors and notices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clients.conftest import Locked, Pair
from tests.clients.go_client import ask, client
from tests.integration_api.servers import differences

Call = dict[str, Any]
Document = dict[str, Any]
METHODS = ["POST", "GET"]

PANELS: dict[str, list[dict[str, Any]]] = {
    "a time series": [{"expr": "watts", "range": True}],
    "a stat": [{"expr": "watts", "instant": True}],
    "a table": [{"expr": "gauge", "instant": True, "format": "table"}],
    "what an old dashboard asks, neither range nor instant": [{"expr": "avg(watts)"}],
    "both, with a legend": [
        {"expr": "sum by (node) (watts)", "range": True, "instant": True, "legendFormat": "GPUs of {{node}}"}
    ],
    "a rate over Grafana's interval": [
        {"expr": "rate(busy_seconds_total[$__rate_interval])", "range": True},
        {"expr": "increase(events_total[$__range])", "instant": True},
        {"expr": "avg_over_time(gauge[$__interval])", "range": True, "interval": "2m", "intervalFactor": 2},
    ],
    "several queries": [
        {"expr": "max by (gpu) (watts)", "range": True},
        {"expr": "gauge", "range": True, "legendFormat": "__auto"},
        {"expr": "nothing", "range": True},
        {"expr": "nothing", "instant": True},
        {"expr": "watts > 1e9", "range": True},
    ],
    "no numbers and all numbers": [
        {"expr": 'gauge{trouble=~"nan|infinite|both|stale|gaps"}', "range": True},
        {"expr": "vector(0) / 0", "instant": True},
        {"expr": "-vector(1) / 0", "range": True},
    ],
    "scalars, text and samples": [
        {"expr": "1 + 1", "instant": True},
        {"expr": "time()", "range": True},
        {"expr": '"text é"', "instant": True},
        {"expr": 'watts{node="a"}[5m]', "instant": True},
    ],
    "a heat map": [{"expr": "sum by (le) (rate(wait_seconds_bucket[5m]))", "range": True, "format": "heatmap"}],
    "notices": [
        {"expr": "rate(watts[5m])", "range": True},
        {"expr": "quantile(2, watts)", "instant": True},
        {"expr": "histogram_quantile(0.9, sum by (le) (rate(wait_seconds_bucket[5m])))", "range": True},
    ],
    "exemplars": [
        {"expr": "watts", "range": True, "exemplar": True},
        {"expr": "histogram_quantile(0.9, rate(wait_seconds_bucket[5m]))", "exemplar": True, "range": True},
    ],
    "wrong queries beside a right one": [
        {"expr": "sum(watts) by", "range": True},
        {"expr": "sum(", "instant": True, "range": True, "exemplar": True},
        {"expr": "no_such_function(watts)", "instant": True},
        {"expr": "watts + on (node) watts", "range": True},
        {"expr": "watts[5m]", "range": True},
        {"expr": "", "range": True},
        {"expr": "watts", "range": True},
    ],
}


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """Before any server is started for nothing."""
    client("grafana")


def panel(pair: Pair, queries: list[dict[str, Any]], **more: Any) -> Call:
    named = [{"refId": "ABCDEFG"[number], **query} for number, query in enumerate(queries)]
    return {"from": pair.day.start * 1000, "to": pair.day.end * 1000, "queries": named, **more}


def editor(path: str, parameters: dict[str, Any], method: str = "GET") -> Call:
    form = urlencode(parameters, doseq=True)
    return {
        "resource": {
            "method": method,
            "path": path,
            "query": form if method == "GET" else "",
            "body": form if method == "POST" else "",
        }
    }


def grafana(url: str, calls: list[Call], data_source: dict[str, Any] | None = None, **more: Any) -> Document:
    settings = {"url": url, "jsonData": {"httpMethod": "POST", "timeInterval": "15s"}, **(data_source or {})}
    return ask(client("grafana"), {"dataSource": settings, "calls": calls, **more})


def same(pair: Pair, calls: list[Call], data_source: dict[str, Any] | None = None, **more: Any) -> Document:
    """Asked of both; ours comes back, once they are the same."""
    ours, theirs = (
        comparable(grafana(url, calls, data_source, **more)) for url in (pair.gpuscope, pair.prometheus)
    )
    found = list(differences(ours, theirs))
    assert not found, found[:5]
    assert isinstance(ours, dict)
    return ours


def comparable(said: Any) -> Any:
    """Without the words of errors and notices; whether there is one, and of which kind, stays."""
    if isinstance(said, dict):
        return {key: _KIND_OF.get(key, comparable)(value) for key, value in said.items()}
    if isinstance(said, list):
        return [comparable(one) for one in said]
    return said


def _first_word(text: str) -> str:
    return text.partition(":")[0]


def _kind_of_line(line: str) -> str:
    message, _, error = line.rpartition(" err ")
    return f"{message} {_first_word(error)}"


def _in_order(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prometheus gives an instant query's series as they come; the first frame also names the query."""
    frames = comparable(frames)
    if any(frame["schema"].get("meta", {}).get("type") != "numeric-multi" for frame in frames):
        return frames
    for frame in frames:
        frame["schema"]["meta"].pop("executedQueryString", None)
    return sorted(frames, key=lambda frame: json.dumps(frame["schema"], sort_keys=True))


_KIND_OF: dict[str, Callable[[Any], Any]] = {
    "error": _first_word,  # bad_data: …, execution: …
    "notices": lambda notices: [{**one, "text": _first_word(one["text"])} for one in notices],
    "log": lambda lines: [_kind_of_line(line) for line in lines or []],
    "frames": _in_order,
}


def with_method(method: str) -> dict[str, Any]:
    return {"jsonData": {"httpMethod": method, "timeInterval": "15s"}}


def values(document: Document) -> Iterator[list[Any]]:
    """The columns of every frame."""
    for answer in document["answers"]:
        for result in answer["data"]["results"].values():
            for frame in result["frames"]:
                yield from frame["data"]["values"]


@pytest.mark.parametrize("method", METHODS)
def test_save_and_test(pair: Pair, method: str) -> None:
    said = same(pair, [{}], with_method(method))
    (answer,) = said["answers"]
    assert answer["health"]["status"] == "OK"
    assert answer["health"]["details"]["application"] == "Prometheus"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("queries", PANELS.values(), ids=PANELS)
def test_panels(pair: Pair, queries: list[dict[str, Any]], method: str) -> None:
    said = same(pair, [panel(pair, queries)], with_method(method))
    assert any(len(column) > 0 for column in values(said)), "something was compared"


@pytest.mark.parametrize("queries", PANELS.values(), ids=PANELS)
def test_panels_over_prometheus(through: Pair, queries: list[dict[str, Any]]) -> None:
    same(through, [panel(through, queries)])


def test_a_difference_is_found(pair: Pair) -> None:
    ours, theirs = (
        grafana(pair.gpuscope, [panel(pair, [{"expr": expr, "range": True}])])
        for expr in ("watts", "watts * (1 + 1e-11 * (timestamp(watts) % 2))")
    )
    assert list(differences(list(values(ours)), list(values(theirs))))


@pytest.mark.parametrize(
    "features", [["prometheusRunQueriesInParallel"], ["promQLScope"], ["prometheusDataplane"]]
)
def test_grafanas_feature_toggles(pair: Pair, features: list[str]) -> None:
    filters = [{"key": "gpu", "value": "0|2", "operator": "regex-match"}]
    queries = [
        {"expr": "sum(rate(busy_seconds_total[5m]))", "range": True, "adhocFilters": filters},
        {"expr": "sum(watts)", "instant": True, "groupByKeys": ["node"], "scopes": [{"filters": filters}]},
        {"expr": "watts", "range": True},
    ]
    same(pair, [panel(pair, queries)], features=features)


def test_an_alert_rule_asks_without_exemplars(pair: Pair) -> None:
    queries = [{"expr": "avg by (node) (watts) > 100", "instant": True, "exemplar": True}]
    same(pair, [panel(pair, queries, headers={"FromAlert": "true"})])


@pytest.mark.parametrize("method", METHODS)
def test_the_data_sources_own_settings(pair: Pair, method: str) -> None:
    options = {"httpMethod": method, "queryTimeout": "45s", "customQueryParameters": "limit=2&max_source=5m"}
    said = same(pair, [{}, panel(pair, PANELS["several queries"])], {"jsonData": options})
    assert len(said["answers"][1]["data"]["results"]["A"]["frames"]) == 2, "the limit reached the server"


EDITOR: dict[str, tuple[str, dict[str, Any]]] = {
    "labels": ("api/v1/labels", {}),
    "labels of a metric": ("api/v1/labels", {"match[]": "watts"}),
    "labels, a few": ("api/v1/labels", {"match[]": ["watts", 'gauge{trouble!=""}'], "limit": 2}),
    "series": ("api/v1/series", {"match[]": ["watts", "gauge"]}),
    "series of nothing": ("api/v1/series", {"match[]": "nothing"}),
    "series without a selector": ("api/v1/series", {}),
    "exemplars there are": ("api/v1/query_exemplars", {"query": "test"}),
    "a variable's query": ("api/v1/query", {"query": "topk(3, watts)"}),
    "a variable's range": ("api/v1/query_range", {"query": "watts", "step": "5m"}),
    "a query put in order": ("api/v1/format_query", {"query": "sum(  rate(a [5m])) by(b)"}),
    "a wrong query put in order": ("api/v1/format_query", {"query": "sum("}),
}
ONLY_GET: dict[str, tuple[str, dict[str, Any]]] = {
    "metric names": ("api/v1/label/__name__/values", {}),
    "metric names like": ("api/v1/label/__name__/values", {"match[]": '{__name__=~".*(?i:BUSY).*"}'}),
    "metric names, a few": ("api/v1/label/__name__/values", {"limit": 3}),
    "values of a label": ("api/v1/label/node/values", {"match[]": 'watts{gpu=~"0|1"}'}),
    "values of a label nobody has": ("api/v1/label/nothing/values", {}),
    "values of an escaped label": ("api/v1/label/U__a_2e_b/values", {}),
    "metadata": ("api/v1/metadata", {"limit": 40000}),
    "metadata of a metric": ("api/v1/metadata", {"metric": "gpuscope_gpu_utilization_ratio"}),
    "metadata of none": ("api/v1/metadata", {"metric": "nothing"}),
    "rules": ("api/v1/rules", {}),
    "rules that alert": ("api/v1/rules", {"type": "alert"}),
    "alerts": ("api/v1/alerts", {}),
    "alertmanagers": ("api/v1/alertmanagers", {}),
    "something new": ("api/v1/nothing_of_this_year", {}),
}


def in_order(said: Document) -> Document:
    """Series come as they come."""
    for answer in said["answers"]:
        data = answer["resource"]["body"].get("data") if isinstance(answer["resource"]["body"], dict) else None
        if isinstance(data, list) and data and isinstance(data[0], dict):
            data.sort(key=lambda labels: sorted(labels.items()))
    return said


def span(pair: Pair) -> dict[str, int]:
    """Up to now: Prometheus does not look closer than its blocks, and would name what was scraped later too."""
    return {"start": pair.day.start, "end": pair.day.end + 24 * 3600}


def same_for_editor(pair: Pair, calls: list[Call]) -> Document:
    ours, theirs = (in_order(comparable(grafana(url, calls))) for url in (pair.gpuscope, pair.prometheus))
    for number, pages in enumerate(zip(ours["answers"], theirs["answers"], strict=True)):
        if {page["resource"]["status"] for page in pages} <= {"404", "405"}:
            for page in pages:
                page["resource"] = {"status": page["resource"]["status"]}  # a page for people, in its own words
        found = list(differences(*pages))
        assert not found, (calls[number], found[:5])
    return ours


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("path", "asked"), EDITOR.values(), ids=EDITOR)
def test_the_query_editor(pair: Pair, path: str, asked: dict[str, Any], method: str) -> None:
    whole = {**asked, "time": pair.day.middle, "start": pair.day.start, "end": pair.day.end}
    if path.endswith("labels"):
        whole |= span(pair)
    same_for_editor(pair, [editor(path, whole, method)])


@pytest.mark.parametrize(("path", "asked"), ONLY_GET.values(), ids=ONLY_GET)
def test_the_query_editors_lists(pair: Pair, path: str, asked: dict[str, Any]) -> None:
    # By POST the answer is 405, upon which Grafana asks again by GET.
    whole = asked | span(pair)
    same_for_editor(pair, [editor(path, whole), editor(path, whole, "POST")])


def test_the_query_editor_over_prometheus(through: Pair) -> None:
    for path, asked in [*EDITOR.values(), *ONLY_GET.values()]:
        same_for_editor(through, [editor(path, {"time": through.day.middle, **asked, **span(through)})])


def test_the_version_grafana_adapts_itself_to(pair: Pair) -> None:
    calls = [editor("api/v1/status/buildinfo", {})]
    ours, theirs = (grafana(url, calls)["answers"][0]["resource"] for url in (pair.gpuscope, pair.prometheus))
    versions = [page["body"]["data"]["version"].split(".")[0] for page in (ours, theirs)]
    assert versions == ["3", "3"]
    assert (ours["status"], ours["contentType"]) == (theirs["status"], theirs["contentType"])


SUGGESTIONS: list[dict[str, Any]] = [
    {"queries": ["sum(watts)", "gauge + 1"]},
    {"queries": ["rate(busy_seconds_total[$__rate_interval])", "not a ) query"], "limit": 1},
    {
        "labelName": "node",
        "queries": ["watts"],
        "scopes": [{"key": "gpu", "value": "0|1", "operator": "regex-match"}],
    },
    {
        "labelName": "node",
        "queries": ["watts"],
        "adhocFilters": [{"key": "gpu", "value": "0", "operator": "equals"}],
    },
    {"scopes": [{"key": "gpu", "values": ["0", "1"], "operator": "one-of"}]},
    {"labelName": "trouble"},
    {},
]


@pytest.mark.parametrize("asked", SUGGESTIONS, ids=str)
def test_suggestions(pair: Pair, asked: dict[str, Any]) -> None:
    within = {"start": str(pair.day.start), "end": str(pair.day.end + 24 * 3600)}
    call = {"resource": {"method": "POST", "path": "suggestions", "body": json.dumps({**within, **asked})}}
    same_for_editor(pair, [call])


def let_in(said: Document) -> list[bool]:
    health, panel_, list_ = said["answers"]
    return [
        health["health"]["status"] == "OK",
        "error" not in panel_["data"]["results"]["A"],
        list_["resource"]["status"] == "200",
    ]


def test_a_login(locked: Locked) -> None:
    calls: list[Call] = [
        {},
        {"from": 0, "to": 60_000, "queries": [{"refId": "A", "expr": "vector(1)", "range": True}]},
        editor("api/v1/labels", {}, "POST"),
    ]
    header = {"jsonData": {"httpHeaderName1": "Authorization"}}
    bearer = {**header, "secureJsonData": {"httpHeaderValue1": f"Bearer {locked.token}"}}
    wrong = {**header, "secureJsonData": {"httpHeaderValue1": "Bearer nothing"}}
    basic = {"basicAuthUser": locked.user, "secureJsonData": {"basicAuthPassword": locked.password}}
    assert let_in(grafana(locked.url, calls, bearer)) == [True] * 3
    assert let_in(grafana(locked.url, calls, basic)) == [True] * 3
    assert let_in(grafana(locked.url, calls, wrong)) == [False] * 3
    refused = grafana(locked.url, calls)
    assert let_in(refused) == [False] * 3
    assert "401" in refused["answers"][0]["health"]["message"], "Grafana's user sees why"
