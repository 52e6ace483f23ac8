"""HTTP servers on loopback for tests: one handler class in, the port out.

The server runs in a thread while the context is open. It prints nothing about clients that disconnect: they are
a part of many tests.
"""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Prints nothing."""

    def answer(self, body: bytes = b"", content_type: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))


class _LocalServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the default of 5, connections at the same moment wait a second

    def handle_error(self, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def serving_http(
    handler: type[BaseHTTPRequestHandler], *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Yields the port."""
    with _LocalServer((host, 0), handler) as server:
        if tls is not None:
            # The handshake belongs to the connection's thread: a client that ends it must not end the server.
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with serving_in_thread(server):
            yield server.server_port


@contextmanager
def serving_in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
