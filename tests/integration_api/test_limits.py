"""A query that costs too much ends: by its time, its samples, its points, or because nobody waits for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlencode

import numpy as np

from gpuscope.history.promql import Engine
from gpuscope.model.series import Matcher, Series, Storage
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.http.messages import Router
from tests.engines import running_prometheus
from tests.integration_api.servers import Day, ask, wait_for
from tests.integration_api.test_same_answers import check
from tests.promql.memory import MemoryStorage
from tests.promql.prometheus import fill
from tests.server.http.support import serving


@contextmanager
def api_over(engine: Engine) -> Iterator[str]:
    """The API alone, in this process; what needs a store is not asked for here."""
    api = EmbeddedApi(None, engine)  # type: ignore[arg-type]
    with serving(Router(api.routes())) as port:
        yield f"http://127.0.0.1:{port}"


class SlowStorage:
    """Takes its time for every selector, and counts them."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_quick = threading.Event()

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        self.asked += 1
        self.is_quick.wait(0.1)
        return [Series((("__name__", "x"),), np.array([end_ms]), np.array([1.0]))]


MANY = 60
SLOW_QUERY = " + ".join(f"sum(x{number})" for number in range(MANY))


def test_a_query_stops_when_its_client_leaves() -> None:
    storage = SlowStorage()
    with api_over(Engine(storage)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                f"GET /api/v1/query?{urlencode({'query': SLOW_QUERY})} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            wait_for("the query to run", lambda: storage.asked > 5)
        wait_for("the query to stop", lambda: _stands_still(storage))
        assert storage.asked < MANY
        assert ask(url, "/api/v1/query", {"query": "1"}).status == 200, "the next one is answered"


def _stands_still(storage: SlowStorage) -> bool:
    before = storage.asked
    time.sleep(0.5)  # several times what a selector takes
    return storage.asked == before


def test_a_client_that_stays_gets_its_answer() -> None:
    storage = SlowStorage()
    with api_over(Engine(storage)) as url:
        query = " + ".join(f"sum(x{number})" for number in range(10))
        assert ask(url, "/api/v1/query", {"query": query, "time": 1}).body["data"]["result"][0]["value"] == [
            1,
            "10",
        ]


def test_a_query_has_a_time_out() -> None:
    storage = SlowStorage()
    with api_over(Engine(storage)) as url:
        answer = ask(url, "/api/v1/query", {"query": SLOW_QUERY, "timeout": "100ms"})
        assert (answer.status, answer.body["errorType"]) == (503, "timeout")
        assert storage.asked < MANY
    with api_over(Engine(storage, timeout_seconds=0.1)) as url:
        answer = ask(url, "/api/v1/query", {"query": SLOW_QUERY, "timeout": "1h"})
        assert (answer.status, answer.body["errorType"]) == (503, "timeout"), "nobody can ask for more"


def test_many_slow_queries_do_not_keep_a_quick_one_waiting_for_ever() -> None:
    storage = SlowStorage()
    with api_over(Engine(storage)) as url:
        slow = [
            threading.Thread(target=ask, args=(url, "/api/v1/query", {"query": SLOW_QUERY})) for _ in range(10)
        ]
        for one in slow:
            one.start()
        wait_for("the slow ones to run", lambda: storage.asked > 20)
        assert ask(url, "/api/v1/query", {"query": "1+1"}).status == 200
        assert any(one.is_alive() for one in slow), "the quick one was first"
        storage.is_quick.set()
        for one in slow:
            one.join()


def test_too_many_samples_are_refused_as_prometheus_refuses_them(day: Day) -> None:
    storage = MemoryStorage()
    for one in day.series:
        storage.add(dict(one.labels), zip(one.timestamps.tolist(), one.values.tolist(), strict=True))
    limited: Storage = storage
    with (
        running_prometheus(flags=["--query.max-samples=1000"]) as theirs,
        api_over(Engine(limited, max_samples=1000)) as ours,
    ):
        fill(theirs, day.series)
        span = {"start": day.start, "end": day.end}
        many = {"query": "watts", "step": 15, **span}
        answer, _ = check(ours, theirs, "/api/v1/query_range", many)
        assert (answer.status, answer.body["errorType"]) == (422, "execution")
        answer, _ = check(ours, theirs, "/api/v1/query", {"query": "watts[2h]", "time": day.end})
        assert answer.status == 422
        answer, _ = check(ours, theirs, "/api/v1/query", {"query": "watts", "time": day.middle})
        assert answer.status == 200


def test_too_many_points_are_refused(gpuscope: str, prometheus: str, day: Day) -> None:
    for step, status in (("0.65", 400), ("0.66", 200)):
        asked = {"query": "vector(1)", "start": day.start, "end": day.end, "step": step}
        answer, _ = check(gpuscope, prometheus, "/api/v1/query_range", asked)
        assert answer.status == status
