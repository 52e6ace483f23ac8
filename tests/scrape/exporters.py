"""Targets for tests: an HTTP server on loopback whose pages are functions, valid or hostile."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler

from tests.local_server import QuietHandler, serving_http

Page = Callable[[BaseHTTPRequestHandler], None]


def text(body: str | bytes, content_type: str = "text/plain; version=0.0.4", **headers: str) -> Page:
    data = body.encode() if isinstance(body, str) else body

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(data)

    return answer


def status(code: int, **headers: str) -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def endless(piece: bytes, stop: threading.Event, pause: float = 0.0, content_type: str = "text/plain") -> Page:
    """Sends until the client disconnects or the test ends."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", content_type)
        request.end_headers()
        request.close_connection = True
        with contextlib.suppress(OSError):
            while not stop.wait(pause):
                request.wfile.write(piece)
                request.wfile.flush()

    return answer


def silent(stop: threading.Event) -> Page:
    """Answers nothing."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        stop.wait(30)

    return answer


@contextlib.contextmanager
def serving(pages: Mapping[str, Page], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address `127.0.0.1:PORT` of a server with these pages; `pages` may change while it runs."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            (page or status(404))(self)

        do_POST = do_GET

    with serving_http(Handler, tls=tls) as port:
        yield f"127.0.0.1:{port}"
