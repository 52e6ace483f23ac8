"""Clients that send too much, too little, too slowly, or rubbish; that do not read, and that do not end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.limits import Limits
from gpuscope.server.http import connection
from gpuscope.server.http import server as listening
from gpuscope.server.http.connection import MAX_UNREAD_BYTES
from gpuscope.server.http.messages import Request, Response, text
from tests.server.http.support import GET, LAST, MAX_COUNTED, ROUTER, answer_to, ask, count, with_server
from tests.waiting import wait_in_loop_for

QUICK = Limits(request_head_timeout=0.3, client_stall_timeout=0.3, request_body_timeout=0.6)
MAX_HEAD_BYTES = QUICK.max_request_head_bytes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are looked at often; with QUICK all of them run fast."""
    monkeypatch.setattr(listening, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.3)


def post(size: int, *more: bytes) -> bytes:
    return b"\r\n".join([b"POST /count HTTP/1.1", b"host: x", b"content-length: %d" % size, *more, b"", b""])


# Bodies


def test_a_body_may_be_larger_than_a_head_and_than_what_waits_unread() -> None:
    size = 2 * MAX_UNREAD_BYTES
    answer = answer_to(post(size), *[b"b" * 1024] * (size // 1024), LAST)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"\r\n\r\n%d\n" % size in answer


def test_a_body_in_chunks() -> None:
    head = b"POST /count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert b"\r\n\r\n8\n" in answer_to(head, b"5\r\nhel", b"lo\r\n", b"3\r\nyou\r\n0\r\n\r\n", LAST)


def test_a_body_too_large_is_refused_before_it_is_here_and_the_refusal_seen() -> None:
    answer = answer_to(post(1 << 40), *[b"b" * 65536] * (2 * MAX_COUNTED // 65536), eof=False)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close\r\n" in answer


def test_a_body_that_nobody_wants_does_not_come_in() -> None:
    async def talk(port: int) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.set_write_buffer_limits(0)
        writer.write(post(1 << 40))
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 28:
                writer.write(b"b" * (1 << 20))
                await asyncio.wait_for(writer.drain(), 0.5)
                sent += 1 << 20
        writer.transport.abort()
        waiting.set()
        return sent

    waiting = asyncio.Event()

    async def deaf(request: Request) -> Response:
        await waiting.wait()
        return text("")

    assert with_server(talk, deaf) < 1 << 26


def test_a_body_that_breaks_off() -> None:
    assert answer_to(post(10), b"abc").startswith(b"HTTP/1.1 400")


def test_a_refused_body_that_is_here_already_costs_no_connection() -> None:
    put = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    assert re.findall(rb"HTTP/1.1 (\d+)", answer_to(put + LAST)) == [b"405", b"200"]


def test_a_client_that_waits_for_permission_gets_it_at_once() -> None:
    async def talk(port: int) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(3, b"expect: 100-continue"))
        allowed = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abc")
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return allowed, answer

    allowed, answer = with_server(talk)
    assert allowed == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_is_refused_is_not_asked_for_its_body() -> None:
    put = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
    answer = answer_to(put, eof=False)
    assert answer.startswith(b"HTTP/1.1 405")
    assert b"connection: close\r\n" in answer


# Heads


def test_heads_on_one_connection_are_counted_one_by_one() -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * (MAX_HEAD_BYTES // 2))
    assert answer_to(large, large, large, LAST).count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    ("opening", "more"),
    [(b"GET / HTTP/1.1\r\nhost: x\r\n", b"n: v\r\n"), (b"GET /", b"path"), (b"GET / HTTP/1.1\r\nx: ", b"v")],
    ids=["headers", "address", "value"],
)
def test_an_endless_head_is_refused(opening: bytes, more: bytes) -> None:
    head = opening + more * (MAX_HEAD_BYTES // len(more) + 1)
    assert answer_to(head, eof=False).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head",
    [
        b"not HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nname : 1\r\n\r\n",
        b"GET / HTTP/1.1\r\na: 1\r\n b: 2\r\n\r\n",
        b"GET / HTTP/1.1\na: 1\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_refused(head: bytes) -> None:
    answers = answer_to(GET + head + GET, eof=False)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"400"]


@pytest.mark.parametrize(
    "codings",
    [
        b"transfer-encoding: gzip, chunked",
        b"transfer-encoding: identity, chunked",
        b"transfer-encoding: gzip\r\ntransfer-encoding: chunked",
        b"transfer-encoding: gzip",
    ],
)
def test_a_transfer_coding_other_than_chunked_is_refused(codings: bytes) -> None:
    body = b"3\r\nabc\r\n0\r\n\r\n"
    answers = answer_to(b"POST /count HTTP/1.1\r\nhost: x\r\n" + codings + b"\r\n\r\n" + body + GET, eof=False)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"501"], "and nothing after it is read"
    assert answer_to(b"POST /count HTTP/1.1\r\ntransfer-encoding: Chunked \r\n\r\n" + body).endswith(b"\r\n3\n")


def test_rubbish_behind_a_request_that_waits_is_not_answered_into_it() -> None:
    slow = b"GET /slow HTTP/1.1\r\nhost: x\r\nx-word: %b\r\n\r\n"
    answers = answer_to(slow % b"one" + b"rubbish\r\n\r\n", eof=False)
    first, second = answers.split(b"HTTP/1.1 ")[1:]
    assert first.endswith(b"\r\n\r\none")
    assert second.startswith(b"400 ")


# Time


@pytest.mark.parametrize(
    "opening", [b"", b"\r\n", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", post(9) + b"a"]
)
@pytest.mark.usefixtures("quick")
def test_who_says_nothing_or_half_of_it_is_not_kept_for_ever(opening: bytes) -> None:
    limits = replace(QUICK, keep_alive_timeout=0.05)
    with contextlib.suppress(ConnectionResetError):
        assert answer_to(opening, eof=False, limits=limits)[:12] in (b"", b"HTTP/1.1 408")


@pytest.mark.usefixtures("quick")
def test_a_second_request_that_never_ends_closes_the_connection() -> None:
    answer = answer_to(GET, b"GET / HTTP/1.1\r\nhos", eof=False, limits=QUICK)
    assert answer.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.usefixtures("quick")
def test_a_kept_connection_is_kept_so_long() -> None:
    assert answer_to(GET, eof=False, limits=replace(QUICK, keep_alive_timeout=0.1)).endswith(b"hello\n")


@pytest.mark.usefixtures("quick")
def test_a_handler_may_take_longer_than_a_client() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.8)
        return await count(request)

    assert answer_to(post(3) + b"abc", LAST, handler=slow, limits=QUICK).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.usefixtures("quick")
def test_who_does_not_take_the_answer_is_cut_off_but_not_who_takes_it_slowly() -> None:
    size = 1 << 26

    async def much(request: Request) -> Response:
        return Response(b"x" * size)

    async def talk(port: int) -> list[int]:
        taken = []
        for pause in (0.002, 3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(LAST)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(pause)
            taken.append(0)
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 22):
                    taken[-1] += len(piece)
                    await asyncio.sleep(min(pause, 0.002))
            writer.close()
        return taken

    slowly, late = with_server(talk, much, limits=replace(QUICK, client_stall_timeout=0.5))
    assert slowly == size
    assert late < size


# Numbers


def test_there_are_only_so_many_connections() -> None:
    async def talk(port: int) -> list[bytes]:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in opened:
            writer.write(GET)
        await wait_in_loop_for(lambda: busy == 2)
        answers = [await ask(port, eof=False)]
        may_answer.set()
        answers += [await reader.readline() for reader, _ in opened]
        answers.append(await ask(port, GET))  # in the place of one that waits
        ends = [await reader.read() for reader, _ in opened[:1]]
        for _, writer in opened:
            writer.close()
        assert ends[0].endswith(b"\r\n\r\nhello\n"), "closed after its answer"
        return answers

    busy, may_answer = 0, asyncio.Event()

    async def slow(request: Request) -> Response:
        nonlocal busy
        busy += 1
        await may_answer.wait()
        return text("hello")

    answers = with_server(talk, slow, limits=Limits(max_connections=2))
    assert [answer.split()[1] for answer in answers] == [b"503", b"200", b"200", b"200"]


def test_who_has_asked_nothing_makes_room_before_who_waits_between_requests() -> None:
    async def talk(port: int) -> list[bytes]:
        known_reader, known = await asyncio.open_connection("127.0.0.1", port)
        known.write(GET)
        await known_reader.readuntil(b"hello\n")
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in silent:
            writer.write(b"GET / HT")
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in silent]
        answers = []
        for reader, writer in kept:
            writer.write(GET)
            answers.append(await reader.readuntil(b"hello\n"))
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        known.write(LAST)
        answers.append(await known_reader.read())
        for writer in (known, *(writer for _, writer in kept)):
            writer.close()
        return answers

    answers = with_server(talk, limits=Limits(max_connections=3))
    assert [answer.split()[1] for answer in answers] == [b"200"] * 3


def test_a_server_that_stops_finishes_what_it_answers_and_waits_no_longer_than_it_said() -> None:
    async def run(answers_after: float, grace: float) -> bytes:
        async def slow(request: Request) -> Response:
            await asyncio.sleep(answers_after)
            return text("done")

        server = listening.Server(slow)
        port = await server.start("127.0.0.1", 0)
        asking = asyncio.create_task(ask(port, GET, eof=False))
        idle = asyncio.create_task(ask(port, eof=False))
        await wait_in_loop_for(lambda: any(one.is_busy for one in server.connections))
        await server.stop(grace)
        with contextlib.suppress(ConnectionResetError):
            assert await idle == b""
            return await asking
        return b""

    assert asyncio.run(run(0.1, 60)).endswith(b"done\n")
    assert asyncio.run(run(60, 0.1)) == b""


# Rubbish

PIECES = [
    GET,
    b"GET / HTTP/1.1\r\n",
    b"POST /count HTTP/1.1\r\n",
    b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n",
    b"host: x\r\n",
    b"\r\n",
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"expect: 100-continue\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"\x00",
    b"PRI * HTTP/2.0\r\n\r\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=200), max_size=8), st.booleans())
def test_any_bytes_end_in_an_answer_or_a_closed_connection(parts: list[bytes], at_once: bool) -> None:
    async def talk(port: int) -> None:
        with contextlib.suppress(ConnectionError):
            await ask(port, *([b"".join(parts)] if at_once else parts))
        assert (await ask(port, GET)).endswith(b"hello\n")

    with_server(talk, ROUTER)
