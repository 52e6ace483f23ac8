"""An engine behind `--store` that lies: bombs, endless bodies, many values, redirects to another host."""

from __future__ import annotations

import asyncio
import gzip
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable

import orjson
import pytest

from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.engines import answer_text, http_connection
from gpuscope.history.engines.answer_text import AnswerMemory
from gpuscope.history.engines.http_connection import EngineConnection, connect, post_form
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.engines.query_engine import (
    EngineError,
    EngineResultTooLarge,
    EngineTimeout,
    EngineUnreachable,
)
from gpuscope.history.engines.vector_text import VectorText
from tests.query_engines.test_http_engine import JSON, after_form, ask
from tests.scrape.exporters import Page, endless, serving, status, text

MIB = 1 << 20
SECOND = 1_700_000_000
EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


def vector(labels: Iterable[dict[str, str]]) -> bytes:
    result = [{"metric": one, "value": [SECOND, "1"]} for one in labels]
    return orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def matrix(labels: Iterable[dict[str, str]], at: float) -> bytes:
    result = [{"metric": one, "values": [[at, "1"]]} for one in labels]
    return orjson.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def question(page: Page, **options: object) -> None:
    with serving({"/api/v1/query": after_form(page)}) as address:
        ask(f"http://{address}", lambda engine: engine.instant("up"), **options)


def test_answers_that_are_read_at_once_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_text, "WAIT_SECONDS", 0.1)
    before = LIMITS_REACHED.counts()["engine_max_answers_bytes"]
    memory = AnswerMemory(MIB)
    many = text(vector({"pid": str(number)} for number in range(2_000)), JSON)  # 0.9 MB
    with serving({"/api/v1/query": after_form(many)}) as address:
        url = f"http://{address}"

        async def read_two() -> None:
            first = HttpEngine(EngineConnection(url, memory=memory), holds_memory=True)
            second = HttpEngine(EngineConnection(url, memory=memory))
            assert len((await first.instant("up")).labels) == 2_000
            with pytest.raises(EngineResultTooLarge, match="engine_max_answers_bytes"):
                await second.instant("up")
            assert len((await first.instant("up")).labels) == 2_000, "its last answer is not counted any more"
            await first.close()
            assert len((await second.instant("up")).labels) == 2_000
            assert memory.held_bytes == 0
            await second.close()

        asyncio.run(read_two())
    assert LIMITS_REACHED.counts()["engine_max_answers_bytes"] == before + 1


def test_label_sets_that_are_kept_count_and_one_answer_too_many_does_not_stop_the_next() -> None:
    memory = AnswerMemory(MIB)
    pages = {"/api/v1/query": after_form(text(vector({"pid": str(number)} for number in range(1_000)), JSON))}
    with serving(pages) as address:

        async def read() -> None:
            connection = EngineConnection(f"http://{address}", memory=memory)
            live = HttpEngine(connection, vector_text=VectorText(memory))
            assert len((await live.instant("up")).labels) == 1_000
            assert 400_000 < memory.held_bytes < 500_000, "they are kept for the next answer"
            body = vector({"pid": str(number)} for number in range(5_000))
            pages["/api/v1/query"] = after_form(text(body, JSON))
            with pytest.raises(EngineResultTooLarge, match="engine_max_answers_bytes"):
                await live.instant("up")
            assert memory.held_bytes == 0
            pages["/api/v1/query"] = after_form(text(vector([{"pid": "1"}]), JSON))
            assert len((await live.instant("up")).labels) == 1
            await live.close()

        asyncio.run(read())


