"""The same queries on the embedded store and, through `--store`, on real engines give the same answers."""

from __future__ import annotations

import subprocess
import time

import pytest

from gpuscope.base.http_config import HttpConfig
from gpuscope.history.remote_write.sender import PostClient, RemoteWriteQueue
from gpuscope.serve.api.proxy import PATHS
from tests.engines import engine, running_prometheus
from tests.integration_api.servers import Day, ask, differences, running_gpuscope, wait_for
from tests.integration_api.test_same_answers import RANGES, sorted_labels

# VictoriaMetrics answers some of PromQL by rules of its own (rate without extrapolation, windows closed at
# both ends, gaps filled by the scrape interval it guesses): only what both define alike is compared.
ALIKE = [
    'watts{node="a"}',
    "sum by (node) (watts)",
    "max(watts) - min(watts)",
    'count({__name__=~"watts|busy_seconds_total"})',
    "label_replace(watts, 'x', '$1', 'node', '(.*)')",
    "topk(1, watts)",
    "quantile by (node) (0.5, watts)",
    "abs(watts) > 100",
]


def compare(ours: str, over: str, path: str, parameters: dict[str, object]) -> None:
    asked = {name: str(value) for name, value in parameters.items()}
    for post in (False, True):
        mine, its = (ask(url, path, asked, post=post) for url in (ours, over))
        assert (mine.status, its.status) == (200, 200), its
        results = [
            sorted(one.body["data"]["result"], key=lambda s: sorted_labels(s["metric"])) for one in (mine, its)
        ]
        assert results[0], "something is compared"
        assert not list(differences(results[0], results[1]))[:5]


@pytest.mark.parametrize("query", [query for query in RANGES if "nothing" not in query and "1e9" not in query])
def test_prometheus(gpuscope: str, over_prometheus: str, day: Day, query: str) -> None:
    span = {"start": day.start, "end": day.end, "step": 60}
    compare(gpuscope, over_prometheus, "/api/v1/query_range", {"query": query, **span})


@pytest.mark.parametrize("query", ALIKE)
def test_victoria_metrics(gpuscope: str, over_victoria_metrics: str, day: Day, query: str) -> None:
    for at in (day.middle, day.middle + 600):
        compare(gpuscope, over_victoria_metrics, "/api/v1/query", {"query": query, "time": at})


def test_labels_and_series(gpuscope: str, over_prometheus: str, over_victoria_metrics: str, day: Day) -> None:
    span = {"start": str(day.start), "end": str(day.end)}
    for over in (over_prometheus, over_victoria_metrics):
        for path in ("/api/v1/labels", "/api/v1/label/node/values"):
            assert ask(gpuscope, path, span).body["data"] == ask(over, path, span).body["data"]
        asked = {"match[]": '{__name__="watts"}', **span}
        mine, its = (
            sorted(ask(url, "/api/v1/series", asked).body["data"], key=sorted_labels)
            for url in (gpuscope, over)
        )
        assert mine == its


def test_the_engine_s_errors_come_through(over_prometheus: str, prometheus: str) -> None:
    asked = {"query": "sum("}
    assert ask(over_prometheus, "/api/v1/query", asked) == ask(prometheus, "/api/v1/query", asked)


ALL_HAVE = (
    "query",
    "query_range",
    "series",
    "labels",
    "label/job/values",
    "metadata",
    "rules",
    "status/buildinfo",
)
"""What our page, Grafana and `gpuscope query` ask for; every engine has these."""


def paths_lacking(url: str) -> set[str]:
    """Always Prometheus' JSON: success, or one sentence that names what the engine lacks."""
    lacking = set()
    asked = {"query": "up", "start": 1, "end": 2, "step": 1, "match[]": "up"}
    for path in PATHS:
        answer = ask(url, path.replace("{name}", "job"), asked if "status" not in path else {})
        if path == "/federate" and answer.status == 200:
            continue
        known = path.replace("{name}", "job").removeprefix("/api/v1/") in ALL_HAVE
        assert answer.body["status"] == "success" or not known, answer
        if answer.status in (400, 404):
            assert answer.body["error"].startswith("this engine has no /"), answer
            lacking.add(path)
    return lacking


def test_every_path_has_an_answer(over_prometheus: str, over_victoria_metrics: str) -> None:
    assert paths_lacking(over_prometheus) == set()
    lacking = paths_lacking(over_victoria_metrics)
    assert "/api/v1/format_query" in lacking
    assert "/federate" not in lacking


def test_its_own_metrics(over_prometheus: str) -> None:
    ask(over_prometheus, "/api/v1/query", {"query": "1"})
    said = ask(over_prometheus, "/metrics").body
    assert "\ngpuscope_engine_up 1\n" in said
    command = [str(engine("promtool")), "check", "metrics"]
    checked = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_out_of_order_samples_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = time.time_ns() // 1_000_000
    with running_prometheus() as url:
        write = f"{url}/api/v1/write"
        for moment, refused in ((now, 0), (now - 1_000, 1), (now + 1, 0)):
            queue = RemoteWriteQueue(write, PostClient(write, HttpConfig()))
            queue.take([(queue.encode_labels([("__name__", "m")]), moment, 1.0)])
            queue.stop()
            queue.run()
            assert (queue.counts.sent, queue.counts.dropped["refused"]) == (1 - refused, refused)
    assert "refused with 400: out of order sample" in caplog.text


def test_an_engine_that_is_not_there() -> None:
    with running_gpuscope(None, "--store", "http://127.0.0.1:1") as url:
        wait_for("the first look at it", lambda: "\ngpuscope_engine_up 0\n" in ask(url, "/metrics").body)
        answer = ask(url, "/api/v1/query", {"query": "1"})
        assert (answer.status, answer.body["errorType"]) == (503, "unavailable")
        assert "127.0.0.1:1" in answer.body["error"]
        live = ask(url, "/api/live")
        assert ask(url, "/api/findings").status == 503
        assert (live.status, live.body["error"]) == (503, answer.body["error"])
