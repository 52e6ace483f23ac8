"""A server in place of the services that channels send to: keeps each request, answers as the service does."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.local_server import serving_in_thread
from tests.server.certificates import make_certificate
from tests.waiting import PATIENCE_SECONDS

COMPARED_HEADERS = ("content-type", "authorization", "x-auth-token", "x-user-id", "accept-language")
_STATUS = {"name": "Open", "statusCategory": {"key": "new"}}
_ISSUE = {"key": "OPS-7", "fields": {"status": _STATUS}}
JIRA = {
    "search": {"issues": [_ISSUE]},
    "jql": {"issues": [_ISSUE]},
    "transitions": {"transitions": [{"id": "31", "name": "Done"}, {"id": "11", "name": "Reopen"}]},
}
_PUBLISHED = b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"
ANSWERS: dict[str, Callable[[str], object]] = {
    "rocketchat": lambda path: {"success": True},
    "jira": lambda path: JIRA.get(path.rpartition("/")[2], {}) if "/new/" not in path else {"issues": []},
    "sns": lambda path: _PUBLISHED,
    "wechat": lambda path: {"access_token": "to ken"} if path.endswith("gettoken") else {"errcode": 0},
}
"""What the service answers to a request for a path, if it is looked at."""


def _comparable(body: bytes) -> Any:
    """A JSON document without what Alertmanager has since 0.34, or the fields of a form in any order."""
    if body.startswith(b"{"):
        return {key: value for key, value in json.loads(body).items() if key != "routeLabels"}
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    entries: dict[str, str] = {}
    for name in [name for name in fields if name.startswith("MessageAttributes.entry.")]:
        place, _, part = name.removeprefix("MessageAttributes.entry.").partition(".")
        entries[place] = entries.get(place, "") + f"{part}={fields.pop(name)};"
    return {**dict(sorted(fields.items())), "attributes": sorted(entries.values())}


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    body: Any

    @property
    def key(self) -> str:
        return repr(self)


class KindSink:
    """An HTTP server, and a proxy that ends TLS itself, that keep every request."""

    def __init__(self, kind: str, certificate: ssl.SSLContext) -> None:
        self.requests: list[Received] = []
        self.groups: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.statuses: list[int] = []
        """Of the next answers, if they are not 200."""
        self.answer: Callable[[str], object] = ANSWERS.get(kind, lambda path: {})
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                self.send_response(200)
                self.end_headers()
                with certificate.wrap_socket(self.connection, server_side=True) as secure:
                    self.connection, self.rfile = secure, secure.makefile("rb")
                    self.wfile = secure.makefile("wb")
                    self.handle_one_request()
                self.close_connection = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = urlsplit(self.path)
                answer: object = {}
                with sink.changed:
                    if parts.path == "/webhook":
                        sink.groups.append(json.loads(body))
                    else:
                        answer = sink.answer(parts.path)
                        headers = {name.lower(): value for name, value in self.headers.items()}
                        sink.requests.append(
                            Received(
                                self.command,
                                parts.path,
                                tuple(parse_qsl(parts.query, keep_blank_values=True)),
                                tuple(
                                    (name, headers[name].partition("/20")[0])  # a signature has the time
                                    for name in COMPARED_HEADERS
                                    if name in headers
                                ),
                                _comparable(body) if body else None,
                            )
                        )
                    sink.changed.notify_all()
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(sink.statuses.pop(0) if sink.statuses else 200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

            do_PUT = do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait_for_group(self, count: int) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.groups) >= count, PATIENCE_SECONDS)
            return self.groups[count - 1]

    def taken(self, expected: int) -> list[Received]:
        """The requests since the last call, in an order that does not depend on threads."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= expected, PATIENCE_SECONDS), (
                self.requests
            )
            taken, self.requests = self.requests, []
        return sorted(taken, key=lambda request: request.key)


@contextmanager
def running_kind_sink(kind: str, tmp_path: Path) -> Iterator[KindSink]:
    sink = KindSink(kind, make_certificate(tmp_path).server_context())
    with sink.server, serving_in_thread(sink.server):
        yield sink
