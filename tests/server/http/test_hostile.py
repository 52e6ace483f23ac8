"""Hostile clients: too much input, too little, too slow, malformed; clients that never read or never close."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.limits import Limits
from gpuscope.serve.http import connection
from gpuscope.serve.http import server as listening
from gpuscope.serve.http.connection import MAX_UNREAD_BYTES
from gpuscope.serve.http.messages import Request, Response, text
from tests.examples import examples
from tests.server.http.support import GET, LAST, MAX_COUNTED, ROUTER, ask, count, response_to, with_server
from tests.waiting import wait_in_loop_for

QUICK = Limits(request_head_timeout=0.3, client_stall_timeout=0.3, request_body_timeout=0.6)
MAX_HEAD_BYTES = QUICK.max_request_head_bytes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks deadlines often; the limits QUICK are short."""
    monkeypatch.setattr(listening, "EXPIRY_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.3)


def post(size: int, *more: bytes) -> bytes:
    return b"\r\n".join([b"POST /count HTTP/1.1", b"host: x", b"content-length: %d" % size, *more, b"", b""])


# Bodies


def test_a_body_may_exceed_the_head_limit_and_the_buffer() -> None:
    size = 2 * MAX_UNREAD_BYTES
    response = response_to(post(size), *[b"b" * 1024] * (size // 1024), LAST)
    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert b"\r\n\r\n%d\n" % size in response


def test_a_chunked_body() -> None:
    head = b"POST /count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert b"\r\n\r\n8\n" in response_to(head, b"5\r\nhel", b"lo\r\n", b"3\r\nyou\r\n0\r\n\r\n", LAST)


def test_a_too_large_body_is_refused_early_and_the_client_sees_the_response() -> None:
    response = response_to(post(1 << 40), *[b"b" * 65536] * (2 * MAX_COUNTED // 65536), eof=False)
    assert response.startswith(b"HTTP/1.1 413")
    assert b"connection: close\r\n" in response


def test_an_unread_body_is_not_received() -> None:
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


def test_a_truncated_body() -> None:
    assert response_to(post(10), b"abc").startswith(b"HTTP/1.1 400")


def test_a_refused_body_that_is_complete_keeps_the_connection() -> None:
    put = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    assert re.findall(rb"HTTP/1.1 (\d+)", response_to(put + LAST)) == [b"405", b"200"]


def test_expect_100_continue() -> None:
    async def talk(port: int) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(3, b"expect: 100-continue"))
        allowed = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abc")
        response = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return allowed, response

    allowed, response = with_server(talk)
    assert allowed == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert response.startswith(b"HTTP/1.1 200 OK")


def test_a_refused_request_gets_no_100_continue() -> None:
    put = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
    response = response_to(put, eof=False)
    assert response.startswith(b"HTTP/1.1 405")
    assert b"connection: close\r\n" in response


# Heads


def test_the_head_limit_is_per_request() -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * (MAX_HEAD_BYTES // 2))
    assert response_to(large, large, large, LAST).count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    ("opening", "more"),
    [(b"GET / HTTP/1.1\r\nhost: x\r\n", b"n: v\r\n"), (b"GET /", b"path"), (b"GET / HTTP/1.1\r\nx: ", b"v")],
    ids=["headers", "address", "value"],
)
def test_an_endless_head_is_refused(opening: bytes, more: bytes) -> None:
    head = opening + more * (MAX_HEAD_BYTES // len(more) + 1)
    assert response_to(head, eof=False).startswith(b"HTTP/1.1 431 ")


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
def test_ambiguous_framing_is_refused(head: bytes) -> None:
    responses = response_to(GET + head + GET, eof=False)
    assert re.findall(rb"HTTP/1.1 (\d+)", responses) == [b"200", b"400"]


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
    responses = response_to(
        b"POST /count HTTP/1.1\r\nhost: x\r\n" + codings + b"\r\n\r\n" + body + GET, eof=False
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", responses) == [b"501"], "and nothing after it is read"
    assert response_to(b"POST /count HTTP/1.1\r\ntransfer-encoding: Chunked \r\n\r\n" + body).endswith(
        b"\r\n3\n"
    )


def test_malformed_input_after_a_slow_request_is_refused_after_its_response() -> None:
    slow = b"GET /slow HTTP/1.1\r\nhost: x\r\nx-word: %b\r\n\r\n"
    responses = response_to(slow % b"one" + b"rubbish\r\n\r\n", eof=False)
    first, second = responses.split(b"HTTP/1.1 ")[1:]
    assert first.endswith(b"\r\n\r\none")
    assert second.startswith(b"400 ")


# Time


@pytest.mark.parametrize(
    "opening", [b"", b"\r\n", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", post(9) + b"a"]
)
@pytest.mark.usefixtures("quick")
def test_silent_and_incomplete_requests_time_out(opening: bytes) -> None:
    limits = replace(QUICK, keep_alive_timeout=0.05)
    with contextlib.suppress(ConnectionResetError):
        assert response_to(opening, eof=False, limits=limits)[:12] in (b"", b"HTTP/1.1 408")


@pytest.mark.usefixtures("quick")
def test_an_incomplete_second_request_times_out() -> None:
    response = response_to(GET, b"GET / HTTP/1.1\r\nhos", eof=False, limits=QUICK)
    assert response.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.usefixtures("quick")
def test_keep_alive_timeout() -> None:
    assert response_to(GET, eof=False, limits=replace(QUICK, keep_alive_timeout=0.1)).endswith(b"hello\n")


@pytest.mark.usefixtures("quick")
def test_client_timeouts_do_not_apply_to_handlers() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.8)
        return await count(request)

    assert response_to(post(3) + b"abc", LAST, handler=slow, limits=QUICK).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.usefixtures("quick")
def test_a_client_that_stops_receiving_is_disconnected_and_a_slow_one_is_not() -> None:
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


def test_the_number_of_connections_is_limited() -> None:
    async def talk(port: int) -> list[bytes]:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in opened:
            writer.write(GET)
        await wait_in_loop_for(lambda: busy == 2)
        responses = [await ask(port, eof=False)]
        may_answer.set()
        responses += [await reader.readline() for reader, _ in opened]
        responses.append(await ask(port, GET))  # evicts an idle connection
        ends = [await reader.read() for reader, _ in opened[:1]]
        for _, writer in opened:
            writer.close()
        assert ends[0].endswith(b"\r\n\r\nhello\n"), "closed after its response"
        return responses

    busy, may_answer = 0, asyncio.Event()

    async def slow(request: Request) -> Response:
        nonlocal busy
        busy += 1
        await may_answer.wait()
        return text("hello")

    responses = with_server(talk, slow, limits=Limits(max_connections=2))
    assert [response.split()[1] for response in responses] == [b"503", b"200", b"200", b"200"]


def test_connections_without_a_request_are_evicted_before_idle_ones() -> None:
    async def talk(port: int) -> list[bytes]:
        known_reader, known = await asyncio.open_connection("127.0.0.1", port)
        known.write(GET)
        await known_reader.readuntil(b"hello\n")
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in silent:
            writer.write(b"GET / HT")
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in silent]
        responses = []
        for reader, writer in kept:
            writer.write(GET)
            responses.append(await reader.readuntil(b"hello\n"))
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        known.write(LAST)
        responses.append(await known_reader.read())
        for writer in (known, *(writer for _, writer in kept)):
            writer.close()
        return responses

    responses = with_server(talk, limits=Limits(max_connections=3))
    assert [response.split()[1] for response in responses] == [b"200"] * 3


def test_the_oldest_connection_without_a_request_is_evicted_whatever_its_address() -> None:
    """Each slow client has an address of its own; the one that is served has opened two connections."""

    async def talk(port: int) -> list[bytes]:
        slow = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{host}", 0))
            for host in (2, 3, 4)
        ]
        served = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        late = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.5", 0))
        responses = []
        for reader, writer in served:
            writer.write(GET)
            responses.append(await reader.readuntil(b"hello\n"))
        for _, writer in (*slow, *served, late):
            writer.close()
        return responses

    responses = with_server(talk, limits=Limits(max_connections=3))
    assert [response.split()[1] for response in responses] == [b"200", b"200"]


def test_connections_that_are_reset_before_they_are_accepted_are_not_opened() -> None:
    async def run() -> int:
        opened: list[asyncio.BaseTransport] = []

        def accepts(transport: asyncio.BaseTransport) -> bool:
            opened.append(transport)
            return True

        server = listening.Server(ROUTER, accepts_peer=accepts)
        port = await server.start("127.0.0.1", 0)
        for _ in range(3):  # the server's loop does not run meanwhile
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(GET)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert (await ask(port, GET)).endswith(b"hello\n")
        await server.stop()
        return len(opened)

    assert asyncio.run(run()) == 1


def test_stop_finishes_running_requests_within_the_grace_period() -> None:
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


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=200), max_size=8), st.booleans())
def test_any_bytes_end_in_a_response_or_a_closed_connection(parts: list[bytes], at_once: bool) -> None:
    async def talk(port: int) -> None:
        with contextlib.suppress(ConnectionError):
            await ask(port, *([b"".join(parts)] if at_once else parts))
        assert (await ask(port, GET)).endswith(b"hello\n")

    with_server(talk, ROUTER)
