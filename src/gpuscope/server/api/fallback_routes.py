"""What begins like the API but is no endpoint of it: another method, another path, or what is not served here.

Answered as Prometheus does; administration that is on has routes of its own. OPTIONS is answered, but never
with headers that would let another site's page read this server: whoever wants that puts a proxy in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.server.api.responses import error_answer
from gpuscope.server.http.messages import Request, Response
from gpuscope.server.http.routing import Route, not_allowed, not_found, path_pattern

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_ADMINISTRATION = tuple(
    f"/api/v1/admin/tsdb/{name}" for name in ("delete_series", "clean_tombstones", "snapshot")
)
_OTHERS: Mapping[str, Sequence[str]] = {"/api/v1/write": ("POST",)}


def elsewhere_routes(endpoints: Mapping[str, Sequence[str]]) -> list[Route]:
    """`endpoints` are the paths that are served, with their methods."""
    allowed = [(path_pattern(path), methods) for path, methods in {**endpoints, **_OTHERS}.items()]

    async def answer(request: Request) -> Response:
        path, method = request.path, request.method
        if method == "OPTIONS":
            return Response(status=204)
        methods = next((found for pattern, found in allowed if pattern.fullmatch(path)), None)
        if methods is not None and method not in methods and (method, path) != ("DELETE", "/api/v1/series"):
            return not_allowed([*methods, "OPTIONS"])
        if path in _ADMINISTRATION:
            return error_answer("unavailable", "admin APIs disabled")
        if path == "/api/v1/series":
            return error_answer("internal", "not implemented")
        return await not_found(request)

    return [Route(path, answer, methods=METHODS) for path in ("/api/v1/{rest...}", "/federate")]
