"""Refusals as HTTP answers, in the JSON shape of Prometheus' errors."""

from __future__ import annotations

import math

import orjson
from starlette.responses import Response

from gpuscope.server.login.doorkeeper import Refusal


def refuse(refusal: Refusal, *, setup: bool = False) -> Response:
    body: dict[str, object] = {"status": "error", "errorType": refusal.kind, "error": refusal.sentence}
    headers = {"cache-control": "no-store"}
    if refusal.status == 401:
        body |= {"login": True, "setup": setup}
        # Bearer, although passwords are taken too: a Basic challenge would open the browser's own dialog.
        headers["www-authenticate"] = 'Bearer realm="gpuscope"'
    if refusal.wait_seconds:
        headers["retry-after"] = str(math.ceil(refusal.wait_seconds))
    return to_json(body, refusal.status, headers)


def to_json(body: dict[str, object], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(body), status, {"cache-control": "no-store", **(headers or {})}, "application/json"
    )
