from __future__ import annotations

import json
import logging
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.api.query_threads import MAX_QUERY_CHARACTERS, QueryLog
from gpuscope.serve.http.messages import Router
from tests.engines import running_prometheus
from tests.server.client import Client
from tests.waiting import wait_for

ASKED = (
    "/api/v1/query?query=up&time=1700000000.123",
    "/api/v1/query_range?query=rate(up[5m])&start=1700000000&end=1700000600&step=15.5",
    "/api/v1/query?query=label_replace(vector(1),%22%22,%22x%22,%22%22,%22%22)&time=1700000000",
    "/api/v1/query?query=up%2B",
    "/api/v1/series?match[]=up",
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmbeddedApi]:
    with Store(tmp_path / "data") as store:
        yield EmbeddedApi(store, Engine(store), query_log=QueryLog(max_bytes=2000))


@pytest.fixture
def client(api: EmbeddedApi) -> Iterator[Client]:
    with Client(Router(api.routes())) as client:
        yield client


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_for_each_query(api: EmbeddedApi, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "query.log"
    client.get(ASKED[0])
    api.query_log.open(path)
    for asked in ASKED:
        client.get(asked)
    instant, ranged, failed = lines(path)
    day = "2023-11-14T22"
    at = f"{day}:13:20.123Z"
    assert instant["params"] == {"query": "up", "start": at, "end": at, "step": 0}
    assert instant["httpRequest"]["path"] == "/api/v1/query"
    times = {"start": f"{day}:13:20.000Z", "end": f"{day}:23:20.000Z"}
    assert ranged["params"] == {"query": "rate(up[5m])", **times, "step": 15}
    assert "label_replace" in failed["error"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "stats" not in client.get(ASKED[0]).json()["data"], "only who asks for them gets them"
    api.query_log.open(None)
    client.get(ASKED[0])
    assert len(lines(path)) == 4


@pytest.mark.engine("prometheus")
def test_the_fields_are_prometheus_own(api: EmbeddedApi, client: Client, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.log", tmp_path / "ours.log"
    api.query_log.open(ours)
    with running_prometheus(f"global: {{scrape_interval: 1h, query_log_file: '{theirs}'}}\n") as url:
        for asked in ASKED:
            client.get(asked)
            try:
                urllib.request.urlopen(url + asked).close()
            except urllib.error.HTTPError as error:
                error.close()
        wait_for(lambda: len(lines(theirs)) >= 3, "Prometheus' query log")
        expected = lines(theirs)
    assert [shape(one) for one in lines(ours)] == [shape(one) for one in expected]
    assert [one["params"] for one in lines(ours)] == [one["params"] for one in expected]


def shape(value: Any) -> Any:
    return (
        {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else type(value) is str
    )


def test_the_file_is_bounded_and_a_moved_one_is_opened_again(
    api: EmbeddedApi, client: Client, tmp_path: Path
) -> None:
    path, before = tmp_path / "query.log", LIMITS_REACHED.counts()["query_log_max_bytes"]
    api.query_log.open(path)
    for _ in range(20):
        client.get(ASKED[0])
    assert path.stat().st_size < 3000
    assert Path(f"{path}.1").stat().st_size < 3000
    assert LIMITS_REACHED.counts()["query_log_max_bytes"] > before
    path.rename(tmp_path / "moved")
    api.query_log.open(path)
    client.get(ASKED[0])
    assert len(lines(path)) == 1
    client.get("/api/v1/query", params={"query": "up" + " " * 20_000, "time": "0"})
    assert len(lines(path)[-1]["params"]["query"]) == MAX_QUERY_CHARACTERS


def test_a_file_that_cannot_be_written_is_told_once_and_queries_go_on(
    api: EmbeddedApi, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match="query_log_file"):
        api.query_log.open(tmp_path / "nosuch" / "query.log")
    api.query_log.open(Path("/dev/full"))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert client.get(ASKED[0]).status_code == 200
    assert len(caplog.records) == 1
