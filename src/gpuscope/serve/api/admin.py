"""Endpoints that change the history, as Prometheus' with `--web.enable-admin-api`; only with `--admin-api`.

A deletion is complete when it is answered: there are no tombstones, `clean_tombstones` only compacts the file.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

from gpuscope.history.promql import BadQueryError
from gpuscope.serve.api.go_values import parse_bool
from gpuscope.serve.api.parameters import ApiError, Parameters, bad
from gpuscope.serve.api.responses import data_answer
from gpuscope.serve.http.messages import Request, Response

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

SNAPSHOTS = "snapshots"
"""The subfolder of the data folder for snapshots."""


async def delete_series(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    parameters.well_formed()
    if not parameters.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    start, end = parameters.span_ms()

    def work(cancelled: threading.Event) -> None:
        try:
            selectors = parameters.parsed_selectors()  # all of them before anything is deleted
        except BadQueryError as error:
            raise bad("match[]", error) from None
        for matchers in selectors:
            api.store.delete_series(matchers, start, end)

    await api.evaluate(request, work)
    return Response(status=204)


async def clean_tombstones(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    await api.evaluate(request, lambda cancelled: api.store.compact())
    return Response(status=204)


async def snapshot(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    text = parameters.get("skip_head")
    try:
        _ = (
            parse_bool(text) if text else False
        )  # the newest samples are in the same file: they are always included
    except ValueError:
        raise bad("skip_head", f"unable to parse boolean {text!r}") from None
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(8)}"

    await api.evaluate(request, lambda cancelled: api.store.backup(api.store.folder / SNAPSHOTS / name))
    return data_answer({"name": name})
