"""An HTTP server that accepts alerts as an Alertmanager does and keeps them for a test to look at."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            sink.requests.append((self.path, self.headers["content-type"], body))
            self.send_response(sink.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink.url = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
