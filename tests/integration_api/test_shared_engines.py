"""Thanos and Mimir, built from their sources: remote write into them, queries through `--store` out of them.

Both are shared by tenants, each in its own way: Mimir answers nobody without one, Thanos has a tenant for those
who name none and gives every series a label `tenant_id`. Slow, and skipped by name where they were not built by
`tools/get-engines --all`.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.http_config import HttpConfig
from gpuscope.history.remote_write.sender import PostClient, RemoteWriteQueue
from tests.engines import (
    Shared,
    running,
    running_mimir,
    running_prometheus,
    running_thanos,
    running_victoria_metrics,
)
from tests.integration_api.servers import GPUSCOPE, Answer, Day, ask, differences, running_gpuscope, wait_for
from tests.integration_api.test_corpus_over_engines import ALL, all_answers, at, in_order, over, report
from tests.integration_api.test_over_engines import paths_lacking
from tests.integration_api.test_same_answers import sorted_labels
from tests.ports import free_port

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[Shared]]
STARTS: dict[str, Start] = {"thanos": running_thanos, "mimir": running_mimir}


@contextmanager
def prometheus(data: Path, port: int) -> Iterator[Shared]:
    with running_prometheus(data=data, port=port) as url:
        yield Shared(url, f"{url}/api/v1/write", "X-Scope-OrgID")


@contextmanager
def victoria_metrics(data: Path, port: int) -> Iterator[Shared]:
    with running_victoria_metrics(data=data, port=port, flags=("-search.latencyOffset=0s",)) as url:
        yield Shared(url, f"{url}/api/v1/write", "X-Scope-OrgID")


RECEIVERS: dict[str, Start] = {**STARTS, "prometheus": prometheus, "victoria-metrics": victoria_metrics}
OWN_LABELS = {"tenant_id", "replica"}
# By the header of each engine: what it answers by rules of its own, and which.
NOT_ALIKE = {
    "THANOS-TENANT": {
        r"\b(rate|increase)\((watts|gauge|events_total|steps|tiny|cancels|huge|rate|sum|\()|irate|resets": (
            "counters come to these functions with their resets added up, which gauges and NaN do not bear"
        ),
        r"\b(rate|increase)\(wait_seconds|\w\(rate\(busy": (
            "and a counter that is higher for it is not taken to have begun at zero within the window"
        ),
        r"ignoring \(gpu\) group_right": "every series has a label more, which ignoring() does not ignore",
    },
    "X-Scope-OrgID": {
        r"count_values without \(gpu\) \(.gpu": "count_values() keeps a label of that name as it was",
        r"clamp_min\(gauge, NaN\)": "the greater of infinity and NaN is NaN",
        r"avg_over_time\(huge": "averages near the largest double are summed in another order",
    },
}
DEMO = ("--source", "demo", "--demo-gpus", "2", "--node", "n1", "--remote-write-interval", "1s")


@pytest.fixture(scope="module", params=STARTS)
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with STARTS[request.param]() as engine:
        yield engine


def http_file(folder: Path, engine: Shared, tenant: str) -> Path:
    """What `--remote-write-http-config` takes."""
    path = folder / f"{tenant}.yml"
    path.write_text(f"http_headers: {{{engine.tenant_header}: {{values: [{tenant}]}}}}\n")
    return path


def queue_to(engine: Shared, tenant: str) -> RemoteWriteQueue:
    http = HttpConfig(headers=((engine.tenant_header, tenant),) if tenant else ())
    return RemoteWriteQueue(engine.write, PostClient(engine.write, http))


def send_all(queue: RemoteWriteQueue) -> None:
    queue.stop()
    queue.run()


def send_one(queue: RemoteWriteQueue) -> None:
    queue.take([(queue.encode_labels([("__name__", "m")]), time.time_ns() // 1_000_000, 1.0)])
    send_all(queue)


@contextmanager
def running_agent(*flags: str | Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [*GPUSCOPE, "agent", "--listen", address, *DEMO, *flags]
    with running(command, f"http://{address}/-/ready"):
        yield f"http://{address}"


def rows(url: str, query: str) -> list[dict[str, Any]]:
    answer = ask(url, "/api/v1/query", {"query": query})
    assert answer.status == 200, answer
    # VictoriaMetrics gives samples themselves another content type.
    body = answer.body if isinstance(answer.body, dict) else json.loads(answer.body)
    found: list[dict[str, Any]] = body["data"]["result"]
    return found


@pytest.fixture(scope="module")
def filled(shared: Shared, day: Day) -> str:
    """The tenant that has the hostile data, sent as gpuscope sends."""
    queue = queue_to(shared, "hostile")
    encoded = [queue.encode_labels(one.labels) for one in day.series]
    samples = [
        (labels, moment, value)
        for labels, one in zip(encoded, day.series, strict=True)
        for moment, value in zip(one.timestamps.tolist(), one.values.tolist(), strict=True)
    ]
    queue.take(sorted(samples, key=lambda sample: sample[1]))
    send_all(queue)
    assert (queue.counts.sent, sum(queue.counts.dropped.values())) == (len(samples), 0)
    with running_gpuscope(None, "--store", shared.query, "--store-tenant", "hostile") as url:
        asked = {
            "query": "count(last_over_time(watts[3h]))",
            "time": day.end,
        }  # Thanos looks for tenants now and then
        wait_for("the tenant to be found", lambda: ask(url, "/api/v1/query", asked).body["data"]["result"])
    return "hostile"


def without_its_own(answer: Answer) -> Answer:
    """Without the label that Thanos gives every series, its word on how it went about it, and the notes."""
    for notes in ("warnings", "infos"):
        answer.body.pop(notes, None)
    if answer.status == 200:
        answer.body["data"].pop("analysis", None)
        if answer.body["data"]["resultType"] in ("vector", "matrix"):
            for one in answer.body["data"]["result"]:
                one["metric"] = {k: v for k, v in one["metric"].items() if k not in OWN_LABELS}
    return answer


def test_the_same_answers_as_the_embedded_store(gpuscope: str, shared: Shared, filled: str, day: Day) -> None:
    own = "|".join(NOT_ALIKE[shared.tenant_header])
    expressions = tuple(one for one in ALL if not re.search(own, one))
    assert len(expressions) > 900
    with running_gpuscope(None, "--store", shared.query, "--store-tenant", filled) as url:
        for question in (at(day.middle), over(day.start - 300, day.end + 600, 311)):
            answers = (all_answers(one, question, expressions) for one in (gpuscope, url))
            found = []
            for expression, mine, its in zip(expressions, *answers, strict=True):
                both = (in_order(expression, without_its_own(answer)) for answer in (mine, its))
                first = next(differences(*both), None)
                # A join with an ambiguous side, which we refuse, Mimir answers where the other side is empty.
                if first is not None and mine.status != 422:
                    found.append(f"{expression}\n    {question.path}{first}")
            assert not found, report(found)


def test_labels_and_series(gpuscope: str, shared: Shared, filled: str, day: Day) -> None:
    span = {"start": str(day.start), "end": str(day.end)}
    with running_gpuscope(None, "--store", shared.query, "--store-tenant", filled) as url:
        for path in ("/api/v1/labels", "/api/v1/label/node/values", "/api/v1/label/__name__/values"):
            mine, its = (ask(one, path, span).body["data"] for one in (gpuscope, url))
            assert mine == [name for name in its if name not in OWN_LABELS]
        asked = {"match[]": "watts", **span}
        mine, its = (ask(one, "/api/v1/series", asked).body["data"] for one in (gpuscope, url))
        bare = [{name: value for name, value in one.items() if name not in OWN_LABELS} for one in its]
        assert sorted(mine, key=sorted_labels) == sorted(bare, key=sorted_labels)


def test_every_path_has_an_answer(shared: Shared) -> None:
    with running_gpuscope(None, "--store", shared.query, "--store-tenant", "nobody") as url:
        lacking = paths_lacking(url)
    assert "/federate" in lacking
    assert ("/api/v1/format_query" in lacking) == (shared.tenant_header == "THANOS-TENANT")


def test_an_agent_pushes_and_the_page_shows_it(shared: Shared, tmp_path: Path) -> None:
    written = (
        "--remote-write",
        shared.write,
        "--remote-write-http-config",
        http_file(tmp_path, shared, "agents"),
    )
    with (
        running_agent(*written) as agent,
        running_gpuscope(None, "--store", shared.query, "--store-tenant", "agents") as url,
    ):
        (up,) = wait_for("the agent's numbers to arrive", lambda: rows(url, 'up{job="gpuscope"}'))
        assert (up["metric"]["instance"], up["value"][1]) == ("n1", "1")
        live = wait_for("the page to have them", lambda: _gpus(url))
        assert len(live) == 2
        names = ask(url, "/api/v1/label/__name__/values").body["data"]
        assert "gpuscope_gpu_power_watts" in names
        printed = _query(url, "count(gpuscope_gpu_power_watts)")
        assert (printed.returncode, printed.stdout) == (0, "{} 2\n")
        told = ask(agent, "/metrics").body
        assert f'gpuscope_remote_write_dropped_samples_total{{url="{shared.write}",reason="refused"}} 0' in told
        own = ask(url, "/metrics").body
        assert "\ngpuscope_engine_up 1\n" in own
        assert 'gpuscope_engine_requests_total{endpoint="query",code="200"}' in own


def test_a_server_pushes_what_it_scrapes(shared: Shared, tmp_path: Path) -> None:
    flags = (
        "--remote-write",
        shared.write,
        "--remote-write-http-config",
        http_file(tmp_path, shared, "servers"),
    )
    with (
        running_agent() as agent,
        running_gpuscope(
            tmp_path / "data", "--targets", agent.removeprefix("http://"), "--scrape-interval", "1s", *flags
        ) as scraping,
        running_gpuscope(None, "--store", shared.query, "--store-tenant", "servers") as url,
    ):
        found = wait_for("scraped numbers to arrive", lambda: rows(url, "gpuscope_gpu_power_watts"))
        mine = rows(scraping, "gpuscope_gpu_power_watts")
        assert {one["metric"]["uuid"] for one in found} == {one["metric"]["uuid"] for one in mine}
        assert rows(url, "scrape_samples_scraped")


def _gpus(url: str) -> list[Any]:
    found: list[Any] = ask(url, "/api/live").body["gpus"]
    return found


def _query(url: str, expression: str) -> subprocess.CompletedProcess[str]:
    command = [*GPUSCOPE, "query", expression, "--server", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_another_tenant_sees_nothing(shared: Shared, filled: str) -> None:
    with running_gpuscope(None, "--store", shared.query, "--store-tenant", "stranger") as url:
        assert rows(url, "count(last_over_time(watts[3h]))") == []
        assert _gpus(url) == []


def test_mimir_wants_a_tenant() -> None:
    with running_mimir() as engine:
        with running_gpuscope(None, "--store", engine.query) as url:
            said = f"{engine.query} refuses our credentials with 401 (no org id): --store-tenant and"
            for path in ("/api/v1/query?query=up", "/api/v1/labels", "/api/live"):
                answer = ask(url, path)
                assert answer.status in (502, 503), "not 401: the page would ask its viewer to log in"
                assert answer.body["error"].startswith(said)
            printed = _query(url, "up")
            assert (printed.returncode, printed.stderr.count("\n")) == (1, 1)
            assert said in printed.stderr
            assert 'gpuscope_engine_failures_total{reason="refused"}' in ask(url, "/metrics").body
        with running_gpuscope(None, "--store", engine.query, "--store-tenant", "a/b?") as url:
            answer = ask(url, "/api/v1/query", {"query": "up"})
            assert answer.status >= 400
            assert "tenant" in answer.body["error"]
        with running_gpuscope(None, "--store", engine.query.removesuffix("/prometheus")) as url:
            answer = ask(url, "/api/v1/query", {"query": "up"})
            assert (answer.status, answer.body["errorType"]) == (404, "not_found")
            assert "Mimir's /prometheus" in answer.body["error"]
        queue = queue_to(engine, "")
        send_one(queue)
        assert queue.counts.dropped["refused"] == 1


def test_mimir_without_tenants_wants_none() -> None:
    with running_mimir(tenants=False) as engine, running_gpuscope(None, "--store", engine.query) as url:
        send_one(queue_to(engine, ""))
        wait_for("the sample to be found", lambda: rows(url, "m"))


def test_thanos_has_a_tenant_for_those_who_name_none() -> None:
    with running_thanos() as engine, running_gpuscope(None, "--store", engine.query) as url:
        send_one(queue_to(engine, ""))
        (found,) = wait_for("the sample to be found", lambda: rows(url, "m"))
        assert found["metric"] == {"__name__": "m", "tenant_id": "default-tenant"}


def test_out_of_order_samples_are_dropped_and_counted(
    shared: Shared, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_to(shared, "order")
    labels = queue.encode_labels([("__name__", "m")])
    for moment in (day.end, day.end - 60, day.end + 1):
        one = queue_to(shared, "order")
        one.take([(labels, moment * 1000, 1.0)])
        send_all(one)
        refused = moment < day.end
        assert (one.counts.sent, one.counts.dropped["refused"]) == ((0, 1) if refused else (1, 0))
    assert "refused with 4" in caplog.text


@pytest.mark.parametrize("name", RECEIVERS)
def test_a_restart_loses_nothing(name: str, tmp_path: Path) -> None:
    """Away for some seconds while an agent sends every second: afterwards there is no gap."""
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    with ExitStack() as longer:
        with RECEIVERS[name](data=data, port=port) as engine:
            file = http_file(tmp_path, engine, "team")
            flags = ("--remote-write", engine.write, "--remote-write-http-config", file)
            agent = longer.enter_context(running_agent(*flags))
            with running_gpuscope(None, "--store", engine.query, "--store-tenant", "team") as url:
                wait_for("the first numbers", lambda: _times(url))
        stopped_at, tried = time.time(), _counted(agent, "retries_total")
        wait_for("the agent to try in vain", lambda: _counted(agent, "retries_total") > tried + 5)
        with RECEIVERS[name](data=data, port=port) as engine:
            back_at = time.time()
            with running_gpuscope(None, "--store", engine.query, "--store-tenant", "team") as url:
                wait_for("new numbers", lambda: _times(url)[-1:] > [back_at])
                times = _times(url)
        assert not _counted(agent, "dropped_samples_total")
    away = [one for one in times if stopped_at < one < back_at]
    assert len(away) >= (back_at - stopped_at) / 2, "sent when it was back, with the times they were read at"
    assert times == sorted(times)
    assert times[0] < stopped_at, "what came before is still there"


def _counted(agent: str, name: str) -> float:
    lines = ask(agent, "/metrics").body.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"gpuscope_remote_write_{name}{{"))


def _times(url: str) -> list[float]:
    return [float(moment) for one in rows(url, 'up{job="gpuscope"}[10m]') for moment, _ in one["values"]]
