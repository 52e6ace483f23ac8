"""prometheus-adapter on gpuscope: what it offers Kubernetes' autoscaler is what it offers of a Prometheus.

The program in `prometheus_adapter/` is the adapter's own client, rules and providers. It gets the rules that
docs/grafana.md tells people to use, and asks gpuscope and a real Prometheus that scrape the same exporter.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Locked, Pair
from tests.clients.go_client import ask, client
from tests.integration_api.servers import differences

Call = dict[str, Any]
Document = dict[str, Any]
VERBS = ["GET", "POST"]
DOCUMENTED = Path(__file__).parents[2] / "docs" / "grafana.md"
PODS = [
    {"namespace": "ml", "name": "trainer-0", "labels": {"app": "trainer"}},
    {"namespace": "ml", "name": "trainer-1", "labels": {"app": "trainer"}},
    {"namespace": "ml", "name": "trainer-2", "labels": {"app": "trainer"}},  # has no GPU yet
    {"namespace": "ml", "name": "notebook", "labels": {"app": "notebook"}},
    {"namespace": "web", "name": "trainer-0", "labels": {"app": "trainer"}},
]
OTHER_RULES = """
rules:
  - seriesQuery: '{__name__=~"^gpuscope_owner_.*",namespace!="",name!=""}'
    seriesFilters: [{isNot: ".*_bytes$"}]
    resources: {overrides: {namespace: {resource: namespace}, name: {resource: pod}}}
    name: {matches: "^gpuscope_(.*)_ratio$", as: "${1}_percent"}
    metricsQuery: '100 * sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'
  - seriesQuery: '{__name__=~"^gpuscope_owner_.*",namespace!="",name!=""}'
    seriesFilters: [{is: ".*_bytes$"}]
    resources: {template: "<<.Resource>>"}
    metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'
  - seriesQuery: 'nothing_of_the_kind'  # an empty list, or the adapter drops all the others
    resources: {template: "<<.Resource>>"}
    metricsQuery: '<<.Series>>'
externalRules:
  - seriesQuery: '{__name__="gpuscope_gpu_utilization_ratio",uuid!=""}'
    resources: {namespaced: false}
    metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>}) by (gpu)'
  - seriesQuery: 'gpuscope_owner_sm_ratio'
    resources: {overrides: {namespace: {resource: namespace}}}
    name: {as: scalar_of_owners}
    metricsQuery: 'scalar(count(<<.Series>>{<<.LabelMatchers>>}))'
  - seriesQuery: 'up'
    resources: {namespaced: false}
    name: {as: wrong}
    metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>'
