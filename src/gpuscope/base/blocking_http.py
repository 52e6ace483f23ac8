"""A small blocking HTTP/1.1 client on sockets and h11, for threads of the agent and for one-shot checks.

One connection, kept between requests, over TCP, TLS or a Unix socket, through a proxy where there is one. A
response is read whole, with a bound on its size and total time. Every failure is an OSError. Code that runs in
an agent uses this client, other code httpx2, which takes 9 MiB (docs/decisions/0014).
"""

from __future__ import annotations

import base64
import contextlib
import os
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
    from gpuscope.base.http_proxy import ProxyRules, ProxyServer
    from gpuscope.base.oauth2 import ClientCredentials

Headers = Sequence[tuple[str, str]]
_END = h11.EndOfMessage()
_PIECE_BYTES = 1 << 16
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY")


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
    proxies: ProxyRules | None = None


class BlockingHttp:
    """Not for several threads at once."""

    def __init__(
        self,
        address: HttpAddress,
        *,
        timeout_seconds: float,
        max_body_bytes: int,
        headers: Headers = (),
        credentials: ClientCredentials | None = None,
    ) -> None:
        self._address = address
        self._timeout = timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._headers = [("host", address.host_header or address.host), *headers]
        self._credentials = credentials
        self._origin = ""
        """What an HTTP proxy needs before a target."""
        self._proxy_headers: Headers = ()
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)

    def request(self, method: str, target: str, headers: Headers = (), body: bytes = b"") -> HttpResponse:
        if self._credentials is None:
            return self._try_twice(method, target, headers, body)
        token = self._credentials.header(self._timeout)
        response = self._try_twice(method, target, [*headers, token], body)
        if response.status == 401:
            self._credentials.forget()
        return response

    def _try_twice(self, method: str, target: str, headers: Headers, body: bytes) -> HttpResponse:
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
            own = [*self._headers, *self._proxy_headers, *headers, *length]
            request = h11.Request(method=method, target=self._origin + target, headers=own)
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
            scheme, rules = "https" if address.tls else "http", address.proxies
            proxy = rules.server_for(scheme, address.host, address.port) if rules is not None else None
            if address.unix_socket:
                plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            else:
                server = address if proxy is None else proxy
                plain = socket.create_connection((server.host, server.port), self._timeout)
            try:
                plain.settimeout(self._timeout)
                if address.unix_socket:
                    plain.connect(address.unix_socket)
                if proxy is not None and proxy.scheme != "http":
                    _open_socks(plain, proxy, address)
                elif proxy is not None and address.tls is not None:
                    _open_tunnel(plain, proxy, address)
                elif proxy is not None:
                    self._origin = f"http://{address.host_header or address.host}"
                    self._proxy_headers = _proxy_authorization(proxy)
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
    replace those of `http`. A URL without a host, or one behind a proxy that cannot be used, fails when it is
    used."""
    import ssl

    parts = urlsplit(url)
    tls = (http.tls or ssl.create_default_context()) if parts.scheme == "https" else None
    address = HttpAddress(
        host=parts.hostname or "",
        port=parts.port or (443 if tls else 80),
        tls=tls,
        server_name=http.server_name,
        host_header=parts.netloc.rpartition("@")[2],
        proxies=_environment_rules() if http.proxies is None else http.proxies,
    )
    names = {name.lower() for name, _ in headers}
    general = [(name, value) for name, value in http.headers if name.lower() not in names]
    client = BlockingHttp(
        address,
        timeout_seconds=timeout_seconds,
        max_body_bytes=max_body_bytes,
        headers=[("user-agent", f"gpuscope/{__version__}"), *general, *headers],
        credentials=None if "authorization" in names else http.oauth2,
    )
    return client, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _environment_rules() -> ProxyRules | None:
    if not any(name.upper() in PROXY_VARIABLES for name in os.environ):
        return None
    from gpuscope.base.http_proxy import environment_rules  # few agents need it

    return environment_rules(os.environ)


def _proxy_authorization(proxy: ProxyServer) -> list[tuple[str, str]]:
    if proxy.user is None:
        return []
    token = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    return [("proxy-authorization", f"Basic {token}")]


def _open_tunnel(connection: socket.socket, proxy: ProxyServer, address: HttpAddress) -> None:
    """Through an HTTP proxy: what follows is between us and the server."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    http, target = h11.Connection(h11.CLIENT), f"{host}:{address.port}"
    headers = [("host", target), *_proxy_authorization(proxy), *proxy.connect_headers]
    connection.sendall(http.send(h11.Request(method="CONNECT", target=target, headers=headers)) or b"")
    http.send(_END)
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(connection.recv(_PIECE_BYTES))
    except h11.ProtocolError as error:
        raise OSError(f"the proxy's answer is not HTTP: {error}") from None
    if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
        status = event.status_code if isinstance(event, h11.Response) else "none"
        raise OSError(f"the proxy refuses a tunnel to {target}: HTTP status {status}")


def _open_socks(connection: socket.socket, proxy: ProxyServer, address: HttpAddress) -> None:
    """SOCKS 5 (RFC 1928, 1929); the proxy looks the name up."""
    user, password = (proxy.user or "").encode()[:255], proxy.password.encode()[:255]
    connection.sendall(b"\x05\x01\x00" if proxy.user is None else b"\x05\x02\x00\x02")
    version, method = _receive(connection, 2)
    if version == 5 and method == 2 and proxy.user is not None:
        connection.sendall(b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password)
        if _receive(connection, 2)[1] != 0:
            raise OSError("the SOCKS proxy refuses the user or the password")
    elif version != 5 or method != 0:
        raise OSError("the proxy is not a SOCKS 5 proxy, or wants a user and a password")
    name = address.host.encode("idna")
    if len(name) > 255:
        raise OSError("the host's name is too long for SOCKS")
    connection.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + address.port.to_bytes(2, "big"))
    reply = _receive(connection, 4)
    if reply[1] != 0:
        raise OSError(f"the SOCKS proxy cannot connect to {address.host}:{address.port}: reply {reply[1]}")
    length = {1: 4, 4: 16}.get(reply[3]) or _receive(connection, 1)[0]
    _receive(connection, length + 2)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError("the proxy closed the connection")
        data += piece
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no complete response in time")
    return left
