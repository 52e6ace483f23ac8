"""A POST over one kept connection: sockets and h11, blocking, for a sender's own thread.

The standard library's client would cost an agent 10 MiB. An answer is read to its end, of its text only the
beginning is kept. Whatever goes wrong on the way is an OSError.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from gpuscope import __version__
from gpuscope.scrape.http_config import HttpConfig

MAX_TEXT_BYTES = 512
MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str = ""
    retry_after: str = ""


class PostClient:
    """Not for several threads at once."""

    def __init__(self, url: str, http: HttpConfig, timeout_seconds: float = 30.0) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = http.tls or (ssl.create_default_context() if parts.scheme == "https" else None)
        if parts.scheme != "https":
            self._tls = None
        self._port = parts.port or (443 if self._tls else 80)
        self._server_name = http.server_name or self._host
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = [("host", parts.netloc), ("user-agent", f"gpuscope/{__version__}"), *http.headers]
        self._timeout = timeout_seconds
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)

    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> Answer:
        kept = self._socket is not None
        try:
            return self._post(body, headers)
        except OSError:
            self.close()
            if not kept:
                raise
        # The peer may have closed a kept connection while we were silent: that is no failure yet.
        try:
            return self._post(body, headers)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        if self._socket is None:
            plain = socket.create_connection((self._host, self._port), self._timeout)
            try:
                secured = (
                    self._tls.wrap_socket(plain, server_hostname=self._server_name) if self._tls else plain
                )
            except BaseException:
                plain.close()
                raise
            self._socket = secured
            self._http = h11.Connection(h11.CLIENT)
        return self._socket

    def _post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> Answer:
        connection = self._connect()
        every = [*self._headers, *headers, ("content-length", str(len(body)))]
        request = h11.Request(method="POST", target=self._target, headers=every)
        try:
            parts = (self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(_END))
            connection.sendall(b"".join(part or b"" for part in parts))
            answer = self._read(connection)
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
            else:
                self.close()
            return answer
        except h11.ProtocolError as error:
            raise OSError(f"not an HTTP answer: {error}") from None

    def _read(self, connection: socket.socket) -> Answer:
        head: h11.Response | None = None
        text = b""
        size = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(connection.recv(1 << 16))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                size += len(event.data)
                text = (text + bytes(event.data))[:MAX_TEXT_BYTES]
                if size > MAX_ANSWER_BYTES:
                    raise OSError("the answer has no end")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                break
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise OSError("the connection was closed before the answer")
        found = {name: value for name, value in head.headers}  # noqa: C416 - h11's are not a plain mapping
        retry = found.get(b"retry-after", b"").decode("latin-1")
        return Answer(head.status_code, " ".join(text.decode("utf-8", "replace").split()), retry)


_END = h11.EndOfMessage()
