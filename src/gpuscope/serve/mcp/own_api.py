"""Asks this server's own routes, within the process: the same handlers, limits and numbers as over HTTP.

A handler that refuses raises `NotAnswered` with its sentence. The answer of a route is bounded: it is read
whole before it is decoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gpuscope.base.errors import GpuscopeError
from gpuscope.serve.http.messages import Handler, Request, Response

MAX_ANSWER_BYTES: Final = 32 << 20
"""Of one route: the live picture of 8,000 GPUs has 8 MB."""

Ask = Callable[..., Awaitable[Any]]
"""`await ask("/api/report", by="user")` gives the decoded JSON. Parameters that are empty are left out."""


class NotAnswered(GpuscopeError):
    """The route refused; the text says why."""


def own_api(handler: Handler, asked_by: Request) -> Ask:
    """For the client that sent `asked_by`: routes see its identity."""

    async def ask(path: str, **parameters: str) -> Any:
        query = urlencode({name: value for name, value in parameters.items() if value})
        request = Request(
            "GET",
            path,
            query=query.encode(),
            raw_path=path.encode(),
            peer=asked_by.peer,
            secure=asked_by.secure,
            state=dict(asked_by.state),
        )
        response = await handler(request)
        body = await _whole_body(response)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise NotAnswered(_plain_text(body) or f"{path} gave no JSON (status {response.status})") from None
        if response.status >= 400:
            raise NotAnswered(_reason(answer) or f"{path} was refused with status {response.status}")
        return answer

    return ask


async def _whole_body(response: Response) -> bytes:
    if response.pieces is None:
        return response.body
    body = bytearray(response.body)
    try:
        async for piece in response.pieces:
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise NotAnswered(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB; ask for less")
    finally:
        if response.close is not None:
            await response.close()
    return bytes(body)


def _reason(answer: Any) -> str:
    return str(answer.get("error", "")) if isinstance(answer, Mapping) else ""


def _plain_text(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace").strip()
