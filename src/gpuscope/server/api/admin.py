"""Endpoints that change the history, as Prometheus' with `--web.enable-admin-api`; only where they are wanted.

A deletion is done when it is answered: there are no tombstones to clean, only room in the file to give back.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

from gpuscope.promql import BadQueryError
from gpuscope.server.api.go_values import parse_bool
from gpuscope.server.api.parameters import ApiError, Parameters, bad
from gpuscope.server.api.responses import data_answer
from gpuscope.server.http.messages import Request, Response

if TYPE_CHECKING:
    from gpuscope.server.api.embedded import EmbeddedApi

SNAPSHOTS = "snapshots"
"""The folder for copies, in the data folder, each in a folder of its own."""


async def delete_series(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    asked.well_formed()
    if not asked.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    start, end = asked.span_ms()

    def work(cancelled: threading.Event) -> None:
        try:
            selectors = asked.parsed_selectors()  # all of them before anything goes
        except BadQueryError as error:
            raise bad("match[]", error) from None
        for matchers in selectors:
            api.store.delete_series(matchers, start, end)

    await api.evaluate(request, work)
    return Response(status=204)


async def clean_tombstones(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    await api.evaluate(request, lambda cancelled: api.store.compact())
    return Response(status=204)


async def snapshot(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    text = asked.get("skip_head")
    try:
        _ = parse_bool(text) if text else False  # the newest samples are in the same file: they always come
    except ValueError:
        raise bad("skip_head", f"unable to parse boolean {text!r}") from None
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(8)}"

    await api.evaluate(request, lambda cancelled: api.store.backup(api.store.folder / SNAPSHOTS / name))
    return data_answer({"name": name})
