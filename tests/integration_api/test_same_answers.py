"""The same requests to a real Prometheus and to us: status, content type and JSON are the same."""

from __future__ import annotations

import pytest

from tests.integration_api.servers import Answer, Day, Parameters, ask, differences
from tests.promql.prometheus import warned

INSTANT = [
    "watts",
    '{__name__=~"watts|busy_seconds_total", node="a"}',
    "sum by (node) (watts)",
    "topk(2, watts)",
    "sort_desc(watts)",
    "rate(busy_seconds_total[5m])",
    'absent(nothing{a="b"})',
    "watts[2m]",
    "watts[10m:1m]",
    "scalar(count(watts)) + 1",
    "vector(1) / 0",
    "-vector(1) / 0",
    "vector(0) / 0",
    "1e-7 * vector(1)",
    "1e21 * vector(1)",
    '"text é"',
    "label_replace(watts, 'x', '$1', 'node', '(.*)')",
    "histogram_quantile(0.9, sum by (le) (rate(wait_seconds_bucket[5m])))",
    "quantile(2, watts)",
    "rate(watts[5m])",
    "nothing",
]
RANGES = [
    "watts",
    "avg by (node) (watts)",
    "rate(busy_seconds_total[5m])",
    "max_over_time(watts[10m]) - min_over_time(watts[10m])",
    'watts{node="a"} / on (gpu) group_left () sum by (gpu) (watts)',
    "gauge",
    "time()",
    "nothing",
    "watts > 1e9",
]
ODD_INSTANTS: list[Parameters] = [
    {},
    {"query": "watts["},
    {"query": "sum(watts) by"},
    {"query": "no_such_function(watts)"},
    {"query": "rate(watts)"},
    {"query": "watts + on (node) watts"},
    {"query": "watts", "time": "yesterday"},
    {"query": "watts", "timeout": "soon"},
    {"query": "watts", "limit": 2},
    {"query": "watts", "limit": 0},
    {"query": "watts", "limit": -1},
    {"query": "watts", "limit": "some"},
    {"query": "watts[1m]", "limit": 1},
    {"query": "watts", "lookback_delta": "1s"},
    {"query": "watts", "lookback_delta": "far"},
]


def compared(answer: Answer, *, in_order: bool) -> Answer:
    """Without what may differ: the words of errors and notes, and the order of a vector that is not sorted."""
    if not isinstance(answer.body, dict):
        return Answer(answer.status, answer.kind.partition(";")[0], "")
    body = {**answer.body}
    data = body.get("data")
    if not in_order and isinstance(data, dict) and data.get("resultType") == "vector":
        body["data"] = {**data, "result": sorted(data["result"], key=lambda one: sorted_labels(one["metric"]))}
    if isinstance(body.get("data"), list) and all(isinstance(one, dict) for one in body["data"]):
        body["data"] = sorted(body["data"], key=sorted_labels)  # Prometheus gives series as they come
    if "error" in body:
        assert body["error"], "an error says something"
        body["error"] = "…"
    if not warned(body.get("warnings", ())):
        body.pop("warnings", None)
    for notes in ("warnings", "infos"):
        if notes in body:
            body[notes] = len(body[notes])
    return Answer(answer.status, answer.kind, body)


