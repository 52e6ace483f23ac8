"""One request to an engine from code without an event loop: the commands of the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gpuscope.base.http_config import HttpConfig, split_credentials
from gpuscope.history.engines.http_connection import EngineConnection, Form

T = TypeVar("T")


def connect(url: str, *, origin: str, token: str = "") -> EngineConnection:
    """For a command: a URL may hold `user:password@`; UsageError, naming `origin`, if it is not a URL. The
    environment's proxies are used, as by other command-line clients."""
    http = HttpConfig()
    if token:
        http = http.with_headers(("authorization", f"Bearer {token}"))
    address, http = split_credentials(url, http, origin)
    return EngineConnection(
        address.partition("?")[0].rstrip("/"),
        http,
        credentials_hint="give an API token in GPUSCOPE_TOKEN, or http://user:password@… as the address",
        use_environment_proxies=True,
    )


def run_with(connection: EngineConnection, call: Callable[[EngineConnection], Awaitable[T]]) -> T:
    """Runs `call` in an event loop of its own and closes the connection."""

    async def run() -> T:
        try:
            return await call(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def post_form(connection: EngineConnection, endpoint: str, form: Form) -> dict[str, Any]:
    """Prometheus' JSON answer; EngineError if there is none."""
    return run_with(connection, lambda opened: opened.post_form(endpoint, form))


def request_json(connection: EngineConnection, method: str, path: str, body: Any = None) -> Any:
    """The decoded answer of a route that is not Prometheus' API; EngineError if there is none."""
    return run_with(connection, lambda opened: opened.request_json(method, path, body))
