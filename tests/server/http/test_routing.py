from __future__ import annotations

import asyncio

import pytest

from gpuscope.serve.http.messages import Request, Response, Route, Router, text


def saying(words: str) -> Route:
    path, _, methods = words.partition(" ")

    async def response(request: Request) -> Response:
        return text(words)

    return Route(path, response, tuple(methods.split(",")))


ROUTER = Router(
    [
        saying("/a GET"),
        saying("/a POST"),
        saying("/label/{name}/values GET"),
        saying("/api/{rest...} DELETE,PUT"),
        saying("/api/b GET"),
    ]
)


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ("GET /a", "/a GET"),
        ("POST /a", "/a POST"),
        ("GET /label/x.y/values", "/label/{name}/values GET"),
        ("GET /label/x\n/values", "/label/{name}/values GET"),
        ("PUT /api/", "/api/{rest...} DELETE,PUT"),
        ("PUT /api/b/c", "/api/{rest...} DELETE,PUT"),
        ("GET /api/b", "/api/b GET"),
        ("DELETE /api/b", "/api/{rest...} DELETE,PUT"),
        ("PUT /a", "405 GET, POST"),
        ("PATCH /api/b", "405 DELETE, GET, PUT"),
        ("POST /label/x/values", "405 GET"),
        ("GET /label/x/y/values", "404"),
        ("GET /label//values", "404"),
        ("GET /label/{name}/values", "/label/{name}/values GET"),
        ("GET /a/", "404"),
        ("GET /", "404"),
    ],
)
def test_the_matching_route_handles_the_request(request_line: str, expected: str) -> None:
    method, _, path = request_line.partition(" ")
    response = asyncio.run(ROUTER(Request(method, path)))
    outcome = response.body.decode().rstrip("\n") if response.status == 200 else str(response.status)
    allowed = "".join(f" {value}" for name, value in response.headers if name == "allow")
    assert outcome + allowed == expected


def test_unmatched_paths_go_to_the_fallback() -> None:
    async def otherwise(request: Request) -> Response:
        return text(f"what is {request.path}?")

    router = Router([saying("/a GET")], otherwise)
    assert asyncio.run(router(Request("POST", "/b"))).body == b"what is /b?\n"
    assert asyncio.run(router(Request("POST", "/a"))).status == 405
