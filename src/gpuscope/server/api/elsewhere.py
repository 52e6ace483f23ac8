"""What begins like the API but is no endpoint of it: another method, another path, or what is not served here.

Answered as Prometheus does; administration that is on has routes of its own. OPTIONS is answered, but never
with headers that would let another site's page read this server: whoever wants that puts a proxy in front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpuscope.server.api.answers import error_answer, plain_answer

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_ADMINISTRATION = re.compile(r"/api/v1/admin/tsdb/(delete_series|clean_tombstones|snapshot)")
_OTHERS: Mapping[str, Sequence[str]] = {"/api/v1/write": ("POST",)}


def elsewhere_routes(endpoints: Mapping[str, Sequence[str]]) -> list[Route]:
    """`endpoints` are the paths that are served, with their methods."""
    allowed = [(_pattern(path), methods) for path, methods in {**endpoints, **_OTHERS}.items()]

    async def answer(request: Request) -> Response:
        path, method = request.url.path, request.method
        if method == "OPTIONS":
            return Response(status_code=204)
        methods = next((found for pattern, found in allowed if pattern.fullmatch(path)), None)
        if methods is not None and method not in methods and (method, path) != ("DELETE", "/api/v1/series"):
            return plain_answer("Method Not Allowed", 405, {"allow": ", ".join(sorted([*methods, "OPTIONS"]))})
        if _ADMINISTRATION.fullmatch(path):
            return error_answer("unavailable", "admin APIs disabled")
        if path == "/api/v1/series":
            return error_answer("internal", "not implemented")
        return plain_answer("404 page not found", 404)

    return [Route(path, answer, methods=METHODS) for path in ("/api/v1/{rest:path}", "/federate")]


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
