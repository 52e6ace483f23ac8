"""An engine behind `--store` that lies: bombs, endless bodies, many values, redirects to another host."""

from __future__ import annotations

import gzip
import threading
import tracemalloc

import pytest

from gpuscope.engines import http_connection
from gpuscope.engines.engine_errors import EngineError, EngineResultTooLarge, EngineTimeout, EngineUnreachable
from gpuscope.limits import LIMITS_REACHED
from gpuscope.scrape.http_config import HttpConfig
from tests.query_engines.test_http_engine import JSON, after_form, ask
from tests.scrape.exporters import Page, endless, serving, status, text

MIB = 1 << 20
EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


def question(page: Page, **options: object) -> None:
    with serving({"/api/v1/query": after_form(page)}) as address:
        ask(f"http://{address}", lambda engine: engine.instant("up"), **options)


def test_a_response_of_many_values_is_refused() -> None:
    before = LIMITS_REACHED.counts()["engine_max_response_values"]
    bomb = b'{"status":"success","data":{"resultType":"vector","result":[' + b"[]," * 2_000 + b"[]]}}"
    with pytest.raises(EngineResultTooLarge, match="more than 1000 values"):
        question(text(bomb, JSON), max_response_values=1_000)
    assert LIMITS_REACHED.counts()["engine_max_response_values"] == before + 1


def test_gzip_is_read_and_a_bomb_ends_at_the_limit() -> None:
    question(text(gzip.compress(EMPTY), JSON, Content_Encoding="gzip"))
    bomb = gzip.compress(b" " * (64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(EngineResultTooLarge, match="engine_max_response_bytes"):
            question(text(bomb, JSON, Content_Encoding="gzip"), max_response_bytes=4 * MIB)
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
