"""The HTTP server against ordinary, slow, wrong and hostile clients, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.server import http
from gpuscope.server.http import Request, Response, Server

ROUTES = {
    "/": lambda request: Response(b"hello\n"),
    "/broken": lambda request: 1 / 0,
    "/echo": lambda request: Response(request.headers.get("x-word", "").encode()),
}
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Talk = Callable[[int], Awaitable[None]]


def with_server(talk: Talk, **options: object) -> None:
    async def run() -> None:
        server = Server(ROUTES, **options)  # type: ignore[arg-type]
        port = await server.start("127.0.0.1", 0)
        try:
            await talk(port)
        finally:
            await server.stop()

    asyncio.run(run())


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def answer_to(request: bytes, **options: object) -> bytes:
    answers: list[bytes] = []

    async def talk(port: int) -> None:
        answers.append(await ask(port, request))

    with_server(talk, **options)
    return answers[0]


def test_a_page() -> None:
    answer = answer_to(GET)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello\n")


def test_head_has_no_body_but_its_length() -> None:
    answer = answer_to(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"content-length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_several_requests_on_one_connection_also_at_once() -> None:
    assert answer_to(GET * 3).count(b"hello\n") == 3


def test_a_query_string_is_ignored_and_an_unknown_path_lists_the_known() -> None:
    assert b"hello" in answer_to(b"GET /?collect[]=x HTTP/1.1\r\nHost: x\r\n\r\n")
    missing = answer_to(b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n")
    assert missing.startswith(b"HTTP/1.1 404")
    assert b"/echo" in missing


def test_other_methods_and_bodies_are_refused() -> None:
    assert answer_to(b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 405")
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    assert answer_to(post).startswith(b"HTTP/1.1 405")


def test_a_page_that_fails_costs_only_itself() -> None:
    answers = answer_to(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    assert answers.startswith(b"HTTP/1.1 500")
    assert answers.endswith(b"hello\n")


def test_an_endless_head_is_refused() -> None:
    assert answer_to(b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000).startswith(b"HTTP/1.1 4")


def test_a_guard_answers_first_and_requests_behind_it_wait_their_turn() -> None:
    async def guard(request: Request) -> Response | None:
        await asyncio.sleep(0)
        return None if request.headers.get("x-word") == "please" else Response(b"no\n", 401)

    please = b"GET /echo HTTP/1.1\r\nHost: x\r\nX-Word: please\r\n\r\n"
    answers = answer_to(GET + please + GET, guard=guard)
    assert [line for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1") or b"HTTP/1.1 " in line]
    assert answers.count(b"401") == 2
    assert answers.count(b"please") == 1


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.05)

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    with_server(talk)


def test_there_are_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 2)

    async def talk(port: int) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in opened:
            writer.write(GET)
        for reader, _ in opened:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        third = b"refused"
        with contextlib.suppress(OSError):
            third = await ask(port, GET)
        assert third in (b"", b"refused")
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()

    with_server(talk)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([GET, b"GET ", b"\r\n", b"HTTP/1.1"]), max_size=6))
def test_rubbish_never_takes_the_server_down(pieces: list[bytes]) -> None:
    async def talk(port: int) -> None:
        with contextlib.suppress(ConnectionError):
            await ask(port, b"".join(pieces))
        assert (await ask(port, GET)).endswith(b"hello\n")

    with_server(talk)
