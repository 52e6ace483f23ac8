"""Selects the handler for a request by path and method.

A path is exact, or contains `{name}` for one segment, or ends in `{name...}` for all remaining segments. Exact
paths match before patterns; among patterns the first match wins. Unmatched paths go to the fallback handler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuscope.serve.http.messages import Handler, Request, Response, text

READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    handler: Handler
    methods: Sequence[str] = READS


def not_allowed(methods: Iterable[str]) -> Response:
    """The 405 response for a path that accepts only these methods."""
    return text("Method Not Allowed", 405, (("allow", ", ".join(sorted(methods))),))


async def not_found(request: Request) -> Response:
    return text("404 page not found", 404)


class Router:
    """A handler that dispatches to routes, and to `fallback` for paths that no route matches."""

    def __init__(self, routes: Sequence[Route], fallback: Handler = not_found) -> None:
        self._fallback = fallback
        self._exact: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        for route in routes:
            if "{" in route.path:
                self._patterns.append((path_pattern(route.path), route))
                continue
            for method in route.methods:
                self._exact.setdefault((route.path, method), route.handler)

    async def __call__(self, request: Request) -> Response:
        handler = self._exact.get((request.path, request.method)) or self._by_pattern(request)
        return await handler(request)

    def _by_pattern(self, request: Request) -> Handler:
        for pattern, route in self._patterns:
            if request.method in route.methods and pattern.fullmatch(request.path):
                return route.handler
        methods = self._methods(request.path)
        if not methods:
            return self._fallback

        async def refuse(request: Request) -> Response:
            return not_allowed(methods)

        return refuse

    def _methods(self, path: str) -> set[str]:
        exact = {method for known, method in self._exact if known == path}
        return exact.union(*(route.methods for pattern, route in self._patterns if pattern.fullmatch(path)))


def path_pattern(path: str) -> re.Pattern[str]:
    segments = re.split(r"(\{\w+(?:\.\.\.)?\})", path)
    return re.compile("".join(map(_segment, segments)), re.DOTALL)


def _segment(text: str) -> str:
    if not text.startswith("{"):
        return re.escape(text)
    return ".*" if text.endswith("...}") else "[^/]+"
