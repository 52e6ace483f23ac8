"""Targets for tests: an HTTP server on loopback whose pages are functions, valid or hostile."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


def endless(piece: bytes, stop: threading.Event, pause: float = 0.0) -> Page:
    """Sends until the client disconnects or the test ends."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        request.end_headers()
        request.close_connection = True
        with contextlib.suppress(OSError):
            while not stop.wait(pause):
                request.wfile.write(piece)
                request.wfile.flush()

    return answer


@contextlib.contextmanager
def serving(pages: Mapping[str, Page], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address `127.0.0.1:PORT` of a server with these pages; `pages` may change while it runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            (page or status(404))(self)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            """Ignores clients that disconnect, which is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        # The handshake belongs to the connection's thread: a client that breaks it off must not end the server.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