def sorted_labels(series: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(series.items())


def check(
    gpuscope: str, prometheus: str, path: str, parameters: Parameters, *, post: bool = True
) -> tuple[Answer, Answer]:
    """Asked by GET and, if `post`, by POST too; the last pair of answers comes back."""
    found = []
    for way in (False, True) if post else (False,):
        ours, theirs = (ask(url, path, parameters, post=way) for url in (gpuscope, prometheus))
        in_order = str(parameters.get("query", "")).startswith(("sort", "topk"))
        mine, its = (compared(one, in_order=in_order) for one in (ours, theirs))
        assert (mine.status, mine.kind) == (its.status, its.kind), (ours, theirs)
        found += list(differences(mine.body, its.body))
    assert not found, found[:5]
    return ours, theirs


@pytest.mark.parametrize("query", INSTANT)
def test_instant_queries(gpuscope: str, prometheus: str, day: Day, query: str) -> None:
    for time in (day.middle, day.middle + 0.5, day.end + 120, day.start - 3600):
        check(gpuscope, prometheus, "/api/v1/query", {"query": query, "time": time})


def test_a_time_may_be_written_as_a_date(gpuscope: str, prometheus: str) -> None:
    for time in ("2023-11-14T22:13:20Z", "2023-11-14T23:13:20.5+01:00"):
        check(gpuscope, prometheus, "/api/v1/query", {"query": "vector(1)", "time": time})


@pytest.mark.parametrize("step", ["60", "1m30s", "7.919"])
@pytest.mark.parametrize("query", RANGES)
def test_range_queries(gpuscope: str, prometheus: str, day: Day, query: str, step: str) -> None:
    parameters = {"query": query, "start": day.start - 300, "end": day.end + 600, "step": step}
    check(gpuscope, prometheus, "/api/v1/query_range", parameters)


@pytest.mark.parametrize("parameters", ODD_INSTANTS, ids=str)
def test_odd_instant_queries(gpuscope: str, prometheus: str, day: Day, parameters: Parameters) -> None:
    check(gpuscope, prometheus, "/api/v1/query", {"time": day.middle, **parameters})


@pytest.mark.parametrize(
    "change",
    [
        {"step": "0"}, {"step": "-1"}, {"step": ""}, {"step": "often"}, {"step": "0.1"}, {"start": ""},
        {"start": "x"}, {"end": "1"}, {"query": "watts[1m]"}, {"query": '"x"'}, {"query": "sum("},
        {"query": "watts", "limit": "1"}, {"query": "rate(watts[5m])", "limit": "-3"},
    ],
    ids=str,
)  # fmt: skip
def test_odd_range_queries(gpuscope: str, prometheus: str, day: Day, change: Parameters) -> None:
    asked = {"query": "watts", "start": day.start, "end": day.end, "step": 60, **change}
    check(gpuscope, prometheus, "/api/v1/query_range", asked)


@pytest.mark.parametrize(
    "parameters",
    [
        {"match[]": "watts"}, {"match[]": ["watts", 'gauge{a!="b"}']}, {"match[]": '{node=~"a|b"}'}, {},
        {"match[]": "{}"}, {"match[]": "watts{"}, {"match[]": "sum(watts)"}, {"match[]": '{node=~".*"}'},
        {"match[]": "watts", "limit": 2}, {"match[]": "watts", "limit": "x"},
        {"match[]": "watts", "start": "x"},
        {"match[]": "watts", "start": 10, "end": 20}, {"match[]": "nothing"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/series", "/api/v1/labels", "/api/v1/label/node/values"])
def test_series_and_labels(gpuscope: str, prometheus: str, path: str, parameters: Parameters) -> None:
    check(gpuscope, prometheus, path, parameters, post="values" not in path)


@pytest.mark.parametrize("name", ["__name__", "le", "nothing", "a%20b", "U__a_2e_b"])
def test_values_of_a_label(gpuscope: str, prometheus: str, name: str) -> None:
    check(gpuscope, prometheus, f"/api/v1/label/{name}/values", {}, post=False)


def test_labels_within_a_time(gpuscope: str, prometheus: str, day: Day) -> None:
    for path in ("/api/v1/series", "/api/v1/labels", "/api/v1/label/__name__/values"):
        asked = {"match[]": '{__name__=~".+"}', "start": day.start, "end": day.end}
        check(gpuscope, prometheus, path, asked, post="values" not in path)


@pytest.mark.parametrize(
    "query",
    [
        "sum(  a )",
        "sum by(x,y)(rate(a[5m]))",
        "a+b*c",
        "topk(3,a)",
        "a{b='c',d!~\"e\"} offset 5m",
        "-a ^ 2",
        "sum(",
    ],
)
def test_formatting(gpuscope: str, prometheus: str, query: str) -> None:
    check(gpuscope, prometheus, "/api/v1/format_query", {"query": query})


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/api/v1/metadata", {}), ("/api/v1/metadata", {"metric": "x"}), ("/api/v1/metadata", {"limit": "x"}),
        ("/api/v1/targets", {}), ("/api/v1/targets", {"state": "active"}), ("/api/v1/targets", {"state": "x"}),
        ("/api/v1/scrape_pools", {}), ("/api/v1/rules", {}), ("/api/v1/rules", {"type": "alert"}),
        ("/api/v1/rules", {"type": "x"}), ("/api/v1/alerts", {}), ("/api/v1/alertmanagers", {}),
        ("/api/v1/notifications", {}), ("/api/v1/status/walreplay", {}), ("/api/v1/query_exemplars", {}),
        ("/api/v1/query_exemplars", {"query": "watts", "start": 0, "end": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_empty_is_empty_in_the_same_way(
    gpuscope: str, prometheus: str, path: str, parameters: Parameters
) -> None:
    check(gpuscope, prometheus, path, parameters, post=False)


@pytest.mark.parametrize(
    "path", ["metadata", "targets", "rules", "alerts", "label/node/values", "status/buildinfo", "status/tsdb"]
)
def test_what_may_not_be_posted(gpuscope: str, prometheus: str, path: str) -> None:
    statuses = [ask(url, f"/api/v1/{path}", {}, post=True).status for url in (gpuscope, prometheus)]
    assert statuses == [405, 405]


@pytest.mark.parametrize("path", ["buildinfo", "runtimeinfo", "tsdb", "config", "flags"])
def test_the_status_pages_have_what_clients_read(gpuscope: str, prometheus: str, path: str) -> None:
    ours, theirs = (ask(url, f"/api/v1/status/{path}") for url in (gpuscope, prometheus))
    assert (ours.status, ours.kind) == (theirs.status, theirs.kind)
    about_go = {"GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GODEBUG"}
    if path != "flags":
        assert theirs.body["data"].keys() - about_go <= ours.body["data"].keys()
    if path == "tsdb":
        for part in ("headStats", "labelValueCountByLabelName"):
            mine, its = ours.body["data"][part], theirs.body["data"][part]
            if part == "headStats":
                mine, its = ({k: v for k, v in one.items() if k != "chunkCount"} for one in (mine, its))
                assert mine == its
            else:
                assert {one["name"]: one["value"] for one in mine} == {one["name"]: one["value"] for one in its}


def test_nothing_is_nothing(gpuscope: str, prometheus: str) -> None:
    for path in ("/api/v1/nothing", "/api/v2/query"):
        assert [ask(url, path).status for url in (gpuscope, prometheus)] == [404, 404]
