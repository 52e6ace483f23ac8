"""Large answers: sent while they are made, in bounded pieces, few at a time, within the query's time limit."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Matrix, RangeVector, Vector
from gpuscope.serve.api import encode
from gpuscope.serve.api import responses as answers
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.http.messages import Request, RequestBody, Router
from tests.integration_api.servers import wait_for
from tests.promql.memory import MemoryStorage
from tests.server.http.support import serving

SERIES, POINTS = 20, 20_000
LARGE = f"x[{POINTS}s:1s]"  # more than sockets hold
NOT_WHOLE = f"x[{POINTS // 4}s:1s]"  # more than is sent as a whole


@pytest.fixture(scope="module")
def storage() -> MemoryStorage:
    made = MemoryStorage()
    for number in range(SERIES):
        made.add({"__name__": "x", "n": str(number)}, [(0, number + 0.125), (POINTS * 1000, 1e-9)])
    return made


@contextmanager
def api_over(engine: Engine, **limits: Any) -> Iterator[tuple[EmbeddedApi, int]]:
    api = EmbeddedApi(None, engine, limits=Limits(**limits))  # type: ignore[arg-type]
    with serving(Router(api.routes())) as port:
        yield api, port


@pytest.fixture
def engine(storage: MemoryStorage) -> Engine:
    return Engine(storage, lookback_ms=POINTS * 1000)


def ask(port: int, query: str, encoding: str = "") -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", target(query), headers={"accept-encoding": encoding} if encoding else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def target(query: str) -> str:
    return f"/api/v1/query?time={POINTS}&query={quote(query)}"


UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@pytest.mark.parametrize("encoding", UNPACKERS)
def test_the_same_bytes_as_a_whole_and_in_pieces(
    engine: Engine, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = UNPACKERS[encoding]
    with api_over(engine) as (_, port):
        streamed, pieces = ask(port, NOT_WHOLE, encoding)
        monkeypatch.setattr(answers, "MAX_WHOLE_BYTES", 1 << 40)
        whole, body = ask(port, NOT_WHOLE, encoding)
    assert streamed.headers["transfer-encoding"] == "chunked"
    assert whole.headers["transfer-encoding"] is None
    assert unpack(pieces) == unpack(body)
    assert len(json.loads(unpack(body))["data"]["result"]) == SERIES


def test_small_answers_are_one_write(engine: Engine) -> None:
    with api_over(engine) as (_, port):
        answer, body = ask(port, "x")
    assert int(answer.headers["content-length"]) == len(body)


def _labels(count: int) -> list[tuple[tuple[str, str], ...]]:
    return [(("__name__", "x"), ("n", str(number))) for number in range(count)]


RESULTS: dict[str, Matrix | Vector | RangeVector] = {
    "matrix": Matrix(np.arange(1000), _labels(300), np.ones((300, 1000)), np.ones((300, 1000), dtype=bool)),
    "gaps": Matrix(np.arange(3), _labels(2), np.ones((2, 3)), np.array([[True, False, True], [True] * 3])),
    "vector": Vector(0, _labels(20_000), np.arange(20_000.0)),
    "one long series": RangeVector(_labels(1), [np.arange(100_000)], [np.arange(100_000.0)]),
    "long and short": RangeVector(
        _labels(3), [np.arange(10_001), np.arange(1), np.arange(10_000)],
        [np.arange(10_001.0), np.arange(1.0), np.arange(10_000.0)],
    ),
    "nothing": Vector(0, [], np.array([])),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_pieces_are_bounded_and_make_one_document(name: str) -> None:
    result = RESULTS[name]
    pieces = list(encode.result_pieces(result))
    assert max(map(len, pieces)) < 3 * encode.PIECE_BYTES
    shown = json.loads(b"".join(pieces))["result"]
    assert [tuple(one["metric"].items()) for one in shown] == result.labels
    if isinstance(result, RangeVector):
        for one, times, values in zip(shown, result.timestamps, result.values, strict=True):
            assert [float(value) for _, value in one["values"]] == values.tolist()
            assert [round(at * 1000) for at, _ in one["values"]] == times.tolist()


def test_what_is_not_utf8_is_replaced() -> None:
    result = Vector(0, [(("a", "x\udcff"),), (("a", "é"),)], np.array([1.0, 2.0]))
    shown = json.loads(encode.encode_result(result))["result"]
    assert [one["metric"]["a"] for one in shown] == ["x\ufffd", "é"]


def unread(port: int) -> socket.socket:
    """A client that asks for a large answer and does not read it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(f"GET {target(LARGE)} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return client


def _sending(api: EmbeddedApi) -> int:
    return 0 if api.large_responses is None else api.large_responses.sending


def test_more_large_responses_than_allowed_are_refused_and_small_ones_are_not(engine: Engine) -> None:
    before = LIMITS_REACHED.counts()["query_max_large_responses"]
    with api_over(engine, query_max_large_responses=2, query_max_concurrency=2) as (api, port):
        clients = [unread(port) for _ in range(2)]
        wait_for("both to be on their way", lambda: _sending(api) == 2)
        refused, body = ask(port, LARGE)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert "query_max_large_responses" in json.loads(body)["error"]
        assert ask(port, "sum(x)")[0].status == 200, "no thread is held by those that wait for their clients"
        for client in clients:
            client.close()
        wait_for("the results to be given up", lambda: _sending(api) == 0)
        assert ask(port, LARGE)[0].status == 200
    assert LIMITS_REACHED.counts()["query_max_large_responses"] == before + 1


def test_a_query_that_waits_for_a_thread_is_counted(engine: Engine) -> None:
    def reached() -> int:
        return LIMITS_REACHED.counts()["query_max_concurrency"]

    async def ask_twice() -> None:
        api = EmbeddedApi(None, engine, limits=Limits(query_max_concurrency=1))  # type: ignore[arg-type]
        go_on, before = threading.Event(), reached()

        async def ask() -> bool:
            request = Request("GET", "/", [], b"", b"/", "", False, RequestBody(lambda: None))
            return await api.evaluate(request, lambda _: go_on.wait(60))

        first = asyncio.create_task(ask())
        await asyncio.sleep(0)
        assert reached() == before
        second = asyncio.create_task(ask())
        await asyncio.sleep(0)
        assert reached() == before + 1
        go_on.set()
        assert [await first, await second, await ask()] == [True] * 3
        assert reached() == before + 1, "only one had to wait"

    asyncio.run(ask_twice())


def test_a_client_that_does_not_read_holds_the_result_no_longer_than_a_query_may_take(
    storage: MemoryStorage,
) -> None:
    with api_over(Engine(storage, lookback_ms=POINTS * 1000, timeout_seconds=1.5)) as (api, port):
        with unread(port) as client:
            wait_for("the answer to be on its way", lambda: _sending(api) == 1)
            wait_for("the result to be given up", lambda: _sending(api) == 0)
            received = b""
            while piece := client.recv(1 << 20):
                received += piece
        assert not received.endswith(b"0\r\n\r\n"), "the answer breaks off instead of looking complete"


def test_a_client_that_leaves_ends_the_encoding(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = encode.encode_long_series

    def noted(*args: Any) -> Iterator[bytes]:
        made.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(encode, "encode_long_series", noted)
    with api_over(engine) as (api, port):
        with unread(port):
            wait_for("the answer to be on its way", lambda: _sending(api) == 1)
        wait_for("the answer to be given up", lambda: _sending(api) == 0)
        assert len(made) < SERIES
    assert all(name.startswith("gpuscope-query") for name in made), "not on the event loop"
