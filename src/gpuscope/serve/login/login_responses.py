"""Renders refusals as HTTP responses, in the JSON format of Prometheus' errors."""

from __future__ import annotations

import math

import orjson

from gpuscope.serve.api_types.session_json import ErrorAnswer, LoginAnswer, LogoutAnswer, SessionAnswer
from gpuscope.serve.http.messages import Header, Response
from gpuscope.serve.login.password_checks import Refusal


def refusal_response(refusal: Refusal, *, setup: bool = False) -> Response:
    body: ErrorAnswer = {"status": "error", "errorType": refusal.kind, "error": refusal.sentence}
    headers: list[Header] = []
    if refusal.status == 401:
        body["login"], body["setup"] = True, setup
        # Bearer, although basic auth works too: a Basic challenge would open the browser's own dialog.
        headers.append(("www-authenticate", 'Bearer realm="gpuscope"'))
    if refusal.wait_seconds:
        headers.append(("retry-after", str(math.ceil(refusal.wait_seconds))))
    return json_response(body, refusal.status, tuple(headers))


LoginJson = ErrorAnswer | SessionAnswer | LoginAnswer | LogoutAnswer


def json_response(body: LoginJson, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    return Response(orjson.dumps(body), status, "application/json", (("cache-control", "no-store"), *headers))
