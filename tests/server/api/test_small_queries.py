"""Where a query is answered: a small one at once, any other in a thread that cannot hold up the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.http.messages import Router
from tests.server.client import Client

START = 1_700_000_000


class AtTheEnd:
    def now_ms(self) -> int:
        return (START + 1000) * 1000

    def monotonic_ms(self) -> int:
        return self.now_ms()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that queries ran in."""
    names: list[str] = []
    for method in ("instant", "range"):
        real = getattr(Engine, method)

        def noted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            names.append(threading.current_thread().name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(Engine, method, noted)
    return names


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    store = Store(tmp_path, clock=AtTheEnd())
    target = store.target("t")
    ids = store.resolve(target, [(("__name__", "x"), ("gpu", str(gpu))) for gpu in range(100)])
    for step in range(60):
        store.append(Tick(target, (START + 15 * step) * 1000, ids, np.full(100, float(step))))
    with Client(Router(EmbeddedApi(store, Engine(store)).routes())) as client:
        yield client
    store.close()


def ask(client: Client, query: str, **more: Any) -> Any:
    path = "query_range" if "start" in more else "query"
    answer = client.get(f"/api/v1/{path}", params={"query": query, "time": START + 900, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["result"]


def in_worker(name: str) -> bool:
    return name.startswith("gpuscope-query")


def test_a_question_asked_again_is_answered_at_once(client: Client, threads: list[str]) -> None:
    first, second = (ask(client, 'x{gpu="7"}[5m]') for _ in range(2))
    assert first == second
    assert len(first[0]["values"]) == 19
    assert [in_worker(name) for name in threads] == [True, False]
    span = {"start": START + 600, "end": START + 900, "step": 15}
    assert len(ask(client, 'x{gpu="7"}', **span)[0]["values"]) == 21
    assert not in_worker(threads[-1])


def test_many_series_are_left_to_a_thread_however_often_they_are_asked(
    client: Client, threads: list[str]
) -> None:
    for _ in range(3):
        assert len(ask(client, "x")) == 100
    assert list(map(in_worker, threads)) == [True, True, True]


def test_mistakes_read_the_same_from_either_place(client: Client) -> None:
    for query in ("x{", "rate(x)", 'x{gpu=~"("}'):
        answer = client.get("/api/v1/query", params={"query": query})
        assert (answer.status_code, answer.json()["errorType"]) == (400, "bad_data")
