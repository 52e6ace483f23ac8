"""Requests below /api/v1 that no endpoint handles: another method, an unknown path, a disabled endpoint.

The answers are Prometheus'. OPTIONS is answered, but without CORS headers: pages of other sites must not read
this server. To allow that, put a proxy in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.serve.api.responses import error_answer
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.http.routing import Route, not_allowed, not_found, path_pattern

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_ADMIN_PATHS = tuple(f"/api/v1/admin/tsdb/{name}" for name in ("delete_series", "clean_tombstones", "snapshot"))
_OTHER_ENDPOINTS: Mapping[str, Sequence[str]] = {"/api/v1/write": ("POST",)}


def fallback_routes_for(endpoints: Mapping[str, Sequence[str]]) -> list[Route]:
    """`endpoints`: the served paths with their methods."""
    allowed = [(path_pattern(path), methods) for path, methods in {**endpoints, **_OTHER_ENDPOINTS}.items()]

    async def answer(request: Request) -> Response:
        path, method = request.path, request.method
        if method == "OPTIONS":
            return Response(status=204)
        methods = next((found for pattern, found in allowed if pattern.fullmatch(path)), None)
        if methods is not None and method not in methods and (method, path) != ("DELETE", "/api/v1/series"):
            return not_allowed([*methods, "OPTIONS"])
        if path in _ADMIN_PATHS:
            return error_answer("unavailable", "admin APIs disabled")
        if path == "/api/v1/series":
            return error_answer("internal", "not implemented")
        return await not_found(request)

    return [Route(path, answer, methods=METHODS) for path in ("/api/v1/{rest...}", "/federate")]
