"""An httpx client that calls a handler without a socket, from any address, over either scheme."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx2

from gpuscope.serve.http.eager_task import run_eagerly
from gpuscope.serve.http.messages import Handler, Request, RequestBody, Response, has_body

T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop in a thread, shared by all clients."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the handlers' loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


async def _run_eagerly(work: Coroutine[Any, Any, T]) -> T:
    """Runs as a connection runs a handler: code that needs a task before it first waits fails here too."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    async def keep() -> None:
        try:
            found.set_result(await work)
        except Exception as error:
            found.set_exception(error)

    loop.call_soon(run_eagerly, keep(), loop)
    return await found


class HandlerTransport(httpx2.BaseTransport):
    def __init__(self, handler: Handler, peer: str) -> None:
        self._handler = handler
        self._peer = peer

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        raw_path, _, query = request.url.raw_path.partition(b"?")
        body = RequestBody()
        if content := request.read():
            body.add(content)
        body.end()
        handler_request = Request(
            request.method,
            httpx2.URL(request.url).path,
            [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.headers.raw],
            query,
            raw_path,
            self._peer,
            request.url.scheme == "https",
            body,
        )
        return run(_run_eagerly(self._answer(handler_request)))

    async def _answer(self, handler_request: Request) -> httpx2.Response:
        response = await self._handler(handler_request)
        content = b""
        if response.pieces is not None:
            content = b"".join([piece async for piece in response.pieces])
        elif handler_request.method != "HEAD" and has_body(response.status):
            content = response.body
        if response.close is not None:
            await response.close()
        return httpx2.Response(response.status, headers=_headers(response), content=content)


def _headers(response: Response) -> list[tuple[str, str]]:
    kind = [("content-type", response.content_type)] if has_body(response.status) else []
    return [*kind, *response.headers]


class Client(httpx2.Client):
    def __init__(
        self, handler: Handler, base_url: str = "http://testserver", peer: str = "127.0.0.1", **more: Any
    ) -> None:
        super().__init__(transport=HandlerTransport(handler, peer), base_url=base_url, **more)
