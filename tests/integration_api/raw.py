"""Requests as bytes on a socket: any method, path, header and body, as no client library would let them out."""

from __future__ import annotations

import gzip
import http.client
import json
import zlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

FORM = "application/x-www-form-urlencoded"
TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    target: str  # path and query, already escaped
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        body = f" {self.body[:80]!r}" if self.body is not None else ""
        headers = f" {self.headers}" if self.headers else ""
        return f"{self.method} {self.target[:160]}{body}{headers}"


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def content(self) -> bytes:
        """Unpacked."""
        match self.headers.get("content-encoding", ""):
            case "gzip":
                return gzip.decompress(self.body)
            case "deflate":
                return zlib.decompress(self.body)
            case _:
                return self.body

    def json(self) -> Any:
        return json.loads(self.content)


def get(path: str, parameters: Any = (), **headers: str) -> Asked:
    return Asked("GET", _target(path, parameters), headers=_headers(headers))


def post(path: str, parameters: Any = (), kind: str = FORM, **headers: str) -> Asked:
    body = parameters if isinstance(parameters, bytes) else urlencode(parameters, doseq=True).encode()
    return Asked("POST", path, body, {"content-type": kind, **_headers(headers)})


def _headers(given: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in given.items()}


def _target(path: str, parameters: Any) -> str:
    if isinstance(parameters, str):
        return f"{path}?{parameters}"
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def send(url: str, asked: Asked) -> Answered:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.putrequest(asked.method, asked.target, skip_accept_encoding=True)
        for name, value in asked.headers.items():
            connection.putheader(name, value)
        chunked = asked.headers.get("transfer-encoding") == "chunked"
        if asked.body is not None and not chunked:
            connection.putheader("content-length", str(len(asked.body)))
        connection.endheaders(asked.body, encode_chunked=chunked)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, headers, answer.read())
    finally:
        connection.close()