@pytest.mark.parametrize(
    "question",
    [
        lambda engine: engine.instant("up"),
        lambda engine: engine.range("up", 1_000, 10_000, 1_000),
        lambda engine: engine.series(["up"]),
        lambda engine: engine.label_values("pid"),
    ],
    ids=["instant", "range", "series", "label_values"],
)
def test_no_answer_takes_more_than_the_budget(question: Callable[[HttpEngine], Awaitable[object]]) -> None:
    pids = range(20_000)
    pages = {
        "query": vector({"pid": str(number)} for number in pids),
        "query_range": matrix(({"pid": str(number)} for number in pids), 1),
        "series": orjson.dumps({"status": "success", "data": [{"pid": str(number)} for number in pids]}),
        "label/pid/values": orjson.dumps({"status": "success", "data": [str(number) for number in pids]}),
    }
    with serving({f"/api/v1/{path}": after_form(text(body, JSON)) for path, body in pages.items()}) as address:
        url = f"http://{address}"
        memory = AnswerMemory(MIB)
        tracemalloc.start()
        try:
            with pytest.raises(EngineResultTooLarge, match="1048576 bytes of memory"):
                ask(url, question, memory=memory)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert memory.held_bytes == 0
        assert most < 9 * MIB, "the bodies here have 3 MiB, and a batch is decoded at a time"
        ask(url, question, memory=AnswerMemory(1024 * MIB))


@pytest.mark.parametrize(
    "elements",
    [b"[]," * 1_000_000, b'{"a":"b"},' * 300_000, b"[" * 2_000_000, b" " * 2_000_000, b'"' + b"x" * 2_000_000],
)
def test_what_is_no_series_is_not_decoded(elements: bytes) -> None:
    body = b'{"status":"success","data":{"resultType":"vector","result":[' + elements + b"0]}}"
    tracemalloc.start()
    try:
        with pytest.raises(EngineError):
            question(text(body, JSON))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(body) + 8 * MIB


def test_a_command_of_the_terminal_decodes_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_VALUES", 1_000)
    bomb = b'{"status":"success","data":[' + b"[]," * 2_000 + b"[]]}"
    with (
        serving({"/api/v1/query": after_form(text(bomb, JSON))}) as address,
        pytest.raises(EngineResultTooLarge, match="more than 1000 values"),
    ):
        post_form(connect(f"http://{address}", origin="--server"), "query", {"query": "up"})


def test_gzip_is_read_and_a_bomb_ends_at_the_limit() -> None:
    question(text(gzip.compress(EMPTY), JSON, Content_Encoding="gzip"))
    series = b'{"metric":{},"value":[1,"1"]},'
    bomb = gzip.compress(EMPTY.partition(b"]")[0] + series * (32 * MIB // len(series)), 1)
    tracemalloc.start()
    try:
        with pytest.raises(EngineResultTooLarge, match="engine_max_response_bytes"):
            question(text(bomb, JSON, Content_Encoding="gzip"), max_response_bytes=2 * MIB)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * MIB


@pytest.mark.parametrize("encoding", ["gzip, gzip, gzip", "br", "deflate", "zstd", "x" * 1000])
def test_other_encodings_are_refused_without_unpacking(encoding: str) -> None:
    layers = gzip.compress(gzip.compress(gzip.compress(EMPTY)))
    with pytest.raises(EngineUnreachable, match="and not gzip"):
        question(text(layers, JSON, Content_Encoding=encoding))


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(EMPTY)[:20]], ids=["text", "cut off"])
def test_broken_gzip_is_one_error(body: bytes) -> None:
    with pytest.raises(EngineError):
        question(text(body, JSON, Content_Encoding="gzip"))


def test_a_body_sent_byte_by_byte_has_a_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(http_connection, "CONNECT_SECONDS", 0.3)
    stop = threading.Event()
    try:
        with pytest.raises(EngineTimeout, match="did not answer within"):
            question(endless(b" ", stop, 0.02, JSON))
        with pytest.raises(EngineError, match="text/plain"):
            question(endless(b" ", stop, 0.02))
    finally:
        stop.set()


def test_credentials_are_not_sent_to_another_host() -> None:
    seen: list[str | None] = []

    def other(request: object) -> None:
        seen.append(request.headers.get("authorization"))  # type: ignore[attr-defined]
        text(EMPTY, JSON)(request)  # type: ignore[arg-type]

    http = HttpConfig().with_headers(("authorization", "Bearer secret"))
    with serving({"/api/v1/query": after_form(other)}) as elsewhere:
        host = elsewhere.replace("127.0.0.1", "localhost")
        question(status(307, Location=f"http://{host}/api/v1/query"), http=http)
    assert seen == [None]