"""


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """Before any server is started for nothing."""
    client("prometheus_adapter")


def documented_rules() -> str:
    blocks: list[str] = re.findall(r"```yaml\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    (rules,) = [block for block in blocks if block.startswith("rules:")]
    return rules


def adapter(url: str, calls: list[Call], **more: Any) -> Document:
    scene = {"verb": "GET", "maxAge": "10m", "config": documented_rules(), "pods": PODS, "calls": calls}
    return ask(client("prometheus_adapter"), {"url": url, **scene, **more})


def same(pair: Pair, calls: list[Call], **more: Any) -> Document:
    """Asked of both; ours comes back, once they are the same."""
    ours, theirs = (adapter(url, calls, **more) for url in (pair.gpuscope, pair.prometheus))
    for document in (ours, theirs):  # the words are each server's own
        document["failures"] = [line.split(": ")[0] for line in document["failures"]]
        for answer in document["answers"]:
            answer["error"] = answer.get("error", "").split(": ")[0]
            if isinstance(answer.get("found"), dict) and answer["found"].get("Vector"):
                # Prometheus gives an instant query's series as they come.
                answer["found"]["Vector"].sort(key=lambda one: sorted(one["metric"].items()))
    unlike = list(differences(ours, theirs))
    assert not unlike, unlike[:5]
    return ours


def found(said: Document) -> list[Any]:
    assert not said["failures"]
    return [answer.get("found", answer["error"]) for answer in said["answers"]]


@pytest.mark.parametrize("verb", VERBS)
def test_the_documented_rules_offer_what_the_page_says(pair: Pair, verb: str) -> None:
    custom, external = found(same(pair, [{"list": "custom"}, {"list": "external"}], verb=verb))
    assert custom == [
        "namespaces/gpu_memory_bytes",
        "namespaces/gpu_utilization_ratio",
        "pods/gpu_memory_bytes(namespaced)",
        "pods/gpu_utilization_ratio(namespaced)",
    ]
    assert external == ["gpu_fleet_utilization_ratio"]


@pytest.mark.parametrize("verb", VERBS)
def test_an_autoscaler_asks_for_its_pods(pair: Pair, verb: str) -> None:
    metric = {"metric": "gpu_utilization_ratio", "namespace": "ml", "deadline": "60s"}
    said = same(pair, [{**metric, "objects": "app=trainer"}, {**metric, "objects": "app=notebook"}], verb=verb)
    trainers, notebooks = found(said)
    # trainer-0 is on two GPUs, trainer-2 on none: no value, not 0. The namesake in `web` is somebody else.
    assert [(one["object"], one["value"]) for one in trainers] == [
        ("Pod ml/trainer-0", "500m"),
        ("Pod ml/trainer-1", "930m"),
    ]
    assert [(one["object"], one["value"]) for one in notebooks] == [("Pod ml/notebook", "0")]


@pytest.mark.parametrize("verb", VERBS)
def test_single_objects_and_what_is_not_there(pair: Pair, verb: str) -> None:
    pod = {"metric": "gpu_memory_bytes", "namespace": "ml"}
    said = same(
        pair,
        [
            {**pod, "name": "trainer-0"},
            {**pod, "name": "trainer-1"},  # not a number
            {**pod, "name": "trainer-2"},
            {**pod, "name": "trainer-0", "selector": "gpu in (1)"},
            {**pod, "name": "trainer-0", "selector": "gpu notin (1, 7),uuid"},
            {**pod, "metric": "nothing", "name": "trainer-0"},
            {"metric": "gpu_utilization_ratio", "resource": "namespaces", "name": "ml"},
        ],
        verb=verb,
    )
    values = [one["value"] if isinstance(one, dict) else one for one in found(said)]
    assert values[0] == str(9 * 1024**3)
    assert values[3:5] == [str(1024**3), str(8 * 1024**3)]
    assert "could not find" in values[2]
    assert "could not find" in values[5]


@pytest.mark.parametrize("verb", VERBS)
def test_metrics_of_no_object(pair: Pair, verb: str) -> None:
    fleet = {"metric": "gpu_fleet_utilization_ratio", "external": True}
    calls = [{**fleet, "namespace": name} for name in ("ml", "")]
    calls += [{**fleet, "selector": "gpu=0"}, {**fleet, "selector": "gpu=none"}, {**fleet, "metric": "nothing"}]
    average, _, first, none, unknown = found(same(pair, calls, verb=verb))
    assert len(average) == len(first) == 1
    assert none == []
    assert "could not find" in unknown


@pytest.mark.parametrize("verb", VERBS)
def test_rules_of_other_kinds(pair: Pair, verb: str) -> None:
    calls: list[Call] = [
        {"list": "custom"},
        {"list": "external"},
        {"metric": "owner_sm_percent", "namespace": "ml", "objects": ""},
        {"metric": "gpuscope_owner_memory_bytes", "resource": "namespaces", "name": "ml"},
        {"metric": "gpuscope_gpu_utilization_ratio", "external": True},
        {"metric": "scalar_of_owners", "namespace": "ml", "external": True},
        {"metric": "scalar_of_owners", "namespace": "nobody", "external": True},
        {"metric": "wrong", "external": True},
    ]
    said = same(pair, calls, verb=verb, config=OTHER_RULES)
    assert said["answers"][2]["found"], "the metric of pods"
    assert said["failures"] == ["/api/v1/query bad_data"], "the wrong rule's, and only that"


@pytest.mark.parametrize("verb", VERBS)
def test_the_adapters_client_by_itself(pair: Pair, verb: str) -> None:
    span = {"start": pair.day.start, "end": pair.day.end}
    queries = ["watts", "sum by (node) (watts)", "gauge", "1 + 1", "nothing", "quantile(2, watts)"]
    calls: list[Call] = [{"query": query, "end": pair.day.middle + 0.5} for query in queries]
    calls += [{"query": query, **span, "step": "1m30s", "deadline": "60s"} for query in queries]
    calls += [{"series": ["watts", 'gauge{node="a"}'], **span}, {"series": ['{__name__=~"gpuscope_.+"}']}]
    calls += [
        {"query": "watts["},
        {"query": '"text"'},
        {"query": "watts + on (node) watts", "end": pair.day.middle},
        {"series": ["{}"]},
    ]
    said = same(pair, calls, verb=verb)
    assert sorted(set(said["failures"])) == [
        "/api/v1/query bad_data",
        "/api/v1/query execution",
        "/api/v1/series bad_data",
    ]


def test_over_prometheus(through: Pair) -> None:
    metric = {"metric": "gpu_utilization_ratio", "namespace": "ml", "objects": "app=trainer"}
    listed, external, trainers = found(same(through, [{"list": "custom"}, {"list": "external"}, metric]))
    assert len(listed) == 4
    assert len(external) == 1
    assert len(trainers) == 2


def test_a_login(locked: Locked) -> None:
    calls: list[Call] = [{"query": "vector(1)"}]
    header = {"Authorization": [f"Bearer {locked.token}"]}
    for known in ({"token": locked.token}, {"headers": header}):
        said = adapter(locked.url, calls, config="rules: []", **known)
        assert said["answers"][0]["found"]["Type"] == "vector"
    for unknown in ({}, {"token": "nothing"}):
        assert adapter(locked.url, calls, config="rules: []", **unknown)["failures"] == [
            "/api/v1/query bad_response: unknown response code 401"
        ]
    with_newline = adapter(locked.url, calls, config="rules: []", token=locked.token + "\n")
    assert "invalid header" in with_newline["failures"][0], "as docs/grafana.md warns"
