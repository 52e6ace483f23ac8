"""Reaches each limit of the HTTP server and checks the response and the counter."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http import connection
from gpuscope.serve.http import server as listening
from gpuscope.serve.http.connection_limits import (
    FREE_BYTES,
    MIN_RESERVED_FILES,
    MINUTE,
    ClientLog,
    ConnectionLimit,
    FairQueue,
    Network,
    RequestBodyBudget,
    fit_to_files,
)
from gpuscope.serve.http.messages import Request, Response, text
from gpuscope.serve.http.request_parser import MAX_READ_AHEAD, SLICE_BYTES, RequestParser
from gpuscope.serve.http.server import Server
from gpuscope.serve.login.access_rules import parse_networks
from tests.server.certificates import make_certificate
from tests.server.http.support import GET, LAST, ask, hello, response_to, with_server
from tests.waiting import wait_in_loop_for

QUICK = Limits(request_head_timeout=0.2, client_stall_timeout=0.2, request_body_timeout=0.4)
CHUNKED = b"POST /count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def reaches(limit: str) -> Iterator[None]:
    before = LIMITS_REACHED.counts()[limit]
    yield
    assert LIMITS_REACHED.counts()[limit] > before


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "EXPIRY_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.2)


# Bodies


@pytest.mark.parametrize("rubbish", [b"ZZZ\r\n", b"-1\r\n", b"5\r\nhello!!!", b"ffffffffffffffffff\r\n"])
@pytest.mark.parametrize("later", [True, False])
def test_a_malformed_chunk_is_refused_at_once(rubbish: bytes, later: bool) -> None:
    async def talk(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if later:
            writer.write(CHUNKED.replace(b"host", b"expect: 100-continue\r\nhost"))
            await reader.readuntil(b"100 Continue\r\n\r\n")  # the handler waits for the body now
            writer.write(rubbish)
        else:
            writer.write(CHUNKED + rubbish)
        answer = await reader.read()  # one response, then the server closes
        writer.close()
        return answer

    answer = with_server(talk)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"400"]


@pytest.mark.usefixtures("quick")
def test_a_body_sent_byte_by_byte_has_a_total_timeout() -> None:
    async def talk(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        response = asyncio.create_task(reader.read())
        for _ in range(100):  # each byte well within client_stall_timeout
            if response.done():
                break
            writer.write(b"b")
            await asyncio.sleep(0.02)
        writer.close()
        return await response

    with reaches("request_body_timeout"):
        assert with_server(talk, limits=QUICK).startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("quick")
def test_a_stalled_body_gets_408() -> None:
    with reaches("client_stall_timeout"):
        head = b"POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"
        assert response_to(head, eof=False, limits=QUICK).startswith(b"HTTP/1.1 408 ")


def test_bodies_share_a_budget_and_small_ones_are_not_counted() -> None:
    limits = Limits(max_request_bodies_bytes=4 * FREE_BYTES)

    async def talk(port: int) -> list[bytes]:
        size = 4 * FREE_BYTES
        head = b"POST /count HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        held_reader, held = await asyncio.open_connection("127.0.0.1", port)
        held.write(head % size + b"b" * (3 * FREE_BYTES))  # half of the budget, the free part left out
        await held.drain()
        await wait_in_loop_for(lambda: server_budget(port) >= 2 * FREE_BYTES)
        refused = await ask(port, head % size, b"b" * size, eof=False)
        small = await ask(port, head % 100, b"b" * 100, eof=False)
        held.write(b"b" * FREE_BYTES)  # one address may not hold more than half
        over = await held_reader.read()
        held.close()
        after = await ask(port, head % (2 * FREE_BYTES), b"b" * (2 * FREE_BYTES), eof=False)
        return [refused, small, over, after]

    servers: list[Server] = []

    def server_budget(port: int) -> int:
        return servers[0].budget.held

    async def run() -> list[bytes]:
        from tests.server.http.support import ROUTER

        servers.append(Server(ROUTER, limits=limits))
        port = await servers[0].start("127.0.0.1", 0)
        try:
            return await talk(port)
        finally:
            await servers[0].stop()

    with reaches("max_request_bodies_bytes"):
        refused, small, over, after = asyncio.run(run())
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in refused
    assert small.startswith(b"HTTP/1.1 200 ")
    assert over.startswith(b"HTTP/1.1 503 ")
    assert after.startswith(b"HTTP/1.1 200 "), "what was held is given back"
    assert servers[0].budget == RequestBodyBudget(limits.max_request_bodies_bytes)


def test_a_trusted_proxy_may_hold_the_whole_budget() -> None:
    budget = RequestBodyBudget(100)
    assert budget.take("", 100)
    assert not budget.take("10.0.0.1", 1)
    budget.release("", 100)
    assert budget.take("10.0.0.1", 50)
    assert not budget.take("10.0.0.1", 1)
    assert budget.take("10.0.0.2", 50)


def test_trailers_are_dropped_and_limited() -> None:
    seen: list[Request] = []

    async def keep(request: Request) -> Response:
        await request.body.read(100)
        seen.append(request)
        return text("ok")

    trailer = b"0\r\nx-forwarded-user: root\r\n\r\n"
    assert response_to(CHUNKED + trailer, handler=keep).startswith(b"HTTP/1.1 200 ")
    assert seen[0].header("x-forwarded-user") == ""
    endless = CHUNKED + b"0\r\nx: " + b"y" * (2 * Limits().max_request_head_bytes)
    assert response_to(endless, handler=keep, eof=False).startswith(b"HTTP/1.1 431 ")


# Heads


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_the_head_limit_holds_for_a_single_read(size: int) -> None:
    limits = Limits(max_request_head_bytes=size)
    head = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n"
    assert response_to(head % (b"y" * (size - 200)), limits=limits).startswith(b"HTTP/1.1 200 ")
    with reaches("max_request_head_bytes"):
        assert response_to(head % (b"y" * size), eof=False, limits=limits).startswith(b"HTTP/1.1 431 ")
    assert re.findall(rb"1.1 (\d+) ", response_to(GET + head % (b"y" * size), eof=False, limits=limits)) == [
        b"200",
        b"431",
    ]


def test_pipelined_requests_are_parsed_in_small_numbers() -> None:
    reader = RequestParser("", False, lambda: None, Limits())
    many = b"GET / HTTP/1.1\r\n\r\n" * 10_000
    reader.feed(many)
    assert MAX_READ_AHEAD <= len(reader.parsed) <= MAX_READ_AHEAD + SLICE_BYTES // 18 + 1
    came = 0
    while reader.parsed or reader.unparsed:
        came += len(reader.parsed)
        reader.parsed.clear()
        reader.feed(b"")
    assert came == 10_000


@pytest.mark.usefixtures("quick")
def test_head_and_keep_alive_timeouts() -> None:
    with reaches("request_head_timeout"), contextlib.suppress(ConnectionResetError):
        assert response_to(b"GET / HT", eof=False, limits=QUICK) == b""
    with reaches("keep_alive_timeout"):
        limits = replace(QUICK, keep_alive_timeout=0.1)
        assert response_to(GET, eof=False, limits=limits).endswith(b"hello\n")


# Responses


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("streams", [True, False])
def test_a_response_received_too_slowly_is_aborted(streams: bool) -> None:
    size, piece = 1 << 26, b"x" * (1 << 17)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    async def much(request: Request) -> Response:
        return Response(pieces=pieces()) if streams else Response(b"x" * size)

    async def talk(port: int) -> int:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        raw.setblocking(False)
        loop, taken = asyncio.get_running_loop(), 0
        await loop.sock_connect(raw, ("127.0.0.1", port))
        await loop.sock_sendall(raw, LAST)
        with contextlib.suppress(ConnectionError), raw:
            for _ in range(1000):
                got = await loop.sock_recv(raw, 1 << 14)
                if not got:
                    break
                taken += len(got)
                await asyncio.sleep(0.01)  # 1.6 MB/s
        return taken

    limits = Limits(client_stall_timeout=0.4, min_response_rate=100 << 20)
    with reaches("min_response_rate"):
        assert with_server(talk, much, limits=limits) < size


# Connections


async def _from(source: str, port: int, data: bytes = LAST) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        response = await reader.read()
    writer.close()
    return response


HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\na"


async def _hold(port: int, count: int, data: bytes) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    held = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(count)]
    for _, writer in held:
        writer.write(data)
        await writer.drain()
    return held


def test_idle_connections_of_an_address_are_evicted_for_its_new_ones() -> None:
    """A client that opens a connection per request and closes none must not block itself."""

    async def talk(port: int) -> bytes:
        held = await _hold(port, 3, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for reader, _ in held:
            await reader.readuntil(b"hello\n")
        response = await _from("127.0.0.2", port)
        for _, writer in held:
            writer.close()
        return response

    response = with_server(talk, limits=Limits(max_connections_per_address=3))
    assert response.startswith(b"HTTP/1.1 200 ")


def test_one_address_cannot_take_all_connections() -> None:
    waiting = []

    async def waits(request: Request) -> Response:
        if request.method == "POST":
            waiting.append(request)
            await request.body.read(10)
        return await hello(request)

    async def talk(port: int) -> list[bytes]:
        held = await _hold(port, 3, HALF_A_BODY)
        while len(waiting) < 3:
            await asyncio.sleep(0)
        responses = [await _from(source, port) for source in ("127.0.0.2", "127.0.0.3")]
        for _, writer in held:
            writer.close()
        return responses

    with reaches("max_connections_per_address"):
        same, other = with_server(talk, waits, limits=Limits(max_connections_per_address=3))
    assert same.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in same
    assert other.startswith(b"HTTP/1.1 200 ")


def test_a_trusted_proxy_is_exempt_and_its_clients_are_counted() -> None:
    proxies: tuple[Network, ...] = parse_networks(["10.0.0.0/8"], "--proxy-auth-from")
    admission = ConnectionLimit(Limits(max_connections_per_address=2), proxies)
    keys = [admission.enter("10.0.0.1") for _ in range(5)]
    assert keys == [""] * 5
    clients = ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2")
    with contextlib.ExitStack() as stack:
        may_ask = [stack.enter_context(admission.request_of(client)) for client in clients]
        assert may_ask == [True, True, False, True]
    for key in keys:
        admission.leave(str(key))
    assert (admission.total, admission.by_address) == (0, {})


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    admission = ConnectionLimit(Limits(max_connections_per_address=1))
    assert admission.enter("2001:db8::1") is not None
    assert admission.enter("2001:db8::2") is None
    assert admission.enter("2001:db8:0:1::2") is not None


def test_the_connection_limit_fits_the_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(files: int, listeners: int = 1) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
        return fit_to_files(Limits(), listeners).max_connections

    assert fitted(64) == 64 - MIN_RESERVED_FILES
    assert fitted(1024) == 512
    assert fitted(1024, 3) == 256
    assert fitted(8) == 1
    assert fitted(resource.RLIM_INFINITY) == 512


@pytest.mark.usefixtures("quick")
def test_tls_handshakes_are_counted_and_time_out(tmp_path: Path) -> None:
    context = make_certificate(tmp_path).server_context()
    limits = Limits(max_connections=3, tls_handshake_timeout=0.3)
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    async def secure(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname="localhost"
        )
        writer.write(LAST)
        response = await reader.read()
        writer.close()
        return response

    async def talk(port: int) -> bytes:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        held[-1][1].write(b"\x16\x03\x01\x02")  # the beginning of a handshake
        response = await secure(port)  # evicts the oldest
        for reader, writer in held:
            assert await reader.read() == b""  # the others time out
            writer.close()
        assert (await secure(port)).endswith(b"hello\n")
        return response

    with reaches("max_connections"), reaches("tls_handshake_timeout"):
        assert with_server(talk, hello, limits=limits, tls=context).endswith(b"hello\n")


def test_accepting_pauses_when_no_file_descriptor_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "PAUSE_SECONDS", 0.05)
    accepted: list[int] = []

    class NoFiles(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            accepted.append(1)
            if len(accepted) < 4:
                raise OSError(24, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", NoFiles)
    with caplog.at_level(logging.DEBUG, "gpuscope.http"):
        assert response_to(GET).endswith(b"hello\n")
    assert len(accepted) < 10, "it does not spin"
    lines = [record for record in caplog.records if "cannot accept" in record.message]
    assert len(lines) == 3
    assert not any(record.exc_info for record in caplog.records)


# Log lines


def test_client_log_lines_are_limited_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = ClientLog(logging.getLogger("gpuscope.http"), 3, lambda: now[0])
    with reaches("max_client_log_lines"):
        for _ in range(1000):
            log.warning("refused things", "one was refused")
    log.warning("other things", "another")
    now[0] += MINUTE
    log.summarise()
    log.summarise()
    log.warning("refused things", "one was refused")
    assert [record.message for record in caplog.records] == [
        *["one was refused"] * 3,
        "another",
        "refused things: 997 more in the last minute",
        "one was refused",
    ]


def test_a_handler_that_always_fails_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    responses = response_to(
        b"GET /broken HTTP/1.1\r\nhost: x\r\n\r\n" * 50, limits=Limits(max_client_log_lines=2)
    )
    assert responses.count(b"HTTP/1.1 500 ") == 50
    assert len(caplog.records) == 2


# Fair queue


def test_addresses_are_served_in_turn_when_the_loop_is_busy() -> None:
    order: list[str] = []

    class Client:
        def __init__(self, turns: FairQueue, key: str, requests: int) -> None:
            self.turns, self.limit_key, self.left = turns, key, requests

        def serve_one(self) -> None:
            order.append(self.limit_key)
            self.left -= 1
            if self.left:
                self.turns.join(self)

    async def run() -> None:
        turns = FairQueue(asyncio.get_running_loop())
        gone = Client(turns, "gone", 1)
        for client in (*(Client(turns, "crowd", 5) for _ in range(3)), Client(turns, "one", 3), gone):
            turns.join(client)
            turns.join(client)
        turns.leave(gone)
        assert turns.must_queue()
        while len(order) < 18:
            await asyncio.sleep(0)
        assert not turns.must_queue()

    asyncio.run(run())
    assert order == ["crowd", "one"] * 3 + ["crowd"] * 12
