"""Feeds bytes to `RequestParser`, cut into reads at positions the input chooses.

Checked: the result is requests or MalformedRequest; the requests do not depend on the cuts; memory is bounded;
complete bodies lose no byte; header names and values contain no line break.
"""

from __future__ import annotations

from gpuscope.base.limits import Limits
from gpuscope.serve.http.connection_limits import RequestBodyBudget
from gpuscope.serve.http.messages import Request
from gpuscope.serve.http.request_parser import MAX_READ_AHEAD, SLICE_BYTES, MalformedRequest, RequestParser
from gpuscope.serve.login.access_rules import (
    HostRule,
    cross_site_error,
    host_error,
    parse_networks,
    read_client_request,
)

LIMITS = Limits(max_request_head_bytes=256, max_request_bodies_bytes=512)
PROXIES = parse_networks(["10.0.0.0/8"], "")
HOSTS = HostRule.build("127.0.0.1", ["*.example"])

SEEDS = (
    b"\x00GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\x10GET /a%20b?c=d#e HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4, ::1\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    b"\x20POST /api/v1/write HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n",
    b"\x03POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
    b"\x07GET http://h:1/p?q HTTP/1.1\r\nhost: a.example:80\r\norigin: http://a.example\r\n\r\n",
    b"\x01GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-fetch-site: cross-site\r\n\r\n",
    b"\x40PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
TOKENS = (
    b"GET ", b"POST ", b" HTTP/1.1\r\n", b"\r\n\r\n", b"content-length: ", b"transfer-encoding: chunked\r\n",
    b"0\r\n\r\n", b"ffff\r\n", b"connection: close\r\n", b"host: ", b"%00", b"\x00", b"\r", b"\n", b" : ",
    b"x-forwarded-for: 10.0.0.1", b"x-forwarded-host: ", b"origin: ", b"[::1]:80", b"expect: 100-continue\r\n",
)  # fmt: skip

Seen = list[tuple[str, str, tuple[tuple[str, str], ...], bytes, bool]]


def _requests(reads: list[bytes]) -> tuple[Seen, int | None]:
    """What was understood, and the status of the refusal that ended it, if one did."""
    budget = RequestBodyBudget(LIMITS.max_request_bodies_bytes)
    reader = RequestParser("10.0.0.1", False, lambda: None, LIMITS, budget, "10.0.0.1")
    found: list[Request] = []
    status: int | None = None
    for data in reads:
        try:
            goes_on = reader.feed(data)
            while goes_on:
                assert len(reader.parsed) <= MAX_READ_AHEAD + SLICE_BYTES
                found += [request for request, _ in reader.parsed]
                reader.parsed.clear()
                if not reader.unparsed:
                    break
                goes_on = reader.feed(b"")
        except MalformedRequest as error:
            status, goes_on = error.status, False
        if not goes_on:
            break
    found += [request for request, _ in reader.parsed]
    assert status in (None, 400, 431, 501)
    assert budget.held <= LIMITS.max_request_bodies_bytes
    seen = [_described(request) for request in found]
    for request in found:
        request.body.release()
    assert budget == RequestBodyBudget(LIMITS.max_request_bodies_bytes), "all of it was given back"
    return seen, status


def _complete_body(request: Request) -> bytes:
    """Read without an event loop: a body that is complete is given at once."""
    try:
        request.body.read(request.body.size).send(None)
    except StopIteration as done:
        return bytes(done.value)
    raise AssertionError("it waits for more of a complete body")


def _described(request: Request) -> tuple[str, str, tuple[tuple[str, str], ...], bytes, bool]:
    headers = tuple(request.headers)
    assert not any(c in name + value for name, value in headers for c in "\r\n\0")
    assert sum(len(name) + len(value) for name, value in headers) <= LIMITS.max_request_head_bytes
    client_request = read_client_request(request, PROXIES)
    host_error(HOSTS, client_request), cross_site_error(client_request)
    body = _complete_body(request) if request.body.is_complete else b""
    return request.method, request.path, headers, body, request.body.is_complete


def run(data: bytes) -> None:
    cut, data = (data[0] + 1, data[1:]) if data else (1, b"")
    in_pieces, ended = _requests([data[begin : begin + cut] for begin in range(0, len(data), cut)])
    at_once, ended_at_once = _requests([data])
    if 431 not in (ended, ended_at_once):  # the size of a head is checked per read
        assert in_pieces == at_once, (in_pieces, at_once)
        assert ended == ended_at_once
