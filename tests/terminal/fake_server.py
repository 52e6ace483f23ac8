"""An HTTP server that gives fixed answers, for what a real server does not do on request."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    document: Any
    status: int = 200

    @property
    def body(self) -> bytes:
        return self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()


@dataclass
class FakeServer:
    answers: dict[str, Answer]
    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def fake_server(answers: dict[str, Answer]) -> Iterator[FakeServer]:
    """`answers` by path, without the query string; it may be changed while the server runs."""
    fake = FakeServer(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
            answer = fake.answers.get(self.path.partition("?")[0], Answer({"error": "not found"}, 404))
            body = gzip.compress(answer.body)
            self.send_response(answer.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        fake.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
