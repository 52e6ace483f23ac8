from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gpuscope.server import bounded_http
from gpuscope.server.bounded_http import MOST_HEAD_BYTES, BoundedHttp


async def count_body(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = b"%d" % size
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connection_to(app: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(
        app, http=BoundedHttp, ws="none", lifespan="off", log_config=None, log_level="critical"
    )
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedHttp(config, ServerState(), {}, loop), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await asyncio.sleep(0)


async def say(*parts: bytes, app: Any = count_body) -> bytes:
    """Everything the server answers until it closes."""
    async with connection_to(app) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()


LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def test_a_body_may_be_larger_than_a_head() -> None:
    size = 3 * MOST_HEAD_BYTES
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
    answer = asyncio.run(say(post, *[b"b" * 1024] * (size // 1024), LAST))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"%d" % size in answer


def test_requests_on_one_connection_are_counted_one_by_one() -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * (MOST_HEAD_BYTES // 2))
    answer = asyncio.run(say(large, large, large, LAST))
    assert answer.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    ("opening", "more"),
    [(b"GET / HTTP/1.1\r\nhost: x\r\n", b"n: v\r\n"), (b"GET /", b"path"), (b"GET / HTTP/1.1\r\nx: ", b"v")],
    ids=["headers", "address", "value"],
)
def test_an_endless_head_is_refused(opening: bytes, more: bytes) -> None:
    async def just_over() -> bytes:
        async with connection_to(count_body) as (reader, writer):
            writer.write(opening + more * (MOST_HEAD_BYTES // len(more) + 1))
            return await reader.read()

    assert asyncio.run(just_over()).startswith(b"HTTP/1.1 431 ")


def answer_with(*messages: dict[str, Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}


def test_head_and_body_go_out_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class Noted(bounded_http._HeadWithBody):
        def __init__(self, transport: Any) -> None:
            real = transport.write
            transport.write = lambda data: (written.append(bytes(data)), real(data))
            super().__init__(transport)

    monkeypatch.setattr(bounded_http, "_HeadWithBody", Noted)
    answer = asyncio.run(say(LAST))
    assert written == [answer]


def test_parts_stay_in_order_whatever_they_look_like() -> None:
    body = [b"HTTP/1.1 2", b"HTTP/1.1 3", b"x" * (bounded_http._LARGE_BYTES + 1), b"", b"HTTP/1.1 4"]
    size = b"%d" % sum(map(len, body))
    start = {**START, "headers": [(b"content-length", size)]}
    more = [{"type": "http.response.body", "body": part, "more_body": True} for part in body]
    answer = asyncio.run(say(LAST, app=answer_with(start, *more, {"type": "http.response.body"})))
    assert answer.partition(b"\r\n\r\n")[2] == b"".join(body)


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_an_answer_without_a_body_goes_out(connection: bytes) -> None:
    app = answer_with(START, {"type": "http.response.body", "body": b"text"})
    head = b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: %b\r\n\r\n" % connection

    async def ask() -> bytes:
        async with connection_to(app) as (reader, writer):
            writer.write(head)
            return await reader.readuntil(b"\r\n\r\n")

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 200 OK")


def test_an_answer_that_breaks_off_still_has_its_head() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        raise RuntimeError("no body")

    assert asyncio.run(say(LAST, app=app)).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_waits_for_permission_gets_it_at_once() -> None:
    async def ask() -> tuple[bytes, bytes]:
        async with connection_to(count_body) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
            allowed = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"abc")
            return allowed, await reader.readuntil(b"\r\n\r\n")

    allowed, answer = asyncio.run(ask())
    assert allowed == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("opening", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_who_says_nothing_or_half_of_it_is_not_kept_for_ever(
    opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.02)
    assert asyncio.run(say(opening)) == b""


def test_a_second_request_that_never_ends_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.02)
    answer = asyncio.run(say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhos"))
    assert answer.count(b"HTTP/1.1 200 OK") == 1


PIECES = [
    b"GET / HTTP/1.1\r\n",
    b"host: x\r\n",
    b"\r\n",
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"\x00",
    b"PRI * HTTP/2.0\r\n\r\n",
]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=8))
def test_any_bytes_end_in_an_answer_or_a_closed_connection(parts: list[bytes]) -> None:
    async def talk() -> None:
        async with connection_to(count_body) as (reader, writer):
            writer.write(b"".join(parts))
            writer.write_eof()
            with suppress(ConnectionError):
                await reader.read(100)

    asyncio.run(talk())
