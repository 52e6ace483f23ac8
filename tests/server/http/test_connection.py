"""Requests and answers on one connection, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator

import pytest

from gpuscope.server.http import connection
from gpuscope.server.http.messages import AnswerBroken, Request, Response, guarded, text
from tests.server.http.support import GET, LAST, ROUTER, answer_to, ask, with_server


def test_a_page() -> None:
    answer = answer_to(GET)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"\r\ncontent-length: 6\r\n" in answer
    assert b"\r\nx-content-type-options: nosniff\r\n" in answer
    assert answer.endswith(b"\r\n\r\nhello\n")


def test_head_has_no_body_but_its_length() -> None:
    answer = answer_to(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"content-length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_no_content_has_no_length_either() -> None:
    async def nothing(request: Request) -> Response:
        return Response(status=204)

    answer = answer_to(GET, handler=nothing)
    assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-" not in answer.replace(b"x-content-", b"")


@pytest.mark.parametrize("path", [b"/", b"/slow"])
def test_several_requests_on_one_connection_also_at_once(path: bytes) -> None:
    one = b"GET %b HTTP/1.1\r\nHost: x\r\nX-Word: %d\r\n\r\n"
    answers = answer_to(*(one % (path, number) for number in range(3)))
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    answers = answer_to(b"".join(one % (path, number) for number in range(300)))
    assert answers.count(b"HTTP/1.1 200 OK") == 300
    if path == b"/slow":
        assert re.findall(rb"\r\n\r\n(\d+)", answers) == [b"%d" % number for number in range(300)]


def test_a_connection_is_closed_when_the_client_says_so() -> None:
    assert answer_to(LAST + GET, eof=False).count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close\r\n" in answer_to(LAST, eof=False)
    assert answer_to(b"GET / HTTP/1.0\r\n\r\n", eof=False).endswith(b"hello\n")


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
def test_targets(target: bytes, path: str, query: bytes) -> None:
    seen: list[Request] = []

    async def look(request: Request) -> Response:
        seen.append(request)
        return text("")

    answer_to(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\n\r\n" % target, handler=look)
    assert (seen[0].method, seen[0].path, seen[0].query) == ("OPTIONS", path, query)
    assert seen[0].headers == [("host", "x"), ("a", "1"), ("a", "2")]
    assert (seen[0].peer, seen[0].secure) == ("127.0.0.1", False)


def test_another_protocol_is_not_spoken_but_the_request_answered() -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = answer_to(GET + upgrade + b"\x00\x00", eof=False)
    assert answer.count(b"hello\n") == 2
    assert answer.count(b"connection: close") == 1


def test_a_page_that_fails_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answers = answer_to(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    assert answers.startswith(b"HTTP/1.1 500")
    assert answers.endswith(b"hello\n")
    assert "serving '/broken' failed" in caplog.text


def test_a_header_cannot_be_broken_in_two(caplog: pytest.LogCaptureFixture) -> None:
    async def careless(request: Request) -> Response:
        return Response(headers=(("x-name", "a\r\nset-cookie: b"),))

    with caplog.at_level(logging.ERROR):
        assert answer_to(GET, handler=careless) == b""
    assert "a line break in a header" in caplog.text


def test_a_guard_answers_first_and_requests_behind_it_wait_their_turn() -> None:
    async def guard(request: Request, client: str) -> Response | None:
        await asyncio.sleep(0)
        return None if request.header("x-word") == "please" else text("no", 401)

    please = b"GET /echo HTTP/1.1\r\nHost: x\r\nX-Word: please\r\n\r\n"
    answers = answer_to(GET + please + GET, handler=guarded(ROUTER, guard))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"401", b"200", b"401"]
    assert answers.count(b"please") == 1


def test_a_quick_answer_is_out_in_one_piece_before_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = connection.Connection.connection_made

    def noted(self: connection.Connection, transport: asyncio.Transport) -> None:
        write = transport.write
        transport.write = lambda data: (written.append(bytes(data)), write(data))  # type: ignore[method-assign]
        real(self, transport)

    def no_task(*args: object) -> None:
        raise AssertionError("a task for an answer that waits for nothing")

    monkeypatch.setattr(connection.Connection, "connection_made", noted)
    monkeypatch.setattr(connection.Connection, "_task_is_done", no_task)
    answer = answer_to(LAST)
    assert written == [answer]


def streaming(*pieces: bytes, fails: bool = False, **headers: str) -> tuple[list[str], connection.Handler]:
    seen: list[str] = []

    async def run() -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece
        if fails:
            raise OSError("the engine is gone")

    async def close() -> None:
        seen.append("closed")

    async def answer(request: Request) -> Response:
        told = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return Response(b"", 200, "text/plain", told, run(), close)

    return seen, answer


def test_an_answer_in_pieces() -> None:
    seen, handler = streaming(b"one", b"", b"two" * 10)
    answer = answer_to(GET + LAST, handler=handler)
    body = b"\r\n\r\n3\r\none\r\n1e\r\n" + b"two" * 10 + b"\r\n0\r\n\r\n"
    assert answer.count(b"transfer-encoding: chunked") == 1, "the last one is ended by the connection's end"
    assert body in answer
    assert answer.endswith(b"\r\n\r\none" + b"two" * 10)
    assert seen == ["closed"] * 2


def test_an_answer_in_pieces_of_a_known_length() -> None:
    _, handler = streaming(b"one", b"two", content_length="6")
    answer = answer_to(GET + LAST, handler=handler)
    assert answer.count(b"content-length: 6\r\n") == 2
    assert answer.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in answer


def test_an_answer_that_breaks_off_is_seen_to(caplog: pytest.LogCaptureFixture) -> None:
    seen, handler = streaming(b"one", fails=True)
    with caplog.at_level(logging.ERROR):
        answer = answer_to(GET, handler=handler, eof=False)
    assert not answer.endswith(b"0\r\n\r\n"), "no client takes it for whole"
    assert seen == ["closed"]
    assert "answering '/' failed" in caplog.text


def test_an_answer_that_breaks_off_for_a_known_reason_is_not_told_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> AsyncIterator[bytes]:
        yield b"one"
        raise AnswerBroken

    async def answer(request: Request) -> Response:
        return Response(pieces=run())

    with caplog.at_level(logging.ERROR):
        assert not answer_to(GET, handler=answer, eof=False).endswith(b"0\r\n\r\n")
    assert caplog.text == ""


def test_many_requests_sent_ahead_do_not_keep_another_client_waiting() -> None:
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


def test_pieces_wait_for_a_client_that_is_slow_and_end_with_one_that_leaves() -> None:
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

    async def answer(request: Request) -> Response:
        return Response(b"", pieces=many())

    async def talk(port: int) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET)
        await reader.readline()
        waiting = await when_it_stands_still()
        writer.transport.abort()
        return waiting, await when_it_stands_still()

    waiting, afterwards = with_server(talk, answer)
    assert waiting < 1000
    assert afterwards <= waiting + 1


def test_who_leaves_is_told_to_what_runs_for_it() -> None:
    async def talk(port: int) -> bool:
        began, left = asyncio.Event(), asyncio.Event()

        async def wait(request: Request) -> Response:
            began.set()
            request.on_leave = left.set
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

    handlers: list[connection.Handler] = []

    async def handler(request: Request) -> Response:
        return await handlers[0](request)

    assert with_server(talk, handler)
