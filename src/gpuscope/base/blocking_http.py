"""A small blocking HTTP/1.1 client on sockets and h11, for threads of the agent and for one-shot checks.

One connection, kept between requests, over TCP, TLS or a Unix socket. A response is read whole, with a bound
on its size and total time. Every failure is an OSError. Code that runs in an agent uses this client, other code
httpx2, which takes 9 MiB (docs/decisions/0014).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11

from gpuscope import __version__

if TYPE_CHECKING:
    import ssl  # only its types: an agent that reads Unix sockets does not load OpenSSL

    from gpuscope.base.http_config import HttpConfig

Headers = Sequence[tuple[str, str]]
_END = h11.EndOfMessage()
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to connect: `unix_socket`, or `host` and `port`, with TLS if there is a context."""

    host: str = "localhost"
    port: int = 80
    unix_socket: str = ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """The name to check the certificate for; `host` if empty."""
    host_header: str = ""
    """`host` if empty."""


class BlockingHttp:
    """Not for several threads at once."""

    def __init__(
        self, address: HttpAddress, *, timeout_seconds: float, max_body_bytes: int, headers: Headers = ()
    ) -> None:
        self._address = address
        self._timeout = timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._headers = [("host", address.host_header or address.host), *headers]
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)

    def request(self, method: str, target: str, headers: Headers = (), body: bytes = b"") -> HttpResponse:
        was_kept = self._socket is not None
        try:
            return self._request(method, target, headers, body)
        except OSError:
            self.close()
            if not was_kept:
                raise
        # The server may have closed a kept connection while it was idle: that is not a failure yet.
        try:
            return self._request(method, target, headers, body)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def __enter__(self) -> BlockingHttp:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _request(self, method: str, target: str, headers: Headers, body: bytes) -> HttpResponse:
        deadline = time.monotonic() + self._timeout
        connection = self._connect()
        length = [("content-length", str(len(body)))] if body or method == "POST" else []
        try:
            request = h11.Request(method=method, target=target, headers=[*self._headers, *headers, *length])
            parts = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(_END)]
            connection.settimeout(_left(deadline))
            connection.sendall(b"".join(part or b"" for part in parts))
            response = self._read(connection, deadline)
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
            else:
                self.close()
            return response
        except h11.ProtocolError as error:
            raise OSError(f"not an HTTP response: {error}") from None

    def _connect(self) -> socket.socket:
        if self._socket is None:
            address = self._address
            if address.unix_socket:
                plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            else:
                plain = socket.create_connection((address.host, address.port), self._timeout)
            try:
                plain.settimeout(self._timeout)
                if address.unix_socket:
                    plain.connect(address.unix_socket)
                name = address.server_name or address.host
                self._socket = address.tls.wrap_socket(plain, server_hostname=name) if address.tls else plain
            except BaseException:
                plain.close()
                raise
            self._http = h11.Connection(h11.CLIENT)
        return self._socket

    def _read(self, connection: socket.socket, deadline: float) -> HttpResponse:
        head: h11.Response | None = None
        pieces: list[bytes] = []
        size = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                connection.settimeout(_left(deadline))
                piece = connection.recv(_PIECE_BYTES)
                if not piece and head is None:
                    raise OSError("the connection was closed before the response")
                self._http.receive_data(piece)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self._max_body_bytes:
                    raise OSError(f"the response is larger than {self._max_body_bytes} bytes")
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                break
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise OSError("the connection was closed before the response")
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
        return HttpResponse(head.status_code, b"".join(pieces), headers)


def open_url(
    url: str, http: HttpConfig, *, timeout_seconds: float, max_body_bytes: int, headers: Headers = ()
) -> tuple[BlockingHttp, str]:
    """A client with the TLS options and headers of `http`, and the target of its requests. Headers given here
    replace those of `http`. A URL without a host fails when it is used."""
    import ssl

    parts = urlsplit(url)
    tls = (http.tls or ssl.create_default_context()) if parts.scheme == "https" else None
    address = HttpAddress(
        host=parts.hostname or "",
        port=parts.port or (443 if tls else 80),
        tls=tls,
        server_name=http.server_name,
        host_header=parts.netloc.rpartition("@")[2],
    )
    names = {name.lower() for name, _ in headers}
    general = [(name, value) for name, value in http.headers if name.lower() not in names]
    client = BlockingHttp(
        address,
        timeout_seconds=timeout_seconds,
        max_body_bytes=max_body_bytes,
        headers=[("user-agent", f"gpuscope/{__version__}"), *general, *headers],
    )
    return client, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no complete response in time")
    return left
