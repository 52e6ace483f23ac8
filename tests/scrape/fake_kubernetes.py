"""A small Kubernetes API server for discovery: lists in pages, watches, and fails when told to.

Objects are JSON as the real API server writes it. `put` and `remove` reach open watches at once.
"""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.scrape.exporters import Page, serving

RESOURCES = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "nodes": "/api/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
}
KINDS = {"pods": "Pod", "services": "Service", "nodes": "Node", "endpointslices": "EndpointSlice"}
Json = dict[str, Any]


@dataclass
class FakeKubernetes:
    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {name: {} for name in RESOURCES})
    version: int = 1
    status: int = 200
    """Of every answer; anything but 200 fails."""
    fails: dict[str, int] = field(default_factory=dict)
    """Status by resource, with precedence."""
    watches: list[tuple[str, queue.Queue[bytes | None]]] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    """Resource, namespace, query and Authorization header."""
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, resource: str, value: Json) -> None:
        key = _key(value)
        with self.lock:
            self.version += 1
            value["metadata"]["resourceVersion"] = str(self.version)
            event = "MODIFIED" if key in self.objects[resource] else "ADDED"
            self.objects[resource][key] = value
        self.send(resource, event, value)

    def remove(self, resource: str, key: str) -> None:
        with self.lock:
            self.version += 1
            value = self.objects[resource].pop(key)
            value["metadata"]["resourceVersion"] = str(self.version)
        self.send(resource, "DELETED", value)

    def send(self, resource: str, event: str, value: Json) -> None:
        api = RESOURCES[resource].removeprefix("/apis/").removeprefix("/api/")
        full = {"kind": KINDS[resource], "apiVersion": api, **value}
        self.send_line(resource, json.dumps({"type": event, "object": full}).encode())

    def send_line(self, resource: str, line: bytes) -> None:
        with self.lock:
            for watched, events in self.watches:
                if watched == resource:
                    events.put(line + b"\n")

    def end_watches(self) -> None:
        with self.lock:
            for _, events in self.watches:
                events.put(None)
            self.watches.clear()

    def answer(self, request: BaseHTTPRequestHandler, resource: str, namespace: str) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        self.requests.append((resource, namespace, query, request.headers.get("Authorization", "")))
        status = self.fails.get(resource, self.status)
        if status != 200:
            request.send_response(status)
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif "sendInitialEvents" in query:
            _refuse_streaming_list(request)
        elif query.get("watch") in ("true", "1"):
            self._watch(request, resource)
        else:
            self._list(request, resource, namespace, query)

    def _list(
        self, request: BaseHTTPRequestHandler, resource: str, namespace: str, query: dict[str, str]
    ) -> None:
        with self.lock:
            found = [
                value
                for key, value in sorted(self.objects[resource].items())
                if not namespace or key.startswith(f"{namespace}/")
            ]
            start, limit = int(query.get("continue", "0")), int(query.get("limit", "100000"))
            metadata: Json = {"resourceVersion": str(self.version)}
            if start + limit < len(found):
                metadata["continue"] = str(start + limit)
            page = found[start : start + limit]
        api = RESOURCES[resource].removeprefix("/apis/").removeprefix("/api/")
        document = {"kind": f"{KINDS[resource]}List", "apiVersion": api, "metadata": metadata, "items": page}
        body = json.dumps(document).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _watch(self, request: BaseHTTPRequestHandler, resource: str) -> None:
        events: queue.Queue[bytes | None] = queue.Queue()
        with self.lock:
            self.watches.append((resource, events))
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.flush()
            while (event := events.get()) is not None:
                request.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                request.wfile.flush()
            request.wfile.write(b"0\r\n\r\n")


def _refuse_streaming_list(request: BaseHTTPRequestHandler) -> None:
    """As an API server without this feature: newer clients then list as older ones do."""
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}
    body = json.dumps(document).encode()
    request.send_response(422)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _key(value: Json) -> str:
    metadata = value["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]


@contextlib.contextmanager
def serving_kubernetes(tls: ssl.SSLContext | None = None) -> Iterator[FakeKubernetes]:
    server = FakeKubernetes()
    pages: dict[str, Page] = {}
    for resource, api in RESOURCES.items():
        for namespace in ("", "default", "ml", "monitoring"):
            within = f"/namespaces/{namespace}" if namespace else ""

            def page(request: BaseHTTPRequestHandler, name: str = resource, inside: str = namespace) -> None:
                server.answer(request, name, inside)

            pages[f"{api}{within}/{resource}"] = page
    with serving(pages, tls) as address:
        server.address = address
        try:
            yield server
        finally:
            server.end_watches()
