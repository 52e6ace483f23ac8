"""An HTTP server that gives fixed answers, for what a real server does not do on request."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.local_server import QuietHandler, serving_http


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

    class Handler(QuietHandler):
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

    with serving_http(Handler) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake
