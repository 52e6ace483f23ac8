"""An HTTP server that accepts alerts as an Alertmanager does and keeps them for a test to look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.local_server import QuietHandler, serving_http


@dataclass
class AlertmanagerSink:
    url: str = ""
    status: int = 200
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Path, content type and body of each POST."""

    def alerts(self) -> list[dict[str, Any]]:
        return [alert for _, _, body in list(self.requests) for alert in json.loads(body)]


@contextmanager
def alertmanager_sink(status: int = 200) -> Iterator[AlertmanagerSink]:
    sink = AlertmanagerSink(status=status)

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sink.requests.append((self.path, self.headers["content-type"], self.read_body()))
            self.answer(status=sink.status)

    with serving_http(Handler) as port:
        sink.url = f"127.0.0.1:{port}"
        yield sink
