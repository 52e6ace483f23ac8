"""Requests and responses on one connection, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator

import pytest

from gpuscope.serve.http import connection
from gpuscope.serve.http.messages import Handler, Request, Response, ResponseAborted, text, with_guard
from tests.server.http.support import GET, LAST, ROUTER, ask, response_to, with_server


def test_get_returns_the_page() -> None:
    response = response_to(GET)
    assert response.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"\r\ncontent-length: 6\r\n" in response
    assert b"\r\nx-content-type-options: nosniff\r\n" in response
    assert response.endswith(b"\r\n\r\nhello\n")


def test_head_response_has_content_length_and_no_body() -> None:
    response = response_to(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"content-length: 6\r\n" in response
    assert response.endswith(b"\r\n\r\n")


def test_204_has_no_content_length() -> None:
    async def nothing(request: Request) -> Response:
        return Response(status=204)

    response = response_to(GET, handler=nothing)
    assert response.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-" not in response.replace(b"x-content-", b"")


@pytest.mark.parametrize("path", [b"/", b"/slow"])
def test_keep_alive_and_pipelined_requests(path: bytes) -> None:
    one = b"GET %b HTTP/1.1\r\nHost: x\r\nX-Word: %d\r\n\r\n"
    responses = response_to(*(one % (path, number) for number in range(3)))
    assert responses.count(b"HTTP/1.1 200 OK") == 3
    responses = response_to(b"".join(one % (path, number) for number in range(300)))
    assert responses.count(b"HTTP/1.1 200 OK") == 300
    if path == b"/slow":
        assert re.findall(rb"\r\n\r\n(\d+)", responses) == [b"%d" % number for number in range(300)]


def test_connection_close_is_honoured() -> None:
    assert response_to(LAST + GET, eof=False).count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close\r\n" in response_to(LAST, eof=False)
    assert response_to(b"GET / HTTP/1.0\r\n\r\n", eof=False).endswith(b"hello\n")


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/a%2Fb%20c?x=%20&y", "/a/b c", b"x=%20&y"),
        (b"/%ff", "/�", b""),
        (b"http://other:9/p?q", "/p", b"q"),
        (b"http://other", "/", b""),
        (b"/a#b", "/a", b""),
        (b"*", "*", b""),
    ],
)
def test_request_targets(target: bytes, path: str, query: bytes) -> None:
    seen: list[Request] = []

    async def look(request: Request) -> Response:
        seen.append(request)
        return text("")

    response_to(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\n\r\n" % target, handler=look)
    assert (seen[0].method, seen[0].path, seen[0].query) == ("OPTIONS", path, query)
    assert seen[0].headers == [("host", "x"), ("a", "1"), ("a", "2")]
    assert (seen[0].peer, seen[0].secure) == ("127.0.0.1", False)


def test_upgrade_is_ignored_and_the_request_answered() -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    response = response_to(GET + upgrade + b"\x00\x00", eof=False)
    assert response.count(b"hello\n") == 2
    assert response.count(b"connection: close") == 1


def test_a_failing_handler_gets_500_and_the_connection_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        responses = response_to(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    assert responses.startswith(b"HTTP/1.1 500")
    assert responses.endswith(b"hello\n")
    assert "serving '/broken' failed" in caplog.text


def test_line_breaks_in_headers_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    async def careless(request: Request) -> Response:
        return Response(headers=(("x-name", "a\r\nset-cookie: b"),))

    with caplog.at_level(logging.ERROR):
        assert response_to(GET, handler=careless) == b""
    assert "a line break in a header" in caplog.text


def test_a_guard_runs_first_and_pipelined_requests_stay_in_order() -> None:
    async def guard(request: Request, client: str) -> Response | None:
        await asyncio.sleep(0)
        return None if request.header("x-word") == "please" else text("no", 401)

    please = b"GET /echo HTTP/1.1\r\nHost: x\r\nX-Word: please\r\n\r\n"
    responses = response_to(GET + please + GET, handler=with_guard(ROUTER, guard))
    assert re.findall(rb"HTTP/1.1 (\d+)", responses) == [b"401", b"200", b"401"]
    assert responses.count(b"please") == 1


def test_a_response_without_waiting_is_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[bytes] = []
    real = connection.Connection.connection_made

    def noted(self: connection.Connection, transport: asyncio.Transport) -> None:
        write = transport.write

        def noted_write(data: bytes | bytearray | memoryview) -> None:
            written.append(bytes(data))
            write(data)

        transport.write = noted_write  # type: ignore[method-assign]
        real(self, transport)

    def no_task(*args: object) -> None:
        raise AssertionError("a task for an response that waits for nothing")

    monkeypatch.setattr(connection.Connection, "connection_made", noted)
    monkeypatch.setattr(connection.Connection, "on_task_done", no_task)
    response = response_to(LAST)
    assert written == [response]


def streaming(*pieces: bytes, fails: bool = False, **headers: str) -> tuple[list[str], Handler]:
    seen: list[str] = []

    async def run() -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece
        if fails:
            raise OSError("the engine is gone")

    async def close() -> None:
        seen.append("closed")

    async def response(request: Request) -> Response:
        extra_headers = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return Response(b"", 200, "text/plain", extra_headers, run(), close)

    return seen, response


def test_streamed_response_is_chunked() -> None:
    seen, handler = streaming(b"one", b"", b"two" * 10)
    response = response_to(GET + LAST, handler=handler)
    body = b"\r\n\r\n3\r\none\r\n1e\r\n" + b"two" * 10 + b"\r\n0\r\n\r\n"
    assert response.count(b"transfer-encoding: chunked") == 1, "the last one is ended by the connection's end"
    assert body in response
    assert response.endswith(b"\r\n\r\none" + b"two" * 10)
    assert seen == ["closed"] * 2


def test_streamed_response_with_content_length() -> None:
    _, handler = streaming(b"one", b"two", content_length="6")
    response = response_to(GET + LAST, handler=handler)
    assert response.count(b"content-length: 6\r\n") == 2
    assert response.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in response


def test_a_failing_stream_aborts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    seen, handler = streaming(b"one", fails=True)
    with caplog.at_level(logging.ERROR):
        answer = response_to(GET, handler=handler, eof=False)
    assert not answer.endswith(b"0\r\n\r\n"), "no client takes it for whole"
    assert seen == ["closed"]
    assert "sending the response to '/' failed" in caplog.text


def test_response_aborted_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> AsyncIterator[bytes]:
        yield b"one"
        raise ResponseAborted

    async def response(request: Request) -> Response:
        return Response(pieces=run())

    with caplog.at_level(logging.ERROR):
        assert not response_to(GET, handler=response, eof=False).endswith(b"0\r\n\r\n")
    assert caplog.text == ""


def test_pipelined_requests_do_not_delay_another_client() -> None:
    order: list[str] = []

    async def note(request: Request) -> Response:
        order.append(request.path)
        time.sleep(0.0002)  # the work that makes the loop busy
        return text("")

    async def talk(port: int) -> None:
        _, other = await asyncio.open_connection("127.0.0.1", port)
        many = asyncio.create_task(ask(port, b"GET /many HTTP/1.1\r\nHost: x\r\n\r\n" * 500))
        while not order:
            await asyncio.sleep(0)
        other.write(b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
        await many
        other.close()

    with_server(talk, note)
    assert order.count("/many") == 500
    assert order.index("/other") < 500


def test_a_stream_waits_for_a_slow_client_and_ends_when_it_disconnects() -> None:
    made = 0

    async def many() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(4000):
            made += 1
            yield b"x" * 65536

    async def when_it_stands_still() -> int:
        before = -1
        while made != before:
            before = made
            await asyncio.sleep(0.3)
        return made

    async def response(request: Request) -> Response:
        return Response(b"", pieces=many())

    async def talk(port: int) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET)
        await reader.readline()
        waiting = await when_it_stands_still()
        writer.transport.abort()
        return waiting, await when_it_stands_still()

    waiting, afterwards = with_server(talk, response)
    assert waiting < 1000
    assert afterwards <= waiting + 1


def test_on_disconnect_is_called() -> None:
    async def talk(port: int) -> bool:
        began, left = asyncio.Event(), asyncio.Event()

        async def wait(request: Request) -> Response:
            began.set()
            request.on_disconnect = left.set
            await left.wait()
            return text("too late")

        handlers.append(wait)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await asyncio.wait_for(began.wait(), 60)
        assert not left.is_set()
        writer.close()
        await asyncio.wait_for(left.wait(), 60)
        return left.is_set()

    handlers: list[Handler] = []

    async def handler(request: Request) -> Response:
        return await handlers[0](request)

    assert with_server(talk, handler)
