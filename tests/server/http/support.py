"""The HTTP server over real sockets, for tests that send raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from gpuscope.serve.http.messages import (
    BodyTooLarge,
    ClientDisconnected,
    Handler,
    Request,
    Response,
    Route,
    Router,
    text,
)
from gpuscope.serve.http.server import Server

T = TypeVar("T")

MAX_COUNTED = 1 << 20


async def hello(request: Request) -> Response:
    return text("hello")


async def broken(request: Request) -> Response:
    raise ZeroDivisionError


async def echo(request: Request) -> Response:
    return Response(request.header("x-word").encode())


async def slow_echo(request: Request) -> Response:
    await asyncio.sleep(0)
    return await echo(request)


async def count(request: Request) -> Response:
    """Responds with the length of the body."""
    try:
        return text(str(len(await request.body.read(MAX_COUNTED))))
    except BodyTooLarge:
        return text("too large", 413)
    except ClientDisconnected:
        return text("broken off", 400)


ROUTER = Router(
    [
        Route("/", hello),
        Route("/broken", broken),
        Route("/echo", echo),
        Route("/slow", slow_echo),
        Route("/count", count, ("POST",)),
    ]
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def with_server(talk: Callable[[int], Awaitable[T]], handler: Handler = ROUTER, **options: Any) -> T:
    """Starts a server and returns the result of `talk(port)`."""

    async def run() -> T:
        server = Server(handler, **options)
        port = await server.start("127.0.0.1", 0)
        try:
            return await talk(port)
        finally:
            await server.stop()

    return asyncio.run(run())


async def ask(port: int, *parts: bytes, eof: bool = True) -> bytes:
    """Returns everything the server sends until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if eof:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def response_to(*parts: bytes, handler: Handler = ROUTER, eof: bool = True, **options: Any) -> bytes:
    return with_server(lambda port: ask(port, *parts, eof=eof), handler, **options)


@contextlib.contextmanager
def serving(handler: Handler) -> Iterator[int]:
    """Runs a server in a thread and yields its port."""
    server = Server(handler)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result()
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
